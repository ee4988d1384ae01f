from .bias import AuditVerdict as AuditVerdict
from .bias import FitTable as FitTable
from .bias import FormatFit as FormatFit
from .probabilities import Probability as Probability
