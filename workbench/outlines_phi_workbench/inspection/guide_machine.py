"""A guide read byte by byte, by its tokens of one byte: what refuses a byte, and the states as a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple, final

from outlines_phi import UnsupportedError
from outlines_phi.automata.byte_machine import ByteMachine
from outlines_phi.guides import Guide
from outlines_phi.guides.guide import DEAD, DONE

MOST_STATES = 120  # States that are drawn, from the start on, beside those that texts lead to
MOST_SHOWN = 12  # Ranges of a set of bytes that are written out

_NAMED = {0x20: "␣", 0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}


def byte_name(byte: int) -> str:
    """Name a byte: its character in ASCII, else two hexadecimal digits."""
    return _NAMED.get(byte) or (chr(byte) if 0x20 < byte < 0x7F else f"\\x{byte:02x}")


def byte_set(members: Iterable[int]) -> str:
    """Name a set of bytes: one by itself, several as a character class of ranges, ``[0-9a-f]``."""
    ordered = sorted(set(members))
    if len(ordered) in (0, 1, 256):
        return byte_name(ordered[0]) if len(ordered) == 1 else "any byte" if ordered else "no byte"
    if len(ordered) > 128:
        return f"all but {byte_set(set(range(256)).difference(ordered))}"
    runs = [[byte for _, byte in run] for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])]
    names = [byte_name(run[0]) + "-" * (len(run) > 2) + byte_name(run[-1]) * (len(run) > 1) for run in runs]
    return f"[{''.join(names[:MOST_SHOWN])}{'…' if len(names) > MOST_SHOWN else ''}]"


def text_name(text: bytes) -> str:
    """Name a text: UTF-8 as characters, the rest as escapes, blanks so that they can be seen."""

    def shown(character: str) -> str:
        escaped = character if character.isprintable() else character.encode("unicode_escape").decode()
        return _NAMED.get(ord(character), escaped)

    return "".join(map(shown, text.decode(errors="backslashreplace")))


class Fault(NamedTuple):
    """The reason that no member of the language goes on with a byte, or ends.

    ``kind`` is what refuses: ``language``, ``end``, ``budget`` or ``vocabulary``; ``what`` the state.
    """

    kind: str
    what: str
    because: str  # a sentence


@final
class GuideMachine(ByteMachine[int]):
    """A guide over the tokens of single bytes (grammar-theory.md, section 7: they lead where longer tokens do).

    Raises :class:`UnsupportedError` where the vocabulary has no tokens of single bytes.
    """

    def __init__(self, guide: Guide) -> None:
        self.guide, self.start = guide, guide.start
        self._token = {token[0]: number for number, token in enumerate(guide.vocabulary.tokens) if len(token) == 1}
        self._steps: dict[int, dict[int, int]] = {}
        if not self._token:
            raise UnsupportedError(
                "Give a tokenizer with tokens of single bytes, as all of byte-level BPE have. This vocabulary has none, and what "
                f"a {type(guide).__name__} refuses is found byte by byte."
            )

    def moves(self, state: int) -> dict[int, int]:
        """Return the state after each byte that ``state`` goes on with."""
        if state not in self._steps:
            found = {byte: self.guide.advance(state, token) for byte, token in self._token.items()}
            self._steps[state] = {byte: target for byte, target in found.items() if target != DEAD}
        return self._steps[state]

    def step(self, state: int, byte: int) -> int | None:
        return self.moves(state).get(byte)

    def ends(self, state: int) -> bool:
        return self.guide.advance(state, self.guide.vocabulary.eos_ids[0]) == DONE

    def describe(self, state: int) -> str:
        return f"{self.guide.describe(state)[:300]}; {byte_set(self.moves(state))} may follow"

    def fault(self, state: int, text: bytes) -> tuple[Fault, int] | None:
        """Return the fault at the first byte after which no member is left, with its offset; ``None`` where all are read."""
        for offset, byte in enumerate(text):
            name, after = byte_name(byte), self.step(state, byte)
            if byte not in self._token:
                because = f"No token writes {name} alone, so it is not told what refuses."
                return Fault("vocabulary", name, because), offset
            if after is None:
                return Fault("language", f"state {state}", f"{self.describe(state)}, and {name} came."), offset
            state = after
        return None

    def no_end(self, state: int) -> Fault | None:
        """Return the reason that the text may not end; ``None`` where it may."""
        return None if self.ends(state) else Fault("end", f"state {state}", f"No end: {self.describe(state)}.")

    def graph(self, more: Sequence[int] = ()) -> dict[str, Any]:
        """Return the first states from the start on, and ``more``, with the bytes between them; nodes and edges."""
        states = dict.fromkeys([self.start])
        for state in (pending := list(states)):  # it grows
            new = [target for target in dict.fromkeys(self.moves(state).values()) if target not in states]
            new = new[: max(MOST_STATES - len(states), 0)]
            states.update(dict.fromkeys(new))
            pending += new
        states.update(dict.fromkeys(more))
        nodes = [
            {
                "id": f"s{state}",
                "label": str(state),
                "text": self.describe(state),
                "start": state == self.start,
                "end": self.ends(state),
            }
            for state in states
        ]
        read: dict[tuple[int, int], list[int]] = {}
        for state in states:
            for byte, target in self.moves(state).items():
                if target in states:
                    read.setdefault((state, target), []).append(byte)
        edges = [
            {"source": f"s{source}", "target": f"s{target}", "label": byte_set(members)}
            for (source, target), members in read.items()
        ]
        whole = all(target in states for state in states for target in self.moves(state).values())
        return {"nodes": nodes, "edges": edges, "whole": whole}
