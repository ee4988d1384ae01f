"""A guide against the oracle of its language: assumptions S5, S7 and S8, theorems T9 to T16 of grammar-theory.md."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outlines_phi.errors import VocabularyError
from outlines_phi.guides.guide import DEAD, DONE, Guide
from outlines_phi.vocabulary.classes import EOS
from outlines_phi.vocabulary.vocabulary import Vocabulary

from .exploration import Pair
from .runs import FAILED, Alike, Runs
from .subject import CheckFinding, Subject, check, shown

SPELLED = 20_000  # After how many pairs of states tokens are written once more in single bytes


@check("S5", "every byte is a token")
def bytes_are_tokens(subject: Subject) -> CheckFinding:
    """Each byte that a text may hold is a token by itself, so any text can be completed byte by byte."""
    tokens = set(subject.guide.vocabulary.tokens)
    missing = next((byte for byte in sorted(subject.used) if bytes([byte]) not in tokens), None)
    witness = None if missing is None else f"{shown(bytes([missing]))} is no token"
    return CheckFinding.assumption(
        len(subject.used), witness, "" if witness is None else "texts are completed by whole tokens"
    )


@check("S7", "ids decode as their bytes")
def bytes_are_exact(subject: Subject) -> CheckFinding:
    """The tokenizer writes ids as the bytes that they are taken for, one after the other."""
    if subject.tokenizer is None:
        return CheckFinding.assumption(0, "no tokenizer", "the tokens were given as bytes")
    try:
        vocabulary = Vocabulary.from_tokenizer(subject.tokenizer, size=len(subject.guide.vocabulary))
    except VocabularyError as error:
        return CheckFinding.bounded(8, 256, str(error))
    same = vocabulary.tokens == subject.guide.vocabulary.tokens
    return CheckFinding.bounded(8, 256, None if same else "its vocabulary is another one", "random ids")


@check("S8", "few tokens stand for all")
def collapse_is_lossless(subject: Subject) -> CheckFinding:
    """Tokens that are taken as alike do the same everywhere, so it is enough to try one of each kind."""
    exploration, vocabulary, collapse = subject.exploration, subject.guide.vocabulary, subject.collapse
    found = _explored(subject, "stands for")
    if found.witness is not None:
        return found
    stood_for = np.flatnonzero(collapse.stands_for >= 0)
    representative = collapse.tokens[collapse.stands_for[stood_for]]
    left_out = np.flatnonzero((collapse.stands_for < 0) & (np.fromiter(map(len, vocabulary.tokens), np.int64) > 0))
    runs, cases = subject.oracle.runs(vocabulary.tokens), found.cases
    alike = Alike(subject.oracle.step, subject.oracle.end)
    nodes = {subject.oracle.reading(node.point): node for node in reversed(exploration.inner)}
    for reading, node in nodes.items():
        cases += len(stood_for) + len(left_out)
        target, word = runs.of(reading)
        same = word[stood_for] == word[representative]
        differs = np.flatnonzero(target[stood_for] != target[representative])
        pairs, which = np.unique(
            np.stack([target[stood_for], target[representative]])[:, differs], axis=1, return_inverse=True
        )
        same[differs] &= np.array([FAILED not in pair and alike.are(*pair) for pair in pairs.T.tolist()], dtype=bool)[
            which.reshape(-1)
        ]
        readable = left_out[target[left_out] != FAILED]
        wrong = [*stood_for[~same].tolist(), *_continuing(subject, reading, readable)]
        if wrong:
            return subject.bounded(cases, (*node.word, wrong[0]), "is not what stands for it")
    return subject.covered(cases, f"{len(nodes):,} states of the oracle's lexer, all tokens")


def _continuing(subject: Subject, reading: int, tokens: NDArray[np.int64]) -> list[int]:
    """Return those of ``tokens`` that begin a member at some node with this reading."""
    oracle, texts = subject.oracle, tuple(subject.guide.vocabulary.tokens[token] for token in tokens.tolist())
    found: list[int] = []
    for node in subject.exploration.inner if texts else ():
        if oracle.reading(node.point) == reading:
            outcomes = oracle.outcomes(node.point, texts)
            found += tokens[outcomes.continues[outcomes.of_text]].tolist()
    return found


@check("T9", "what is allowed survives")
def allowed_survives(subject: Subject) -> CheckFinding:
    """Nothing that is allowed has a terminal out of place."""
    return _explored(subject, "survives")


@check("T10", "what is allowed begins a member")
def sound(subject: Subject) -> CheckFinding:
    """Nothing too much is allowed: all that is allowed can be completed to a member of the language."""
    return _explored(subject, "sound", "live")


@check("T11", "what begins a member is allowed")
def complete(subject: Subject) -> CheckFinding:
    """Nothing too little is allowed: all that begins a member is allowed."""
    return _explored(subject, "complete")


@check("T12", "members, and no others, may end")
def ends_are_exact(subject: Subject) -> CheckFinding:
    """A text may end where it is a member, and nowhere else."""
    return _explored(subject, "end complete", "end sound")


@check("T13", "accepted words are the members")
def language_is_exact(subject: Subject) -> CheckFinding:
    """The words of tokens that are accepted to their end are those that write members."""
    return _explored(subject, "end complete", "end sound", "complete")


@check("T14", "allowed words are their beginnings")
def prefixes_are_exact(subject: Subject) -> CheckFinding:
    """The words of tokens that are allowed so far are those that write beginnings of members."""
    return _explored(subject, "sound", "complete", "one relation")


@check("T16", "members within the promised length")
def productive(subject: Subject) -> CheckFinding:
    """From all that is allowed, a member is written within as many tokens as is promised (with --schema: one that is
    valid). Some token lowers that number, none that counts lowers it by more than one, and tokens are ranked by it.
    """
    laws = "productive", "member", "lowers", "fewest", "ranked"
    exploration, found = subject.exploration, _explored(subject, *laws)
    if found.witness is not None:
        return found
    for word in exploration.endings if subject.fault is not None else ():
        if subject.fault is not None and (fault := subject.fault(subject.guide.vocabulary.decode(word))):
            return CheckFinding.bounded(exploration.followed, found.cases, subject.written(word), fault)
    if len(exploration.endings) == len(exploration.nodes):
        return found
    return CheckFinding.bounded(
        exploration.followed, found.cases, None, f"from the {len(exploration.endings):,} first pairs of states"
    )


@check("T15", "masks depend on the text alone")
def independent_of_the_cut(subject: Subject) -> CheckFinding:
    """The masks after a text do not depend on the tokens that wrote it: each token leads where its bytes lead, one by one."""
    exploration, spellings, cases = subject.exploration, _BytewiseSteps(subject), 0
    nodes = exploration.inner[:: -(-len(exploration.inner) // SPELLED) or 1]
    for node in nodes:
        cases += len(spellings.tokens)
        if (token := spellings.betrayed_after(node)) is not None:
            text = subject.guide.vocabulary.tokens[token]
            return subject.bounded(cases, (*node.word, token), f"and {shown(text)} byte by byte")
    remarks = [f"after {len(nodes):,} of {len(exploration.inner):,} pairs of states"] * (
        len(nodes) < len(exploration.inner)
    )
    if len(spellings.tokens) < len(subject.collapse.tokens):
        remarks.append(f"{len(spellings.tokens):,} of {len(subject.collapse.tokens):,} tokens, whose bytes are tokens")
    return subject.bounded(cases, None, "; ".join(remarks)) if remarks else subject.covered(cases)


class _BytewiseSteps:
    """Tokens beside their bytes. By induction on a text, what holds of single tokens holds of all ways to write it."""

    def __init__(self, subject: Subject) -> None:
        self._guide, self._collapse, self._closed = subject.guide, subject.collapse, subject.exploration.closed
        tokens = subject.guide.vocabulary.tokens
        self._single = {token[0]: v for v, token in reversed(list(enumerate(tokens))) if len(token) == 1}
        spelled = [self._single.keys() >= set(text) for text in subject.collapse.texts]
        self.tokens = subject.collapse.tokens[spelled]
        self._states: list[int] = []
        self._number: dict[int, int] = {}
        self._runs = Runs([tokens[v] for v in self.tokens.tolist()], self._step)
        self._alike = Alike(self._step, self._ends)

    def betrayed_after(self, node: Pair) -> int | None:
        """Return a token that leads elsewhere than its bytes; ``None`` if all lead to the same states, or such as do the same."""
        row = self._guide.row(node.state)
        targets = row.targets[row.partition.class_of[self.tokens]]
        numbers = self._runs.of(self._numbered(node.state)).target
        reached = np.append(np.array(self._states, dtype=np.int64), DEAD)[numbers]  # FAILED is the last
        for target, other in dict.fromkeys(zip(targets.tolist(), reached.tolist(), strict=True)):
            if target != other and not self._same(target, other):
                return int(self.tokens[((targets == target) & (reached == other)).argmax()])
        return None

    def _same(self, target: int, other: int) -> bool:
        """Return True if two states are equivalent; where not all pairs were explored, if they have the same mask."""
        if DEAD in (target, other):
            return False
        if self._closed:
            return self._alike.are(self._numbered(target), self._numbered(other))
        tokens = self._collapse.tokens
        return np.array_equal(mask(self._guide, target, tokens), mask(self._guide, other, tokens))

    def _numbered(self, state: int) -> int:
        number = self._number.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
        return number

    def _step(self, number: int, byte: int) -> tuple[int, tuple[int, ...]] | None:
        target = self._guide.advance(self._states[number], self._single[byte]) if byte in self._single else DEAD
        return None if target == DEAD else (self._numbered(target), ())

    def _ends(self, number: int) -> bool:
        return self._guide.advance(self._states[number], self._guide.vocabulary.eos_ids[0]) == DONE


def mask(guide: Guide, state: int, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return ``bool[R + 1]``: which of ``tokens`` are allowed, and whether the end is."""
    row = guide.row(state)
    return np.append(row.targets[row.partition.class_of[tokens]] != DEAD, row.targets[EOS] == DONE)


def _explored(subject: Subject, *laws: str) -> CheckFinding:
    tallies = [subject.exploration.tally(law) for law in laws]
    cases = sum(tally.cases for tally in tallies)
    broken = [tally for tally in tallies if tally.witness is not None]
    first = min(broken, key=lambda tally: len(tally.witness or ()), default=None)
    if first is None or first.witness is None:
        return subject.covered(cases)
    return subject.bounded(cases, first.witness, first.remark)
