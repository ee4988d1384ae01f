from .bias import AuditVerdict as AuditVerdict
from .probabilities import Probability as Probability
