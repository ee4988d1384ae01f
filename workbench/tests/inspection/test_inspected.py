"""Texts token by token, and why tokens are masked: compared with the guide."""

import pytest
from outlines.types import Regex

from outlines_phi import UnsupportedError, Vocabulary
from outlines_phi.guides.guide import DEAD
from outlines_phi.plugin.types.tables import CompiledTypes
from outlines_phi_workbench.inspection.inspected import MOST_TOKENS, Inspected, TextPlace, byte_set, text_name

from .conftest import LANGUAGES, VOCABULARY, encode, inspected

languages = pytest.mark.parametrize("name", LANGUAGES)


def behind(of: Inspected, text: str) -> TextPlace:
    at = of.begin
    for token in encode(text):
        at = of.after(at, token)
    return at


def token(text: str) -> int:
    return VOCABULARY.tokens.index(text.encode())


@languages
def test_a_token_has_a_reason_where_it_is_masked_and_its_byte_is_the_first_at_fault(name: str) -> None:
    """The guide reads the bytes as tokens of one byte each, without the machine that found the reason."""
    of, spelled = inspected(name), VOCABULARY.tokens
    single = {each[0]: number for number, each in enumerate(spelled) if len(each) == 1}
    for at in (of.begin, behind(of, LANGUAGES[name][1])):
        mask, _ = of.live(at)
        found = [of.why_masked(at, number) for number in range(len(mask))]
        assert [each is None for each in found] == mask.tolist()
        for number, refusal in enumerate(found):
            if refusal is not None and refusal.kind == "language":
                state, read = at.state, spelled[number].decode("latin1").encode("latin1")
                offset = next(end for end in range(len(read)) if text_name(read[:end]) == refusal.read)
                for byte in read[:offset]:
                    state = of.guide.advance(state, single[byte])
                    assert state != DEAD
                assert of.guide.advance(state, single[read[offset]]) == DEAD


@languages
def test_a_walk_says_what_the_guide_has(name: str) -> None:
    of, text = inspected(name, budget=30), LANGUAGES[name][1]
    ids = of.tokens_of(encode, text)
    steps = of.walk(ids)
    assert [step.token for step in steps] == [*ids, None] and not any(step.refusal for step in steps)
    state = of.guide.start
    for number, step in enumerate(steps):
        mask, moves = of.live(step.place)
        assert step.place == (state, 30 - number) and step.distance == of.guide.min_tokens(state)
        assert step.live == mask.sum() == sum(group.size for group in step.groups) or step.targets > len(step.groups)
        assert bool(step.why_no_end) != bool(mask[VOCABULARY.eos_ids[0]]) and step.targets == len(set(moves.targets))
        assert sum(group.size for group in step.masked) <= step.looked_at <= 1000
        state = of.guide.advance(state, step.token) if step.token is not None else state
    outside = of.walk([*ids, token("?")])
    assert len(outside) == len(ids) + 1 and "? came" in outside[-1].refusal.because  # type: ignore[union-attr]


def test_bans_limits_and_ends_are_named() -> None:
    of = inspected("arithmetic", "77")
    banned = of.why_masked(behind(of, "1+7"), token("7"))
    assert banned is not None and banned.kind == "language" and "7 came" in banned.because
    short = inspected("arithmetic", budget=4)
    long = short.why_masked(behind(short, "1+"), token("("))
    assert long is not None and long.kind == "budget" and "the limit leaves 1" in long.because
    of, ends = inspected("arithmetic"), VOCABULARY.eos_ids
    end = of.why_masked(behind(of, "1+"), ends[0])
    assert end is not None and end.kind == "end" and of.why_masked(behind(of, "1"), ends[0]) is None
    silent = next(v for v, text in enumerate(VOCABULARY.tokens) if not text and v not in ends)
    found = of.why_masked(of.begin, silent)
    assert found is not None and found.kind == "vocabulary" and of.why_masked(of.begin, token("(")) is None


def test_what_cannot_be_walked_or_asked_is_refused() -> None:
    of = inspected("arithmetic")
    for ask, said in [
        (lambda: of.walk([token("1")] * (MOST_TOKENS + 1)), "Give a text of at most"),
        (lambda: of.tokens_of(lambda _: [5], "1"), "the tokenizer writes as it is"),
        (lambda: of.tokens_of(encode, "1\ud800"), "Give characters of Unicode"),
    ]:
        with pytest.raises(UnsupportedError, match=said):
            ask()


@languages
def test_the_graph_has_the_steps_of_the_guide(name: str) -> None:
    of = inspected(name)
    state = behind(of, LANGUAGES[name][1]).state
    graph = of.graph([state])
    ids = [node["id"] for node in graph["nodes"]]
    assert len(set(ids)) == len(ids) and {f"s{of.guide.start}", f"s{state}"} <= set(ids)
    assert [node["id"] for node in graph["nodes"] if node["start"]] == [f"s{of.guide.start}"]
    read = {(edge["source"], edge["target"]): edge["label"] for edge in graph["edges"]}
    for byte, target in of.moves(state).items():
        assert (
            f"s{target}" not in ids
            or byte_set(b for b, t in of.moves(state).items() if t == target) == read[f"s{state}", f"s{target}"]
        ), byte
    assert graph["whole"] == all(f"s{target}" in ids for each in ids for target in of.moves(int(each[1:])).values())


def test_names_of_bytes_and_a_vocabulary_without_them() -> None:
    assert byte_set(b"0123456789abcz") == "[0-9a-cz]" and byte_set(b" ") == "␣" and byte_set(range(256)) == "any byte"
    assert byte_set(set(range(256)) - {0x22}) == 'all but "' and byte_set([0xC3, 0x0A]) == "[\\n\\xc3]"
    assert byte_set([]) == "no byte"
    assert text_name("é\n \x00".encode()) == "é\\n␣\\x00" and text_name(b"\xff") == "\\xff"
    yes_or_no = CompiledTypes(Vocabulary.from_tokens([b"yes", b"no", b""], 2)).of(Regex("yes|no")).guide
    with pytest.raises(UnsupportedError, match="Give a tokenizer with tokens of single bytes"):
        Inspected("yes or no", yes_or_no).graph()
