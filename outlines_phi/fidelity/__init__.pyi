from .bias import AuditVerdict as AuditVerdict
from .format_fit import FitTable as FitTable
from .format_fit import FormatFit as FormatFit
from .probabilities import Probability as Probability
