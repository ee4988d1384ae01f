"""Special tokens in formats: their spelling, and the ids that references stand for."""

import pytest

from outlines_phi import Vocabulary
from outlines_phi.errors import VocabularyError
from outlines_phi.lm import bundled
from outlines_phi.vocabulary.special_tokens import SPELLING, reference_of, references, spelling
from outlines_phi.vocabulary.vocabulary import BYTES

WORDS = Vocabulary.from_tokens(
    ["<eos>", "a", "b", "</think>", "<think>", "</think>", "<x>", b"\xff", b"a\xff"],
    0,
    special={"</think>": 3, "<think>": 4, "<x>": 6},
)


@pytest.mark.parametrize("name", ["</think>", "<｜tool▁calls▁begin｜>", "[INST]", "<[5]>", "🙂", ""])
def test_spellings_are_no_text_and_tell_the_name(name: str) -> None:
    assert reference_of(spelling(name)) == name and SPELLING.fullmatch(spelling(name))
    with pytest.raises(UnicodeDecodeError):
        spelling(name).decode()


def test_spellings_are_prefix_free() -> None:
    texts = [spelling(name) for name in ["<t>", "<t>>", "<[1]>", "<[12]>", "t", ""]]
    assert not any(one != other and other.startswith(one) for one in texts for other in texts)


def test_references_to_several_ids() -> None:
    assert references("<[7,3-5,5]>") == ["<[3]>", "<[4]>", "<[5]>", "<[7]>"] and references("[INST]") == ["[INST]"]
    for written in ("<[*]>", "<[^3]>", "<[5-3]>", "<[]>", "<[a]>", "<[0-99999]>"):
        with pytest.raises(VocabularyError, match="Name the special tokens"):
            references(written)


def test_the_vocabulary_of_a_format_spells_its_special_tokens_alone() -> None:
    found = WORDS.with_special(["</think>", "<[6]>"])
    assert found.tokens[3] == spelling("</think>") and found.tokens[6] == spelling("<[6]>")
    assert found.tokens[4] == found.tokens[7] == found.tokens[8] == b"" and found.tokens[5] == b"</think>"
    assert found.plain is WORDS and found.with_special([]) is WORDS and found.fingerprint != WORDS.fingerprint
    assert found.with_special(["<think>"]).tokens[3] == b""


def test_texts_show_what_the_decoder_writes() -> None:
    found = WORDS.with_special(["</think>"])
    assert found.decode([1, 3, 5]) == b"a" + spelling("</think>") + b"</think>"
    assert found.shown(found.decode([1, 3, 5, 2])) == b"a</think>b" and WORDS.shown(b"a\xff") == b"a\xff"


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("</thnk>", "Those like it: '</think>'"),
        ("zzz", "It has: '</think>'"),
        ("<[0]>", "ends the text"),
        ("<[1]>", "Write the text b'a'"),
        ("<[99]>", "Give an id"),
    ],
)
def test_what_is_no_special_token_is_refused(reference: str, said: str) -> None:
    with pytest.raises(VocabularyError, match=said):
        WORDS.with_special([reference])


def test_one_token_named_in_two_ways_is_refused() -> None:
    with pytest.raises(VocabularyError, match="in one way"):
        WORDS.with_special(["</think>", "<[3]>"])


def test_names_come_from_the_tokenizer() -> None:
    _, tokenizer = bundled.load()
    tokenizer.add_special_tokens({"additional_special_tokens": ["</think>"]})
    tokenizer.add_tokens(["<tool_call>"])
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    hidden, written = (tokenizer.convert_tokens_to_ids(name) for name in ("</think>", "<tool_call>"))
    assert vocabulary.special["</think>"] == hidden and vocabulary.special["<tool_call>"] == written
    assert vocabulary.tokens[hidden] == b"" and vocabulary.tokens[written] == b"<tool_call>"
    spelled = vocabulary.with_special(["</think>", "<tool_call>"])
    assert spelled.shown(spelled.decode([written, hidden])) == b"<tool_call>"


@pytest.mark.parametrize("special", [{"x": 9}, {"x": -1}, {3: 1}])
def test_wrong_ids_of_names_are_refused(special: dict[str, int]) -> None:
    with pytest.raises(VocabularyError, match="special="):
        Vocabulary.from_tokens(["<eos>", "a"], 0, special=special)


def test_a_client_of_a_server_knows_none() -> None:
    with pytest.raises(VocabularyError, match="client of a server"):
        BYTES.with_special(["</think>"])
