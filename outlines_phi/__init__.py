"""Faithful constrained generation for Outlines.

Masking tokens forces a language model's output into a format and silently samples from the wrong distribution.
outlines_phi draws from the model's own law conditioned on the format.
"""

from .errors import BudgetError as BudgetError
from .errors import EmptyLanguageError as EmptyLanguageError
from .errors import GrammarError as GrammarError
from .errors import ModelError as ModelError
from .errors import OutlinesPhiError as OutlinesPhiError
from .errors import UnsupportedError as UnsupportedError
from .errors import VocabularyError as VocabularyError
from .guides.fsm import FSMGuide as FSMGuide
from .guides.guide import Guide as Guide
from .guides.table import Table as Table
from .lm.model import LanguageModel as LanguageModel
from .lm.table_model import TableModel as TableModel
from .lm.transformers.model import TransformersModel as TransformersModel
from .phi.exact import Effort as Effort
from .phi.exact import ExactPhi as ExactPhi
from .phi.local import LocalPhi as LocalPhi
from .phi.onestep import OneStepPhi as OneStepPhi
from .plugin.generator import Generator as Generator
from .plugin.model import PhiTransformers as PhiTransformers
from .plugin.model import from_transformers as from_transformers
from .plugin.model import wrap as wrap
from .sampling.draws import Draw as Draw
from .sampling.draws import Draws as Draws
from .sampling.draws import Guarantee as Guarantee
from .settings import SamplingSettings as SamplingSettings
from .vocabulary import Vocabulary as Vocabulary

__all__ = [
    "BudgetError",
    "Draw",
    "Draws",
    "Effort",
    "EmptyLanguageError",
    "ExactPhi",
    "FSMGuide",
    "Generator",
    "GrammarError",
    "Guarantee",
    "Guide",
    "LanguageModel",
    "LocalPhi",
    "ModelError",
    "OneStepPhi",
    "OutlinesPhiError",
    "PhiTransformers",
    "SamplingSettings",
    "Table",
    "TableModel",
    "TransformersModel",
    "UnsupportedError",
    "Vocabulary",
    "VocabularyError",
    "from_transformers",
    "wrap",
]

__version__ = "0.1.0"
