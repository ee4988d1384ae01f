"""Faithful constrained generation for Outlines.

Masking tokens forces a language model's output into a format and silently samples from the wrong distribution.
outlines_phi draws from the model's own law conditioned on the format.
"""

from .drafting.all_of import AllOf as AllOf
from .drafting.drafter import Draft as Draft
from .drafting.drafter import Drafter as Drafter
from .drafting.drafter import Drafting as Drafting
from .drafting.drafter import DraftRun as DraftRun
from .drafting.drafter import Site as Site
from .drafting.ending import EndingDrafter as EndingDrafter
from .drafting.first_of import FirstOf as FirstOf
from .drafting.forced import ForcedDrafter as ForcedDrafter
from .drafting.known_paths import TreeDrafter as TreeDrafter
from .drafting.length import AdaptedLength as AdaptedLength
from .drafting.model import ModelDrafter as ModelDrafter
from .drafting.prompt_lookup import PromptLookupDrafter as PromptLookupDrafter
from .errors import BudgetError as BudgetError
from .errors import ConstraintError as ConstraintError
from .errors import DraftError as DraftError
from .errors import EmptyLanguageError as EmptyLanguageError
from .errors import FidelityWarning as FidelityWarning
from .errors import GrammarError as GrammarError
from .errors import GrammarWarning as GrammarWarning
from .errors import InterruptedDraws as InterruptedDraws
from .errors import ModelError as ModelError
from .errors import OutlinesPhiError as OutlinesPhiError
from .errors import SchemaWarning as SchemaWarning
from .errors import UnsupportedError as UnsupportedError
from .errors import ValueReadError as ValueReadError
from .errors import VocabularyError as VocabularyError
from .fidelity.audit import AuditReport as AuditReport
from .fidelity.probabilities import Probabilities as Probabilities
from .fidelity.probabilities import Probability as Probability
from .guides.banned import BannedPhrases as BannedPhrases
from .guides.fsm import FSMGuide as FSMGuide
from .guides.grammar.guide import CFGGuide as CFGGuide
from .guides.grammar.reader import read_grammar as read_grammar
from .guides.guide import Guide as Guide
from .guides.json_schema.guide import JSONGuide as JSONGuide
from .guides.table import Table as Table
from .lm.model import LanguageModel as LanguageModel
from .lm.table_model import TableModel as TableModel
from .lm.transformers.model import TransformersModel as TransformersModel
from .lm.watch import Progress as Progress
from .phi.auto import AutoPhi as AutoPhi
from .phi.bigram import BigramDPPhi as BigramDPPhi
from .phi.exact import Effort as Effort
from .phi.exact import ExactPhi as ExactPhi
from .phi.frozen import FrozenDPPhi as FrozenDPPhi
from .phi.learned import LearnedPhi as LearnedPhi
from .phi.local import LocalPhi as LocalPhi
from .phi.lookahead import LookaheadPhi as LookaheadPhi
from .phi.lookahead1 import Lookahead1Phi as Lookahead1Phi
from .phi.onestep import OneStepPhi as OneStepPhi
from .phi.rollout import RolloutPhi as RolloutPhi
from .phi.state_values import StateValues as StateValues
from .phi.text_constraint import TextConstraint as TextConstraint
from .plugin import generate as generate
from .plugin import samplers as samplers
from .plugin.audit import audit as audit
from .plugin.custom_generate import custom_generate as custom_generate
from .plugin.existing import ban as ban
from .plugin.generator import Generator as Generator
from .plugin.install import install as install
from .plugin.install import uninstall as uninstall
from .plugin.loading import from_transformers as from_transformers
from .plugin.loading import wrap as wrap
from .plugin.model import PhiTransformers as PhiTransformers
from .plugin.phi_processor import PhiLogitsProcessor as PhiLogitsProcessor
from .sampling.certificate import Certificate as Certificate
from .sampling.draw import Draw as Draw
from .sampling.draw import Guarantee as Guarantee
from .sampling.draws import Draws as Draws
from .sampling.pimh import PIMH as PIMH
from .sampling.population import Population as Population
from .sampling.ranking import Member as Member
from .sampling.ranking import Ranking as Ranking
from .sampling.smc import SMC as SMC
from .settings import SamplingSettings as SamplingSettings
from .version import __version__ as __version__
from .vocabulary import Vocabulary as Vocabulary

__all__ = [
    "AdaptedLength",
    "AllOf",
    "AuditReport",
    "AutoPhi",
    "BannedPhrases",
    "BigramDPPhi",
    "BudgetError",
    "CFGGuide",
    "Certificate",
    "ConstraintError",
    "Draft",
    "DraftError",
    "DraftRun",
    "Drafter",
    "Drafting",
    "Draw",
    "Draws",
    "Effort",
    "EmptyLanguageError",
    "EndingDrafter",
    "ExactPhi",
    "FSMGuide",
    "FidelityWarning",
    "FirstOf",
    "ForcedDrafter",
    "FrozenDPPhi",
    "Generator",
    "GrammarError",
    "GrammarWarning",
    "Guarantee",
    "Guide",
    "InterruptedDraws",
    "JSONGuide",
    "LanguageModel",
    "LearnedPhi",
    "LocalPhi",
    "Lookahead1Phi",
    "LookaheadPhi",
    "Member",
    "ModelDrafter",
    "ModelError",
    "OneStepPhi",
    "OutlinesPhiError",
    "PIMH",
    "PhiLogitsProcessor",
    "PhiTransformers",
    "Population",
    "Probabilities",
    "Probability",
    "Progress",
    "PromptLookupDrafter",
    "Ranking",
    "RolloutPhi",
    "SMC",
    "SamplingSettings",
    "SchemaWarning",
    "Site",
    "StateValues",
    "Table",
    "TableModel",
    "TextConstraint",
    "TransformersModel",
    "TreeDrafter",
    "UnsupportedError",
    "ValueReadError",
    "Vocabulary",
    "VocabularyError",
    "audit",
    "ban",
    "custom_generate",
    "from_transformers",
    "generate",
    "install",
    "read_grammar",
    "samplers",
    "uninstall",
    "wrap",
]
