"""Names of the inside of the package that several tests use: where one is moved, one line of this file follows it."""

# ruff: noqa: F401

from outlines_phi.drafting.drafter import NOTHING, Proposer
from outlines_phi.drafting.forced import ForcedTexts
from outlines_phi.fidelity import bias
from outlines_phi.fidelity.audit_report import audit_traces
from outlines_phi.fidelity.bias import Interval, measure
from outlines_phi.fidelity.comparison import frequencies, noise_floor, noise_limit, total_variation
from outlines_phi.fidelity.findings import END, ROOT, Trace, TraceRecorder, log_weights, tree_bounds
from outlines_phi.fidelity.probabilities import probabilities
from outlines_phi.guides.guide import DEAD, DONE, Row
from outlines_phi.guides.phrases.ban_language import ProductGuide, banned
from outlines_phi.guides.phrases.phrase_guide import PhraseGuide
from outlines_phi.lm import bundled, watch
from outlines_phi.lm.model import Evaluation, ModelCounts, WrappedModel
from outlines_phi.lm.transformers.forward import Forward
from outlines_phi.lm.transformers.packed import PackedTrees
from outlines_phi.lm.transformers.roads import RegionTrees, RowTrees
from outlines_phi.lm.transformers.slots import TreeMask
from outlines_phi.lm.watch import limited
from outlines_phi.numerics import distributions, transfers
from outlines_phi.numerics.distributions import Distributions
from outlines_phi.numerics.transfers import AnswerCheck, Exchange, Rows
from outlines_phi.numerics.weights import Evidence, Wave, at_quantiles, draw, log_mean, log_sum, scaled
from outlines_phi.phi import branches
from outlines_phi.phi.branches import Branch, Branches
from outlines_phi.phi.estimator import Need
from outlines_phi.phi.tree import best_first, tree
from outlines_phi.phi.tree import best_first as preexpand
from outlines_phi.phi.tree import evaluator as ahead
from outlines_phi.phi.tree.best_first import enumerate_together, grow_trees
from outlines_phi.phi.tree.evaluator import Evaluator
from outlines_phi.phi.tree.store import TreeStore
from outlines_phi.phi.tree.tree import BoundsTree, Node
from outlines_phi.phi.tree.window import PhraseWindows, Renewal
from outlines_phi.plugin.types.tables import CompiledTypes
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.sampling import coupling, window_walks
from outlines_phi.sampling.ancestral import AncestralSampler, SMCSampler, systematic
from outlines_phi.sampling.awrs import AllowedDraw
from outlines_phi.sampling.coupling import Chains, Proposals
from outlines_phi.sampling.lookahead import LookaheadSampler
from outlines_phi.sampling.ranking import rank
from outlines_phi.sampling.rejection.attempts import Attempt, Attempts, FrozenWalks, RejectionAttempts, ResidualAttempts
from outlines_phi.sampling.rejection.auto_sampler import AutoSampler
from outlines_phi.sampling.rejection.exact_sampler import Certification, ExactSampler
from outlines_phi.sampling.resolve import sampler_for
from outlines_phi.sampling.sampler import Prefetch, Request, Sampler
from outlines_phi.sampling.window_walks import NormalizerWalk, WindowAttempts
from outlines_phi.vocabulary.classes import EOS, NEVER, Partition
