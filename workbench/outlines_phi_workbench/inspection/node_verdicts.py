"""The verdicts of the checks of a grammar's masks, and how often each node of the graph was met by them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.guide import Guide
from outlines_phi.guides.json_schema.json_guide import JSONGuide

from ..verification.subject import Subject
from ..verification.verification import Check, verify
from .machines.byte_names import text_name
from .machines.reading_machine import Fault, ReadingMachine

MOST = 20_000  # Pairs of states that are looked at most

KINDS = {
    "S1": "terminal",
    "S2": "lexer",
    "S3": "rule",
    "S4": "lexer",
    "S6": "lexer",
    "T1": "lexer",
    "T2": "lexer",
    "T3": "rule",
    "T4": "lexer",
    "T5": "rule",
    "T6": "rule",
    "T7": "rule",
}
"""The kind of parts that a check is about; the others are about the whole machine."""


@final
@dataclass(frozen=True)
class NodeWitness:
    """A counterexample: the tokens before it, with their text, the token at fault, and the node before it."""

    law: str
    before: tuple[int, ...]
    text: str
    token: int
    token_text: str
    remark: str
    node: tuple[str, str] | None


@final
@dataclass(frozen=True)
class Verdicts:
    """All verdicts, what was looked at, and by node how many of the pairs of states that were tried stand there.

    ``checks`` are those of :meth:`Verification.as_dict`, and ``about`` the kind of parts that each is about.
    """

    checks: tuple[dict[str, Any], ...]
    reach: str
    met: dict[str, int]
    witnesses: tuple[NodeWitness, ...]


def subject_of(guide: Guide, pattern: str | None, **options: Any) -> Subject | None:
    """Return the subject that verifies a guide; ``None`` where there is no independent definition of it.

    ``pattern`` is the regular expression of a guide that is made of one.
    """
    match guide:
        case CFGGuide():
            return Subject.of_grammar(guide.grammar, guide.vocabulary, **options)
        case JSONGuide():
            return Subject.of_json(guide, **options)
    return None if pattern is None else Subject.of_pattern(pattern, guide.vocabulary, **options)


def verdicts_of(machine: ReadingMachine, subject: Subject, tell: Callable[[Check], None] | None = None) -> Verdicts:
    """Run the checks of ``subject``, and see which nodes of ``machine`` the pairs of states that were tried stand at."""
    found = verify(subject, tell)
    exploration, vocabulary = subject.exploration, subject.guide.vocabulary
    met: Counter[str] = Counter()
    for pair in exploration.inner:
        met.update(node for _, node in _nodes(machine, subject, pair.word))
    witnesses = [
        NodeWitness(
            law,
            tally.witness[:-1],
            text_name(vocabulary.decode(tally.witness[:-1])),
            tally.witness[-1],
            text_name(vocabulary.tokens[tally.witness[-1]]) or "<end>",
            tally.remark,
            next(iter(_nodes(machine, subject, tally.witness[:-1])), None),
        )
        for law, tally in exploration.laws.items()
        if tally.witness
    ]
    checks = tuple({**check, "about": KINDS.get(check["id"], "machine")} for check in found.as_dict()["checks"])
    reach = "all words" if exploration.closed else f"all words of at most {exploration.complete} tokens"
    return Verdicts(checks, f"{reach}: {len(exploration.nodes):,} pairs of states", dict(met), tuple(witnesses))


def _nodes(machine: ReadingMachine, subject: Subject, word: Sequence[int]) -> tuple[tuple[str, str], ...]:
    """Return the nodes that a word of tokens leads to."""
    place, _ = machine.read_all(machine.start, subject.guide.vocabulary.decode(word))
    return () if isinstance(place, Fault) else machine.spot(place).nodes
