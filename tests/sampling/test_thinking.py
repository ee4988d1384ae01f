"""Thoughts before answers, and formats with special tokens, against their laws by enumeration in plain Python."""

import math
import pickle
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest
from outlines.types import CFG, JsonSchema, either, optional, regex

from outlines_phi import (
    SMC,
    AutoPhi,
    BannedPhrases,
    BudgetError,
    Draws,
    Effort,
    EmptyLanguageError,
    ExactPhi,
    FieldsPhi,
    Generator,
    Guarantee,
    LearnedPhi,
    LocalPhi,
    Special,
    TextConstraint,
    Thinking,
    Vocabulary,
    from_language_model,
)
from outlines_phi.guides import Guide, Table
from outlines_phi.testing import assert_guide
from outlines_phi_workbench.suite.reference import enumerate_language
from tests.inner import PhiGenerator, Request, TableModel, banned, frequencies, noise_floor, total_variation
from tests.languages import (
    ALPHA,
    SPECIAL,
    SPECIAL_VOCABULARY,
    Ids,
    SpecialLanguage,
    correct,
    ids,
    p_value,
    pushed,
    sample,
    unbiased,
    z,
)
from tests.languages import PROMPT as BEFORE
from tests.refusals import refused

PROMPT = (2, 1)


@dataclass(frozen=True)
class Thoughts:
    """Thoughts over a few tokens, before one of some texts; ``end`` is a token, by its id, or a string."""

    name: str
    tokens: tuple[str, ...]
    end: int | str
    max_tokens: int
    answers: tuple[str, ...]
    seed: int
    begin: int | None = None
    answer: Any = field(default=None, compare=False)
    banned: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    scale: float = 1.5
    ahead: Ids = PROMPT
    draws: int = 1_000

    def __str__(self) -> str:
        return self.name

    @cached_property
    def vocabulary(self) -> Vocabulary:
        special = {self.tokens[v]: v for v in (self.end, self.begin) if isinstance(v, int)}
        return Vocabulary.from_tokens(["<eos>", *self.tokens[1:]], 0, special=special)

    @cached_property
    def lm(self) -> TableModel:
        return TableModel.random(self.vocabulary, seed=self.seed, scale=self.scale)

    @cache  # noqa: B019 - a handful of module-level languages
    def generator(self, scope: str, **options: Any) -> PhiGenerator:
        end = self.end if isinstance(self.end, str) else self.tokens[self.end]
        answer = regex("|".join(self.answers)) if self.answer is None else self.answer
        thinking = Thinking(answer, end=end, max_tokens=self.max_tokens, scope=scope)
        ban = [*self.banned] or None
        model = from_language_model(self.lm, lambda text: self.ahead)
        return Generator(model, thinking, banned_phrases=ban, stop=[*self.stops] or None, **options)

    def sample(self, phi: object, n: int, scope: str = "answer", **options: Any) -> Draws:
        return self.generator(scope).sample("", n, phi=phi, **{"seed": 1, **options})

    @cache  # noqa: B019
    def drawn(self, phi: str, scope: str = "answer") -> Draws:
        return self.sample(phi, self.draws, scope)

    def splits(self, ids: Ids) -> tuple[int, str] | None:
        """Return the number of tokens of a finished thought, and what is written of its answer; ``None`` of an unfinished one."""
        if isinstance(self.end, int):
            at = ids.index(self.end) if self.end in ids else None
            return None if at is None else (at + 1, self.text(ids[at + 1 :]))
        written = self.text(ids)
        begin = written.find(self.end)
        if begin < 0:
            return None
        stop = begin + len(self.end)
        return next(n for n in range(len(ids) + 1) if len(self.text(ids[:n])) >= stop), written[stop:]

    def text(self, ids: Ids) -> str:
        return self.vocabulary.decode(ids).decode()

    def marked(self, ids: Ids) -> str:
        """Return the text of some tokens, a special one as a bar."""
        return "".join("|" if token == self.end else self.text((token,)) for token in ids)

    def cut(self, ids: Ids) -> tuple[str | None, str | None] | None:
        """Return the answer before the first stop string, and up to its end; ``None`` where there is none."""
        text = self.marked(ids)
        found = next(
            ((end, one) for end in range(len(text) + 1) for one in self.stops if text[:end].endswith(one)), None
        )
        if found is None:
            return None
        end, one = found
        _, mark, answer = text[:end].partition("|" if isinstance(self.end, int) else self.end)
        return answer.removesuffix(one) if len(one) <= len(answer) else None, answer if mark else None

    def stopped(self, ids: Ids) -> bool | None:
        """Return True if the last token ends a member with the first stop string, False if the string stands elsewhere; ``None``
        where there is none.
        """
        if (found := self.cut(ids)) is None:
            return None
        before, answer = found
        return answer is not None and not {*found}.isdisjoint(self.answers) and self.possible(ids, answer)

    def value(self, member: Ids) -> str:
        """Return the answer in a member: before a stop string where that is one."""
        found = self.cut(member) or self.splits(member[member[0] == self.begin : -1])
        assert found is not None
        return next(text for text in found if text in self.answers)

    def possible(self, ids: Ids, known: str | None = None) -> bool:
        """Return False where a text cannot be the beginning of a member; it may return True of some others. The answer of one
        that a stop string ends is ``known``.
        """
        if any(phrase in self.marked(ids) for phrase in self.banned):
            return False
        opened = 0 if self.begin is None or self.begin in self.ahead else 1
        if opened and ids[:1] not in ((), (self.begin,)):
            return False
        thought = ids[opened:]
        if self.begin in thought:
            return False
        found = self.splits(thought)
        limit = len(self.text(thought[: self.max_tokens]))
        if found is None:
            if isinstance(self.end, int):
                return len(thought) <= self.max_tokens
            written = self.text(thought)
            return bool(
                [n for n in range(len(self.end)) if written.endswith(self.end[:n]) and len(written) - n <= limit]
            )
        tokens, answer = found
        if self.end in thought[tokens:]:
            return False
        begun = tokens - 1 if isinstance(self.end, int) else self.text(thought).find(self.end)
        return begun <= (self.max_tokens if isinstance(self.end, int) else limit) and any(
            known is not None
            or text.startswith(answer)
            or (answer.startswith(text) and any(stop.startswith(answer[len(text) :]) for stop in self.stops))
            for text in self.answers
        )

    def members(self, ids: Ids = ()) -> Iterator[Ids]:
        """Yield every member, with the end of sequence."""
        opened = 1 if ids and ids[0] == self.begin else 0
        found = self.splits(ids[opened:])
        if found is not None and found[1] in self.answers:
            yield (*ids, 0)
        for token in range(1, len(self.tokens)):
            stopped = self.stopped((*ids, token))
            if stopped:
                yield (*ids, token)
            elif stopped is None and self.possible((*ids, token)):
                yield from self.members((*ids, token))

    @cache  # noqa: B019
    def p(self, ids: Ids) -> np.ndarray:
        logits = np.asarray(self.lm.next_logits((*self.ahead, *ids)))
        return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()

    def thought(self, member: Ids) -> Ids:
        opened = 1 if member[0] == self.begin else 0
        found = self.splits(member[opened:])
        assert found is not None
        return member[: opened + found[0]]

    @cached_property
    def joint(self) -> dict[Ids, float]:
        """``p`` of every member."""
        return {y: math.prod(self.p(y[:i])[y[i]] for i in range(len(y))) for y in self.members()}

    @cached_property
    def free(self) -> dict[Ids, tuple[float, float]]:
        """``q`` and ``p / q`` of every thought: the distribution of masking, and its weight."""
        live = defaultdict[Ids, set[int]](set)
        for y in self.joint:
            for i, token in enumerate(y):
                live[y[:i]].add(token)
        found = {}
        for x in {self.thought(y) for y in self.joint}:
            masses = [self.p(x[:i])[list(live[x[:i]])].sum() for i in range(len(x))]
            found[x] = math.prod(self.p(x[:i])[x[i]] / s for i, s in enumerate(masses)), math.prod(masses)
        return found

    @cached_property
    def law(self) -> dict[Ids, float]:
        """The law of ``scope="answer"``: a free thought, and the conditioned answer after it."""
        after = pushed(self.joint, self.thought)
        return {y: self.free[self.thought(y)][0] * p / after[self.thought(y)] for y, p in self.joint.items()}

    @property
    def conditioned(self) -> dict[Ids, float]:
        """``mu*``: the law of ``scope="joint"``."""
        return {y: p / sum(self.joint.values()) for y, p in self.joint.items()}


LETTERS = ("", "a", "b", "ab", "</t>")
CROSSING = ("", "a", "b", "c", "cb", "ab", "ca", "bab", "cab")
LANGUAGES = (
    Thoughts("special token", LETTERS, 4, 2, ("a", "ab", "bab"), seed=1, draws=4_000),
    Thoughts("no thought", LETTERS, 4, 0, ("a", "ab", "bab"), seed=2),
    Thoughts("string", CROSSING, "ab", 2, ("a", "bb", "bab", "cc"), seed=3, draws=4_000),
    Thoughts("string that begins in itself", ("", "a", "b", "aa", "ba", "aab", "baa"), "aab", 2, ("a", "ba", "ab"), seed=4),
    Thoughts("opened by the text", ("", "a", "b", "<t>", "</t>"), 4, 2, ("a", "ba"), seed=5, begin=3),
    Thoughts("opened by the prompt", ("", "a", "b", "<t>", "</t>"), 4, 2, ("a", "ba"), seed=6, begin=3, ahead=(1, 3)),
    Thoughts("without phrases", LETTERS, 4, 2, ("a", "ab", "aab"), seed=7, banned=("aa",), ahead=(1, 2)),
    Thoughts("string without phrases", CROSSING, "ab", 2, ("a", "bb", "bab", "cc"), seed=8, banned=("cb", "bc")),
    Thoughts("stopped", LETTERS, 4, 2, ("a", "ab", "bab"), seed=10, stops=("bb", "aab"), draws=4_000),
    Thoughts("string, stopped", (*CROSSING, "abc"), "ab", 2, ("a", "bb", "c", "bab"), seed=11, stops=("cb", "bc")),
    Thoughts("grammar", LETTERS, 4, 1, ("ab", "aabb"), seed=9, answer=CFG('start: A B | A A B B\nA: "a"\nB: "b"')),
)  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.parametrize("language", LANGUAGES, ids=str)
def test_answers_have_their_law_given_free_thoughts_and_masked_ones_have_not(language: Thoughts) -> None:
    draws = language.drawn("exact")
    assert p_value(ids(draws), language.law) > ALPHA
    assert total_variation(frequencies(ids(draws)), language.law) < 3 * noise_floor(language.law, language.draws)
    assert p_value(ids(language.drawn("local")), language.law) < ALPHA
    for draw in draws:
        assert draw.thought is not None
        assert draw.thought.token_ids == language.thought(draw.token_ids) and draw.text == draw.value
        assert draw.text in language.answers and draw.guarantee is Guarantee.FIELDWISE
        assert draw.thought.answer is Guarantee.EXACT
        _, weight = language.free[draw.thought.token_ids]
        assert math.isclose(draw.thought.log_w, math.log(weight), rel_tol=1e-6, abs_tol=1e-6)
        assert math.isclose(math.exp(draw.log_p), language.joint[draw.token_ids], rel_tol=1e-6)


@pytest.mark.parametrize("language", LANGUAGES, ids=str)
def test_the_joint_scope_is_the_conditioned_law_and_masking_is_not(language: Thoughts) -> None:
    draws = language.drawn("exact", "joint")
    assert p_value(ids(draws), language.conditioned) > ALPHA
    assert total_variation(frequencies(ids(draws)), language.conditioned) < 3 * noise_floor(
        language.conditioned, language.draws
    )
    masked = language.drawn("local", "joint")
    assert p_value(ids(masked), language.conditioned) < ALPHA and correct(masked, language.conditioned)
    assert {draw.guarantee for draw in draws} == {Guarantee.EXACT}
    for draw in draws:
        assert draw.thought is not None and draw.text in language.answers
        assert draw.thought.text == language.text(draw.thought.token_ids).split(str(language.end))[0]


@pytest.mark.parametrize("language", LANGUAGES, ids=str)
def test_weights_are_unbiased(language: Thoughts) -> None:
    assert unbiased(language.drawn("exact"), sum(q * w for q, w in language.free.values()))
    masked = language.drawn("local")
    assert unbiased(masked, sum(language.joint.values())) and correct(masked, language.conditioned)


CARRIED = Thoughts("answers begun by the marker", ("", "a", "b", "ab"), "ba", 1, ("a", "bbbb"), seed=3, ahead=(1, 1))


@pytest.mark.parametrize("language", [*LANGUAGES, CARRIED], ids=str)
def test_the_least_budget_has_room_for_the_shortest_answer_behind_each_thought(language: Thoughts) -> None:
    lengths = [[len(y) for y in language.joint if language.thought(y) == thought] for thought in language.free]
    error = refused("is too small", language.sample, "exact", 1, max_new_tokens=1, error=EmptyLanguageError).value
    # Distances of a grammar are upper bounds.
    assert error.least_budget - max(map(min, filter(None, lengths))) in ((0, 1) if language.answer else (0,))


POLICIES: dict[str, tuple[object, dict[str, Any]]] = {
    "auto": (AutoPhi(), {}),
    "candidates": (AutoPhi(share=0), {}),
    "fields": (FieldsPhi(), {}),
    "fields, weights": (FieldsPhi(weights=True), {}),
    "learned": (LearnedPhi(), {}),
    "particles": ("local", {"sampler": SMC(particles=8)}),
    "certified": (ExactPhi(tolerance=0.01), {}),
    "drafted": ("exact", {"draft": ["prompt_lookup", "forced"]}),
    "no drafts": ("exact", {"draft": []}),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_draws_the_answers(policy: str) -> None:
    language, (phi, options) = LANGUAGES[2], POLICIES[policy]
    draws = language.sample(phi, 500, **options)
    thoughts = [draw.thought.token_ids for draw in draws if draw.thought is not None]
    assert p_value(thoughts, {x: q for x, (q, _) in language.free.items()}) > ALPHA
    if draws.guarantee is Guarantee.WEIGHTED:
        assert correct(draws, language.conditioned) and unbiased(draws, sum(language.joint.values()))
    elif policy == "candidates":
        assert draws.guarantee is Guarantee.APPROXIMATE
        assert total_variation(frequencies(ids(draws)), language.law) < 0.1
    else:
        assert draws.guarantee is Guarantee.FIELDWISE and p_value(ids(draws), language.law) > ALPHA


@pytest.mark.parametrize("language", LANGUAGES, ids=str)
def test_guides_keep_their_promises_and_pickle(language: Thoughts) -> None:
    guide: Guide = language.generator("joint").table.guide
    assert_guide(guide, limit=60, shortest=False)
    again = pickle.loads(pickle.dumps(guide))
    for member in list(language.joint)[:50]:
        for one in (guide, again):
            state = one.start_after(guide.vocabulary.decode(language.ahead))
            for token in member:
                state = one.advance(state, token)
            assert state == 1  # DONE
    assert set(language.joint) == set(_members(guide, guide.start_after(guide.vocabulary.decode(language.ahead))))


def _members(guide: Guide, state: int, ids: Ids = ()) -> Iterator[Ids]:
    for token in range(len(guide.vocabulary)):
        after = guide.advance(state, token)
        if after == 1:
            yield (*ids, token)
        elif after:
            yield from _members(guide, after, (*ids, token))


@pytest.mark.parametrize("scope", ["answer", "joint"])
def test_no_answer_is_outside_of_its_type_and_no_thought_over_its_limit(scope: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, "b"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    model = from_language_model(TableModel.random(SPECIAL_VOCABULARY, seed=11, order=1, scale=4.0), lambda text: PROMPT)
    generator = Generator(model, Thinking(JsonSchema(schema), end="</t>", max_tokens=3, scope=scope), phi="local")
    draws = generator.sample("", 2_000, seed=1)
    for draw in draws:
        assert draw.thought is not None and len(draw.thought.token_ids) <= 4
        assert draw.thought.forced == (len(draw.thought.token_ids) == 4) and draw.value in ({"a": 1}, {"a": "b"})
    assert any(draw.thought.forced for draw in draws) and not all(draw.thought.forced for draw in draws)


@pytest.mark.parametrize("phi", ["exact", "auto", "local"])
def test_the_tokens_are_those_of_two_calls(phi: str) -> None:
    """One call for the thoughts, and one for the answers, each after its thought."""
    model = from_language_model(LANGUAGES[0].lm, lambda text: tuple(map(int, text.split())), phi=phi)
    draws = Generator(model, Thinking(regex("a|ab|bab"), end="</t>", max_tokens=2)).sample("2 1", 200, seed=1)
    free = Generator(model, regex("(a|b)*") + Special("</t>"), phi="local")
    first = free.sample("2 1", 200, seed=1, max_new_tokens=4).counts
    prompts = [" ".join(map(str, (2, 1, *draw.thought.token_ids))) for draw in draws if draw.thought is not None]
    second = Generator(model, regex("a|ab|bab")).sample_batch(prompts, seed=list(range(200)))[0].counts
    assert draws.counts.tokens <= 1.1 * (first.tokens + second.tokens)
    assert draws.counts.prompt_tokens <= 1.1 * (first.prompt_tokens + second.prompt_tokens)


def test_a_draw_does_not_depend_on_the_others() -> None:
    generator = LANGUAGES[2].generator("answer")
    many = ids(generator.sample("", 5, phi="exact", seed=3))
    assert ids(generator.sample("", 3, phi="exact", seed=3)) == many[:3]
    batch = generator.sample_batch(["", ""], 5, phi="exact", seed=3)
    assert ids(batch[0]) == many and ids(batch[1]) != many


@pytest.mark.parametrize("language", LANGUAGES, ids=str)
def test_probabilities_of_the_joint_scope_are_those_of_the_answers(language: Thoughts) -> None:
    expected = pushed(language.conditioned, language.value)
    found = language.generator("joint").probabilities("", tolerance=0)
    assert {each.value: each.p for each in found.entries} == pytest.approx(expected, abs=1e-9)
    for each in language.generator("joint").probabilities("", tolerance=0.2).entries:
        assert each.lo - 1e-9 <= expected[each.value] <= each.hi + 1e-9
    refused("Give Thinking", language.generator("answer").probabilities, "")


def test_accounts_go_through_the_thought_and_its_answer() -> None:
    for draw in LANGUAGES[2].sample("exact", 20, tokens=True, top=2):
        assert [account.id for account in draw.tokens] == list(draw.token_ids)
        assert math.isclose(sum(account.log_p for account in draw.tokens), draw.log_p, rel_tol=1e-6)


def test_an_effort_that_runs_out_hands_over_what_there_is() -> None:
    phi = ExactPhi(effort=Effort(attempts=1, tokens=1), width=1)
    caught = refused(
        "Prompt 0", Thoughts("rare", LETTERS, 4, 2, ("bababab",), seed=1, scale=2.5).sample, phi, 50, error=BudgetError
    )
    (draws,) = caught.value.draws
    assert 0 <= len(draws) < 50 and all(draw.thought is not None for draw in draws)


def test_what_means_nothing_is_refused() -> None:
    language = LANGUAGES[0]
    for wrong in ({"end": ""}, {"max_tokens": -1}, {"scope": "both"}, {"begin": 3}, {"end": 3}, {"end": "\ud800"}):
        refused("Thinking", Thinking, regex("a"), **wrong)  # type: ignore[arg-type]
    for nothing in (None, Thinking(regex("a"))):
        refused("Give the output type of the answer", Thinking, nothing)
    for inside in (
        regex("a") + Thinking(regex("a")),
        either("a", Thinking(regex("a"))),
        optional(Thinking(regex("a"))),
    ):
        refused(r"^Give Thinking\(T\) alone", Generator, from_language_model(language.lm, lambda text: PROMPT), inside)
    refused("Give max_new_tokens=5 or more", language.sample, "exact", 1, max_new_tokens=4, error=EmptyLanguageError)
    refused(
        "Write the rule into the type of the answer",
        language.sample,
        "exact",
        1,
        constraint=TextConstraint(lambda text: True),
    )
    closed = Generator(
        from_language_model(language.lm, lambda text: (1, 4)), Thinking(regex("a"), end="</t>", max_tokens=1)
    )
    refused("The prompt ends a thought already", closed.sample, "", phi="exact")


def test_constraints_see_the_whole_of_a_joint_text() -> None:
    draws = LANGUAGES[0].sample("exact", 50, "joint", constraint=TextConstraint(lambda text: "b" not in text[:1]))
    assert len(draws) == 50 and not any(draw.thought.text.startswith("b") for draw in draws if draw.thought)


DRAWS = 4_000
THINK = SPECIAL_VOCABULARY.special["</t>"]
"""The token before it writes its name."""


@pytest.mark.parametrize("language", SPECIAL, ids=str)
def test_exact_draws_have_the_conditioned_law_and_masked_ones_have_not(language: SpecialLanguage) -> None:
    reference = language.reference()
    drawn = ids(*sample(ExactPhi(), language.request(DRAWS, seed=1)))
    assert p_value(drawn, reference.mu) > ALPHA
    assert total_variation(frequencies(drawn), reference.mu) < 3 * noise_floor(reference.mu, DRAWS)
    assert any(THINK in one for one in drawn) and not any(THINK - 1 in one for one in reference.mu)
    masked = ids(*sample(LocalPhi(), language.request(DRAWS, seed=1)))
    assert p_value(masked, reference.mask) > ALPHA and p_value(masked, reference.mu) < ALPHA


@pytest.mark.parametrize("language", SPECIAL, ids=str)
def test_weights_beside_special_tokens_are_unbiased(language: SpecialLanguage) -> None:
    reference = language.reference()
    (draws,) = sample(LocalPhi(), language.request(DRAWS, seed=2))
    assert abs(z(np.exp(draws.log_w), math.exp(reference.log_phi))) < 4 and correct(draws, reference.mu)


@pytest.mark.parametrize("language", SPECIAL, ids=str)
def test_probabilities_are_those_of_what_texts_show(language: SpecialLanguage) -> None:
    expected = pushed(language.reference().mu, lambda tokens: language.table.guide.text(tokens).decode())
    model = from_language_model(language.lm, lambda text: BEFORE)
    found = Generator(model, language.term).probabilities("", max_new_tokens=language.budget)
    assert all(entry.lo - 1e-9 <= expected[entry.text] <= entry.hi + 1e-9 for entry in found.entries)
    assert math.isclose(sum(entry.p for entry in found.entries), 1)


def test_a_ban_does_not_reach_across_a_special_token() -> None:
    language = SPECIAL[0]
    guide = banned(language.table.guide, BannedPhrases(["ba", "aa"], across_prompt=False))
    reference = enumerate_language(language.lm, Table(guide), BEFORE, language.settings(), language.budget)
    texts = {guide.text(tokens) for tokens in reference.mu}
    assert b"ba" in texts and not any(b"ba" in text[:-1] or b"aa" in text[:-1] for text in texts)
    request = Request(lm=language.lm, table=Table(guide), prompts=[BEFORE], settings=language.settings(5), n=DRAWS)
    assert p_value(ids(*sample(ExactPhi(), request)), reference.mu) > ALPHA
