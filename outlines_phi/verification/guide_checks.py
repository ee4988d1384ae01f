"""A guide against the oracle of its language: assumptions S5, S7 and S8, theorems T9 to T17 of grammar-theory.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..errors import VocabularyError
from ..guides.guide import DEAD, DONE, Guide, Row
from ..vocabulary.classes import EOS, NEVER
from ..vocabulary.vocabulary import Vocabulary
from .exploration import Exploration
from .runs import FAILED, Alike
from .subject import CheckFinding, Subject, check, shown

MUTANT_DEPTH, MUTANT_NODES = 3, 1_000  # How far a wrong guide is followed, and in how many nodes
SPELLINGS = 2_000  # How many tokens are written once more in single bytes


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
    valid).
    """
    exploration, found = subject.exploration, _explored(subject, "productive", "member")
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
    """What may follow a text does not depend on which tokens wrote it."""
    guide, exploration, collapse = subject.guide, subject.exploration, subject.collapse
    single = {token: v for v, token in reversed(list(enumerate(guide.vocabulary.tokens))) if len(token) == 1}
    words = [node.word for node in exploration.inner if any(len(guide.vocabulary.tokens[v]) > 1 for v in node.word)]
    cases = 0
    for word in words[:: -(-len(words) // SPELLINGS) or 1]:
        text = guide.vocabulary.decode(word)
        spelling = [single.get(text[place : place + 1]) for place in range(len(text))]
        if None in spelling:
            continue
        cases += 1
        other = _run(guide, [v for v in spelling if v is not None])
        if not np.array_equal(_mask(guide, _run(guide, word), collapse.tokens), _mask(guide, other, collapse.tokens)):
            return subject.bounded(cases, word, f"and {shown(text)} byte by byte")
    return subject.bounded(cases, None, f"of {len(words):,} words" if cases < len(words) else "")


@check("T17", "wrong guides are found out")
def mistakes_are_found(subject: Subject) -> CheckFinding:
    """Masks that are made wrong on purpose are found out by these checks."""
    caught, harmless, cases = [], [], 0
    for name, mutate in MUTANTS.items():
        mutant = _Mutant(subject.guide, mutate)
        found = Exploration.of(
            mutant, subject.oracle, subject.collapse, depth=min(subject.depth, MUTANT_DEPTH), most=MUTANT_NODES
        )
        cases += 1
        if any(tally.witness is not None for tally in found.laws.values()):
            caught.append(name)
        elif any(node.state in mutant.changed for node in found.inner):
            return CheckFinding.bounded(found.complete, cases, f"a guide that {name} was not found out")
        else:
            harmless.append(name)
    remark = f"found out: one that {', '.join(caught)}"
    return CheckFinding.bounded(
        min(subject.depth, MUTANT_DEPTH),
        cases,
        None,
        remark + (f"; no mistake here: {', '.join(harmless)}" if harmless else ""),
    )


def _explored(subject: Subject, *laws: str) -> CheckFinding:
    tallies = [subject.exploration.tally(law) for law in laws]
    cases = sum(tally.cases for tally in tallies)
    broken = [tally for tally in tallies if tally.witness is not None]
    first = min(broken, key=lambda tally: len(tally.witness or ()), default=None)
    if first is None or first.witness is None:
        return subject.covered(cases)
    return subject.bounded(cases, first.witness, first.remark)


def _run(guide: Guide, word: tuple[int, ...] | list[int]) -> int:
    state = guide.start
    for token in word:
        state = guide.advance(state, token)
    return state


def _mask(guide: Guide, state: int, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    row = guide.row(state)
    return np.append(row.targets[row.partition.class_of[tokens]] != DEAD, row.targets[EOS] == DONE)


@final
@dataclass
class _Mutant(Guide):
    """A guide with other rows; ``changed`` holds the states where they really are others."""

    guide: Guide
    mutate: Callable[[Guide, int, NDArray[np.integer]], None]
    changed: set[int] = field(default_factory=set)
    _rows: dict[int, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.vocabulary, self.start = self.guide.vocabulary, self.guide.start

    def row(self, state: int) -> Row:
        if state not in self._rows:
            row = self.guide.row(state)
            targets = row.targets.copy()
            self.mutate(self.guide, state, targets)
            # A class may have no member.
            differs = (targets != row.targets)[row.partition.class_of] & (row.partition.class_of != NEVER)
            if differs.any():
                self.changed.add(state)
            self._rows[state] = Row(row.partition, targets)
        return self._rows[state]

    def min_tokens(self, state: int) -> int:
        return self.guide.min_tokens(state)

    def describe(self, state: int) -> str:
        return self.guide.describe(state)


def _ends_anywhere(guide: Guide, state: int, targets: NDArray[np.integer]) -> None:
    targets[EOS] = DONE


def _never_ends_after_a_text(guide: Guide, state: int, targets: NDArray[np.integer]) -> None:
    if state != guide.start:
        targets[EOS] = DEAD


def _forbids_what_is_rare(guide: Guide, state: int, targets: NDArray[np.integer]) -> None:
    live = np.flatnonzero(targets[EOS + 1 :]) + EOS + 1
    targets[live[-1:]] = DEAD


def _allows_everything(guide: Guide, state: int, targets: NDArray[np.integer]) -> None:
    live = targets[EOS + 1 :][targets[EOS + 1 :] != DEAD]
    if len(live):
        targets[EOS + 1 :][targets[EOS + 1 :] == DEAD] = live[0]


def _forbids_what_goes_on(guide: Guide, state: int, targets: NDArray[np.integer]) -> None:
    """Drop what leads farther from the end than one token."""
    far = guide.min_tokens_of(targets) > guide.min_tokens(state)
    targets[far & (targets != DEAD) & (targets != DONE)] = DEAD


MUTANTS: dict[str, Callable[[Guide, int, NDArray[np.integer]], None]] = {
    "ends anywhere": _ends_anywhere,
    "never ends after a text": _never_ends_after_a_text,
    "forbids one class of tokens": _forbids_what_is_rare,
    "allows every class": _allows_everything,
    "forbids what leads away from the end": _forbids_what_goes_on,
}
"""What wrong guides do, and how."""
