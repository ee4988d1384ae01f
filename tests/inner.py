"""Names of the inside of the package that several tests use: where one is moved, one line of this file follows it."""

# ruff: noqa: F401

from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.automata.byte_machine import Both, ByteMachine
from outlines_phi.drafting.drafter import NOTHING, Proposer
from outlines_phi.drafting.forced import ForcedTexts
from outlines_phi.fidelity import bias, plots
from outlines_phi.fidelity.audit_report import audit_traces
from outlines_phi.fidelity.bias import (
    LOW,
    REMEDIES,
    TOLERANCE,
    Bias,
    Interval,
    IntervalEstimate,
    lower_limit,
    measure,
    unit_interval,
)
from outlines_phi.fidelity.findings import (
    END,
    OUTSIDE,
    ROOT,
    WHOLE,
    Report,
    Sample,
    Trace,
    TraceRecorder,
    byte_places,
    compare,
    field_values,
    frequencies,
    label,
    log_weights,
    noise_floor,
    noise_limit,
    total_variation,
    tree_bounds,
)
from outlines_phi.fidelity.probabilities import probabilities
from outlines_phi.format_limits import current_limits
from outlines_phi.guides.fsm import CharacterFSM, FSMGuide, encoded, from_index
from outlines_phi.guides.grammar import cfg_guide, lexer
from outlines_phi.guides.grammar.grammar import Grammar, LRTables, Production, Terminal
from outlines_phi.guides.grammar.lexeme_automaton import automaton_of
from outlines_phi.guides.grammar.notation.reader import dyck, grammar_text
from outlines_phi.guides.grammar.parser import ERROR, Parser
from outlines_phi.guides.guidance.guidance_grammar import GuidanceGrammar
from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE, Row
from outlines_phi.guides.guide_texts import list_texts
from outlines_phi.guides.json_schema import kinds, number_set, shapes, spreads, string_set, token_forest, walker
from outlines_phi.guides.json_schema.formats import FORMATS, LEFT_OUT, format_strings
from outlines_phi.guides.json_schema.machine.machine import Machine
from outlines_phi.guides.json_schema.reading.schema import Schema, Template
from outlines_phi.guides.json_schema.string_set import QUOTE, StringSet, in_ascii, in_json
from outlines_phi.guides.phrases import ban_language
from outlines_phi.guides.phrases.ban_language import ProductGuide, banned, depends_on_prompt, free_text
from outlines_phi.guides.phrases.banned import LEVELS, QUESTIONS, smallest_conflict
from outlines_phi.guides.phrases.matcher import PhraseMatcher, WithoutPhrases
from outlines_phi.guides.phrases.phrase_guide import BanningGuide, PhraseGuide
from outlines_phi.lm import bundled
from outlines_phi.lm import model as watch
from outlines_phi.lm.model import (
    INTERRUPTION,
    Evaluation,
    Interrupted,
    Interruption,
    ModelCounts,
    Watch,
    WrappedModel,
    current,
    follow,
    limited,
    turn,
    watching,
)
from outlines_phi.lm.table_model import TableModel
from outlines_phi.lm.transformers.forward import CACHES, Borders, Forward
from outlines_phi.lm.transformers.packed import PackedTrees, divided
from outlines_phi.lm.transformers.roads import RegionTrees, RowTrees
from outlines_phi.lm.transformers.slots import TreeMask, eightfold
from outlines_phi.numerics import distributions
from outlines_phi.numerics.cache import Cache, forget_parts, kept_rows, memory_of
from outlines_phi.numerics.distributions import BLOCK, AnswerCheck, Distributions, Exchange, Rows, draw_ahead
from outlines_phi.numerics.weights import (
    Evidence,
    Wave,
    at_quantiles,
    draw,
    effective_size,
    log,
    log_mean,
    log_sum,
    normalized,
    scaled,
)
from outlines_phi.phi import branches
from outlines_phi.phi.branches import Branch, Branches
from outlines_phi.phi.dp_bigram import SETTLED, Layers, StateSpace
from outlines_phi.phi.estimator import Need, Phi
from outlines_phi.phi.state_values import EMPTY, STEPS, KeptValues, Knowledge, Observed
from outlines_phi.phi.tree import best_first, evaluator, tree
from outlines_phi.phi.tree import best_first as preexpand
from outlines_phi.phi.tree import evaluator as ahead
from outlines_phi.phi.tree.best_first import (
    BESIDE,
    SHORTEST,
    USUAL,
    Frontier,
    ModeSearch,
    enumerate_together,
    expand_usual,
    grow_trees,
    likeliest_beside,
    usual_prefixes,
)
from outlines_phi.phi.tree.distribution import Beginnings, Distribution, FirstToken
from outlines_phi.phi.tree.evaluator import Evaluator, Foresight, TreeStore
from outlines_phi.phi.tree.tree import NODE_BYTES, BoundsTree, Node
from outlines_phi.phi.tree.window import Ending, PhraseWindows, Release, Renewal
from outlines_phi.plugin import install, streaming
from outlines_phi.plugin.call import ESTIMATORS, Call, CallOptions, Correction, resolve_phi
from outlines_phi.plugin.choices import (
    DEFAULTS,
    FIELDS,
    INSTALLED,
    MISFITS,
    OPTIONS,
    TOKENIZATIONS,
    USED,
    Role,
    refuse_misfits,
    rows,
)
from outlines_phi.plugin.drafts import DRAFTERS, resolve_draft
from outlines_phi.plugin.generator import KEYWORDS, PhiGenerator
from outlines_phi.plugin.processor import MaskLogitsProcessor, Prefix, PrefixTree, Step
from outlines_phi.plugin.types import tables
from outlines_phi.plugin.types.output_types import JSONText, to_core_language, to_language
from outlines_phi.plugin.types.readers import format_of, reader
from outlines_phi.plugin.types.tables import MASKING, CompiledTypes
from outlines_phi.regex import builder, patterns
from outlines_phi.regex.patterns import compile_regex, literal
from outlines_phi.regex.spelling import spelled, utf8
from outlines_phi.sampling import ancestral, awrs, coupling, lookahead, sampler, stepper, window_walks
from outlines_phi.sampling.ancestral import Ancestors, AncestralSampler, Particles, Resample, SMCSampler, systematic
from outlines_phi.sampling.awrs import AllowedDraw, MassEstimate, Order, draw_allowed, gumbel
from outlines_phi.sampling.coupling import Chains, Proposals, verify
from outlines_phi.sampling.draws import DrawCounts, TokenAccount, numbers_of
from outlines_phi.sampling.lookahead import LookaheadSampler
from outlines_phi.sampling.ranking import rank
from outlines_phi.sampling.rejection.attempts import (
    Attempt,
    Attempts,
    FrozenWalks,
    RejectionAttempts,
    ResidualAttempts,
    ResidualWalk,
    descend,
)
from outlines_phi.sampling.rejection.auto_sampler import AutoSampler, TwoStages
from outlines_phi.sampling.rejection.exact_sampler import Certification, ExactSampler
from outlines_phi.sampling.resolve import sampler_for
from outlines_phi.sampling.sampler import Prefetch, Request, Sampler, Stream, random_stream
from outlines_phi.sampling.stepper import Stepper, Trajectory, WalkStep
from outlines_phi.sampling.window_walks import WASTE, NormalizerWalk, WindowAttempts, WindowTree, lost_at
from outlines_phi.testing.conformance import reachable
from outlines_phi.vocabulary.trie import fewest_tokens, merged_tokens
from outlines_phi.vocabulary.vocabulary import EOS, NEVER, Partition
