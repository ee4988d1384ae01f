"""Faithful constrained generation for Outlines.

Masking tokens forces a language model's output into a format and silently samples from the wrong distribution.
outlines_phi draws from the model's own law conditioned on the format.
"""

from .errors import BudgetError as BudgetError
from .errors import EmptyLanguageError as EmptyLanguageError
from .errors import FidelityWarning as FidelityWarning
from .errors import GrammarError as GrammarError
from .errors import ModelError as ModelError
from .errors import OutlinesPhiError as OutlinesPhiError
from .errors import UnsupportedError as UnsupportedError
from .errors import ValueReadError as ValueReadError
from .errors import VocabularyError as VocabularyError
from .fidelity.audit import AuditReport as AuditReport
from .fidelity.probabilities import Probabilities as Probabilities
from .fidelity.probabilities import Probability as Probability
from .guides.fsm import FSMGuide as FSMGuide
from .guides.guide import Guide as Guide
from .guides.table import Table as Table
from .lm.model import LanguageModel as LanguageModel
from .lm.table_model import TableModel as TableModel
from .lm.transformers.model import TransformersModel as TransformersModel
from .phi.auto import AutoPhi as AutoPhi
from .phi.exact import Effort as Effort
from .phi.exact import ExactPhi as ExactPhi
from .phi.local import LocalPhi as LocalPhi
from .phi.onestep import OneStepPhi as OneStepPhi
from .plugin import generate as generate
from .plugin import samplers as samplers
from .plugin.audit import audit as audit
from .plugin.custom_generate import custom_generate as custom_generate
from .plugin.generator import Generator as Generator
from .plugin.install import install as install
from .plugin.install import uninstall as uninstall
from .plugin.loading import from_transformers as from_transformers
from .plugin.loading import wrap as wrap
from .plugin.model import PhiTransformers as PhiTransformers
from .plugin.phi_processor import PhiLogitsProcessor as PhiLogitsProcessor
from .sampling.draws import Draw as Draw
from .sampling.draws import Draws as Draws
from .sampling.draws import Guarantee as Guarantee
from .sampling.ranking import Member as Member
from .sampling.ranking import Ranking as Ranking
from .settings import SamplingSettings as SamplingSettings
from .vocabulary import Vocabulary as Vocabulary

__all__ = [
    "AuditReport",
    "AutoPhi",
    "BudgetError",
    "Draw",
    "Draws",
    "Effort",
    "EmptyLanguageError",
    "ExactPhi",
    "FSMGuide",
    "FidelityWarning",
    "Generator",
    "GrammarError",
    "Guarantee",
    "Guide",
    "LanguageModel",
    "LocalPhi",
    "Member",
    "ModelError",
    "OneStepPhi",
    "OutlinesPhiError",
    "PhiLogitsProcessor",
    "PhiTransformers",
    "Probabilities",
    "Probability",
    "Ranking",
    "SamplingSettings",
    "Table",
    "TableModel",
    "TransformersModel",
    "UnsupportedError",
    "ValueReadError",
    "Vocabulary",
    "VocabularyError",
    "audit",
    "custom_generate",
    "from_transformers",
    "generate",
    "install",
    "samplers",
    "uninstall",
    "wrap",
]

__version__ = "0.1.0"
