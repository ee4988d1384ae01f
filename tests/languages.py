"""The small languages and laws that every sampler is tested on."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest
from outlines.types import CFG, JsonSchema, Regex
from scipy import stats

from outlines_phi import SMC, Draws, SamplingSettings, Special, Vocabulary
from outlines_phi.automata.prefix_match import PrefixMatch, boundary
from outlines_phi.drafting import Drafter
from outlines_phi.guides import CFGGuide, FSMGuide, JSONGuide, Table, read_grammar
from outlines_phi.guides.thinking import Stops
from outlines_phi.lm import TableModel
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
from tests.chi_square import ChiSquare
from tests.inner import (
    DEAD,
    BoundsTree,
    CompiledTypes,
    Prefetch,
    Request,
    TreeStore,
    compile_regex,
    frequencies,
    noise_floor,
    sampler_for,
    total_variation,
)

Ids = tuple[int, ...]

VOCABULARY = Vocabulary.from_tokens(["<eos>", "a", "b", "ab", "ba", "c", "cc", "x", "aa", "(", ")", "()"], 0)
PROMPT = (1, 2)
ALPHA = 0.01
"""Level of every goodness-of-fit test; seeds are fixed, so a test that passes goes on passing."""

DRAWS = 24_500
"""Draws of a full-power test: power 0.99 against a bias of 2 % (TV) spread evenly over ten cells, the hardest case."""

POOLED = 1_720
"""Draws of each of nine languages by each of five samplers on two roads, whose statistics are added: power 0.99 against a bias
of 2 % of all, and 0.98 against 3 % of one sampler and 4 % of one road of it."""


@dataclass(frozen=True)
class Language:
    """A regular expression under a random law; with its exact reference."""

    name: str
    pattern: str
    budget: int
    seed: int
    scale: float = 1.5

    def __str__(self) -> str:
        return self.name

    @cached_property
    def table(self) -> Table:
        return Table(FSMGuide.from_automaton(compile_regex(self.pattern), VOCABULARY))

    @cached_property
    def lm(self) -> TableModel:
        return TableModel.random(VOCABULARY, seed=self.seed, scale=self.scale)

    @cache  # noqa: B019
    def within(self, budget: int) -> Language:
        """Return the same language under another budget; what is compiled is shared."""
        other = replace(self, budget=budget)
        other.__dict__.update(table=self.table, lm=self.lm)
        return other

    def settings(self, seed: int | None = None, **options: object) -> SamplingSettings:
        return SamplingSettings(max_new_tokens=self.budget, seed=seed, **options)  # type: ignore[arg-type]

    @cache  # noqa: B019 - a handful of module-level languages
    def reference(self, **options: object) -> Reference:
        return enumerate_language(self.lm, self.table, PROMPT, self.settings(**options), self.budget)

    def request(self, n: int, seed: int | None, *, rows: int = 1, **options: object) -> Request:
        settings = self.settings(seed, **options)
        return Request(lm=self.lm, table=self.table, prompts=[PROMPT] * rows, settings=settings, n=n)


@dataclass(frozen=True)
class GrammarLanguage(Language):
    """A context-free grammar, as ``pattern``, under a random law."""

    @cached_property
    def table(self) -> Table:
        return Table(CFGGuide.of(read_grammar(self.pattern), VOCABULARY))


@dataclass(frozen=True)
class OpenLanguage(Language):
    """The texts that begin with a member of a regular expression; where ``after`` is given, one of its characters follows it."""

    after: str | None = None

    @cached_property
    def table(self) -> Table:
        match = PrefixMatch(compile_regex(self.pattern), self.after and boundary(self.after))
        return Table(FSMGuide.from_match(match, VOCABULARY))


@dataclass(frozen=True)
class StoppedLanguage(Language):
    """The texts of an output type, as ``term`` or a regular expression, that strings end."""

    stops: tuple[str, ...] = ()
    term: Any = field(default=None, compare=False)

    @property
    def type(self) -> Any:
        return Regex(self.pattern) if self.term is None else self.term

    @cached_property
    def table(self) -> Table:
        return CompiledTypes(VOCABULARY).stopped(self.type, None, Stops(self.stops))

    @cached_property
    def texts(self) -> Table:
        """The members, whatever strings they hold."""
        return CompiledTypes(VOCABULARY).of(self.type)


CROSSING = [
    '{"a":', '"x"', '": "', '"},{"', '[{"', '"}]', '":"', 'a":', '"a', "1,", ",1", "12", "[1", "1]", "}}", "x,", "[[",
]  # fmt: skip
JSON_VOCABULARY = Vocabulary.from_tokens(["<eos>", *map(chr, range(0x20, 0x7F)), "\n", *CROSSING], 0)


@dataclass(frozen=True)
class JSONLanguage(Language):
    """A JSON schema, as ``pattern``, over tokens that cross its structure, under a law that mostly writes what it allows."""

    scale: float = 1.0
    blanks: str = ""

    @cached_property
    def table(self) -> Table:
        return Table(JSONGuide.of(json.loads(self.pattern), JSON_VOCABULARY, blanks=self.blanks))

    @property
    def vocabulary(self) -> Vocabulary:
        return JSON_VOCABULARY

    @cached_property
    def lm(self) -> TableModel:
        law = TableModel.random(self.vocabulary, seed=self.seed, scale=self.scale).next_logits
        guide = self.table.guide

        @cache
        def likely(sequence: Ids) -> np.ndarray:
            state = guide.start
            for token in sequence[len(PROMPT) :]:
                state = guide.advance(state, token)
            row = guide.row(state)
            return np.asarray(law(sequence)) + np.where(row.targets[row.partition.class_of] != DEAD, 4.0, 0.0)

        return TableModel(self.vocabulary, likely)


LANGUAGES = (
    Language("words", "(ab|ba|c){1,3}x?", 7, seed=3),
    Language("loop", "(ab|c)*x", 6, seed=5),
    Language("nested", r"(\(\)|\(a\)){1,2}", 7, seed=8),
    Language("late bottleneck", "[abc]{2}x{2}", 6, seed=11, scale=2.5),
)
WORDS, LOOP, NESTED, LATE = LANGUAGES

GRAMMARS = (
    GrammarLanguage("Dyck", 'start: pair+\npair: "(" pair* ")"', 8, seed=23),
    GrammarLanguage(
        "arithmetic",
        """
        start: product | start "x" product
        product: atom | product "c" atom
        atom: NAME | "(" start ")"
        NAME: /a+/
        """,
        6,
        seed=9,
    ),
    GrammarLanguage(
        "keywords",  # of two names side by side, and of longer words that begin with the keyword, a mask must know
        """
        start: "ab" | NAME NAME | "(" start ")"
        NAME: /[ab]+/
        %ignore "c"
        """,
        4,
        seed=14,
    ),
    GrammarLanguage(
        "separated",  # two names cannot stand side by side without what is ignored
        """
        start: "(" NAME NAME ")" | "(" NAME "x" start ")"
        NAME: /[ab]+/
        %ignore "c"
        """,
        6,
        seed=11,
    ),
)
"""Languages of grammars; those of ``LANGUAGES`` are regular."""

OPEN = (
    OpenLanguage(
        "labels", "abc|abcab|b?abb|ca{1,2}", 5, seed=7
    ),  # one begins another, and a text that goes on may come back to it
    OpenLanguage("words, open", "(ab|c){1,2}", 3, seed=12, after="[^a-c]"),
)

STOPPED = (
    StoppedLanguage("words, stopped", "(ab|c){1,3}x?", 5, seed=7, stops=("x", "cb", "cca")),
    StoppedLanguage("parentheses, stopped", "", 5, seed=11, stops=("a",), term=CFG('start: ("(" start? ")")+ | "a"')),
)
"""Ended by the end of sequence, or by a string that a token may go beyond; one in each state of a parser."""

JSON = (
    JSONLanguage("integers", '{"type": "integer", "minimum": -21, "maximum": 212, "not": {"multipleOf": 5}}', 5, seed=9),
    JSONLanguage(
        "keys", '{"properties": {"a": {"enum": ["x", 1, 12]}}, "type": "object", "additionalProperties": false}', 6, seed=12
    ),
    JSONLanguage(
        "objects in a list",
        '{"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "object", "properties": {"a": {"enum": ["x", "a"]}},'
        ' "required": ["a"], "additionalProperties": false}}',
        7,
        seed=4,
    ),
    JSONLanguage(
        "one of",
        '{"oneOf": [{"enum": [1, 2, 12, {"a": 1}]}, {"type": "integer", "minimum": 2, "maximum": 21}]}',
        6,
        seed=10,
        blanks=" ?",
    ),
    JSONLanguage("set", '{"type": "array", "uniqueItems": true, "items": {"enum": [1, 12, "x"]}}', 7, seed=13),
    JSONLanguage(
        "all of",
        '{"type": "array", "allOf": [{"items": {"enum": [1, 12]}}, {"contains": {"const": 12}}], "maxItems": 3}',
        6,
        seed=3,
    ),
)  # fmt: skip
KEYS, LISTED, ONE_OF = JSON[1:4]

SPECIAL_VOCABULARY = Vocabulary.from_tokens(
    [token or "<eos>" for token in (*JSON_VOCABULARY.tokens, b"ab", b"</t>", b"</t>", b"<e>")],
    0,
    special={"</t>": len(JSON_VOCABULARY) + 2, "<e>": len(JSON_VOCABULARY) + 3},
)


@dataclass(frozen=True)
class SpecialLanguage(JSONLanguage):
    """A format with special tokens, as ``term``, under a law that mostly writes what it allows."""

    term: Any = field(default=None, compare=False)

    @property
    def vocabulary(self) -> Vocabulary:
        return SPECIAL_VOCABULARY

    @cached_property
    def table(self) -> Table:
        return CompiledTypes(SPECIAL_VOCABULARY).of(self.term)


SPECIAL = (
    SpecialLanguage("thought", "", 5, seed=3, term=Regex("[ab]*") + Special("</t>") + Regex("a|12")),
    SpecialLanguage(
        "thought, JSON", "", 6, seed=4, term=Regex("[ab]*") + Special("</t>") + JsonSchema({"enum": [1, 12]})
    ),
    SpecialLanguage("lark", "", 6, seed=6, term=CFG("start: WORD? </t> WORD <e> | WORD\nWORD: /(a|b)+/"), scale=2.0),
    SpecialLanguage(
        "grammar inside",
        "",
        6,
        seed=7,
        term=Regex("b*") + CFG('start: "a" start "b" | </t>') + JsonSchema({"enum": [1, 2]}),
    ),
)
"""Special tokens beside the text of their names."""
TREE = JSONLanguage("tree", '{"type": "array", "items": {"$ref": "#"}, "maxItems": 2}', 8, seed=16)
"""A recursive schema, two of whose members have nearly all mass: too few draws of the others for a chi-square."""

OF_EVERY_KIND = (*LANGUAGES, *GRAMMARS[:3])
AND_OPEN = (*OF_EVERY_KIND, *OPEN, *STOPPED)
languages = pytest.mark.parametrize("language", AND_OPEN, ids=str)


def sample(
    phi: object,
    request: Request,
    *,
    store: TreeStore | None = None,
    smc: SMC | None = None,
    drafter: Drafter | None = None,
    length: int = 3,
) -> list[Draws]:
    """Return the draws of a request by the sampler that an estimator stands for, of which no other draws have grown a tree."""
    draft = None if drafter is None else Prefetch(drafter, length)
    return sampler_for(phi, TreeStore() if store is None else store, smc, draft).sample(request)  # type: ignore[arg-type]


def tree_of(store: TreeStore, request: Request) -> BoundsTree:
    """Return the tree that a store keeps for the one prompt of a request without a seed."""
    with store.lend(*request.tree_key) as (tree,):
        return tree


def ids(*results: Draws) -> list[Ids]:
    return [draw.token_ids for draws in results for draw in draws]


def pairs(results: Iterable[Draws]) -> list[tuple[Ids, ...]]:
    """Return the draws of each prompt together."""
    return [tuple(ids(draws)) for draws in results]


def joint(law: dict[Ids, float]) -> dict[tuple[Ids, Ids], float]:
    """Return the law of two independent draws."""
    return {(a, b): p * q for a, p in law.items() for b, q in law.items()}


def pushed(law: dict[Ids, float], of: Callable[[Ids], Any]) -> dict[Any, float]:
    """Return the law of ``of(y)``."""
    found = defaultdict[Any, float](float)
    for y, p in law.items():
        found[of(y)] += p
    return found


def correct(draws: Draws, mu: dict[Ids, float], slack: float = 0.005) -> bool:
    """Return True if the weighted frequencies of draws are mu*, but for the noise of their effective sample size."""
    weighted = frequencies(ids(draws), draws.weights)
    return total_variation(weighted, mu) < 3 * noise_floor(mu, max(1, int(draws.ess))) + slack


def unbiased(draws: Draws, phi: float) -> bool:
    """Return True if the mean weight is Phi within four standard errors, all draws counted."""
    w = np.exp(draws.log_w)
    return abs(w.mean() - phi) < 4 * w.std() / math.sqrt(len(w)) + 1e-9


def errors_of(results: Iterable[Draws], language: Language) -> tuple[float, float]:
    """Return the errors of ``E[w] = Phi`` and ``E[w f] = Phi mu*(f)`` over the means of calls; f is being the likeliest member."""
    mu, w, f = language.reference().mu, [], []
    top = max(mu, key=lambda y: mu[y])
    for draws in results:
        w.append(np.exp(draws.log_w).mean())
        f.append(sum(math.exp(draw.log_w) for draw in draws if draw.token_ids == top) / len(draws.log_w))
    phi = math.exp(language.reference().log_phi)
    return z(np.array(w) / phi, 1.0), z(np.array(f) / phi, mu[top])


def streamed(sampler: Any, request: Request, check: Callable[[Any], None] = lambda walk: None) -> list[Ids]:
    """Return the texts of a stream, row by row, each of which only ever grows; ``check`` sees every walk that has."""
    texts: dict[tuple[int, int], Ids] = {}
    for grown in sampler.steps(request):
        for walk in grown:
            before = texts.get((walk.row, walk.number), ())
            assert tuple(walk.tokens[: len(before)]) == before and len(walk.tokens) > len(before)
            texts[walk.row, walk.number] = tuple(walk.tokens)
            check(walk)
    return [texts[key] for key in sorted(texts)]


def p_value(outcomes: list[Any], law: dict[Any, float]) -> float:
    """Return the p-value of "the outcomes are draws of this law", 0 when one is outside it."""
    test = ChiSquare.of(outcomes, law)
    return 0.0 if test.outside else float(stats.chi2.sf(test.statistic, test.cells - 1))


def pooled_p_value(samples: Iterable[tuple[list[tuple[int, ...]], dict[tuple[int, ...], float]]]) -> float:
    """Return the p-value of "each sample is drawn from its law", 0 when a draw is outside its own.

    It is that of the added statistics, which sees a small bias of all samples, or that of the worst sample alone if this is less.
    """
    tests = [ChiSquare.of(*sample) for sample in samples]
    if any(test.outside for test in tests):
        return 0.0
    alone = min(float(stats.chi2.sf(test.statistic, test.cells - 1)) for test in tests)
    freedom = sum(test.cells - 1 for test in tests)
    return min(float(stats.chi2.sf(sum(test.statistic for test in tests), freedom)), len(tests) * alone)


def power(n: int, bias: float, cells: int = 10, samples: int = 1, alpha: float = ALPHA) -> float:
    """Return the power of the added statistics against a bias (TV) of each, spread evenly over equal cells: the hardest case."""
    freedom = samples * (cells - 1)
    effect = samples * n * cells * (2 * bias / cells) ** 2 / (1 / cells)
    return float(stats.ncx2.sf(stats.chi2.isf(alpha, freedom), freedom, effect))


def z(values: np.ndarray, mean: float) -> float:
    """Return the distance of the mean of ``values`` from ``mean``, in standard errors."""
    return float((values.mean() - mean) / (values.std() / math.sqrt(len(values))))


def deviation(values: Iterable[float]) -> float:
    """Return the largest of several z, or their sum in its own standard deviations: that of a bias that all share."""
    found = np.array(list(values))
    return float(max(np.abs(found).max(), abs(found.sum()) / math.sqrt(len(found))))
