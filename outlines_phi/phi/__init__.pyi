from .estimator import Estimate as Estimate
from .estimator import Prefixes as Prefixes
from .estimator import ProposalPhi as ProposalPhi
from .estimator import SampledRun as SampledRun
from .estimator import StepPhi as StepPhi
