"""Texts, token by token: which tokens are live, where they lead, and why others are masked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi import UnsupportedError, Vocabulary
from outlines_phi.guides import Guide
from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE
from outlines_phi.guides.table import Moves

Key = TypeVar("Key")
Item = TypeVar("Item")

MOST_STATES = 120  # States that are drawn, from the start on, beside those that texts lead to
MOST_SHOWN = 12  # Ranges of a set of bytes that are written out
ENOUGH = 1 << 30  # Tokens that no text needs: no limit
LOOKED_AT = 1_000  # Masked tokens of a step of which it is found why
GROUPS = 12  # Groups of live tokens, and of masked ones, that a step shows
SAMPLE = 6  # Tokens of a group that are named
MOST_TOKENS = 2_000  # Tokens of a text that is walked through


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


class Refusal(NamedTuple):
    """The reason that no member of the language goes on with a byte behind ``read``, which begins one, or ends there.

    ``kind`` is what refuses: ``language``, ``end``, ``budget`` or ``vocabulary``; ``what`` the state.
    """

    kind: str
    what: str
    because: str  # a sentence
    read: str = ""  # of the token that is masked


class TextPlace(NamedTuple):
    """The place of a text: a state of the guide, and the tokens left."""

    state: int
    remaining: int


class TokenGroup(NamedTuple):
    """Tokens that lead to one state, or that are refused for one reason: how many, some of them, where, and more."""

    size: int
    sample: tuple[str, ...]
    label: str
    said: str


class TextStep(NamedTuple):
    """A place between two tokens of a text; ``token`` is the next one, ``None`` behind the last."""

    place: TextPlace
    token: int | None
    why_no_end: str
    live: int  # how many tokens are live
    targets: int  # to how many states they lead
    groups: tuple[TokenGroup, ...]  # by these states, those of the most tokens
    masked: tuple[TokenGroup, ...]  # masked tokens by what refuses them
    looked_at: int  # of how many it was found why
    distance: int | None  # the fewest tokens to the end; ``None`` for no end
    refusal: Refusal | None  # why ``token`` is masked, where it is


@final
@dataclass(frozen=True, eq=False)
class Inspected:
    """A language that is looked at, by the name of its messages."""

    name: str
    guide: Guide
    budget: int | None = None  # the most tokens of a text, the end of sequence included; ``None`` for no limit

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens."""
        return self.guide.vocabulary

    @property
    def begin(self) -> TextPlace:
        """The place where a text begins."""
        return TextPlace(self.guide.start, ENOUGH if self.budget is None else self.budget)

    def after(self, at: TextPlace, token: int) -> TextPlace:
        """Return the place behind a live ``token``."""
        return TextPlace(self.guide.advance(at.state, token), at.remaining - 1)

    def name_of(self, token: int) -> str:
        """Name a token, as pages show it."""
        return "<end>" if token in self.vocabulary.eos_ids else text_name(self.vocabulary.tokens[token]) or f"<{token}>"

    def live(self, at: TextPlace) -> tuple[NDArray[np.bool_], Moves]:
        """Return the mask ``bool[V]`` of a place, and the live tokens with where they lead."""
        row = self.guide.row(at.state)
        mask = row.partition.where(self.guide.live_classes(at.state, at.remaining) & (row.targets != DEAD))
        tokens = np.flatnonzero(mask)
        return mask, Moves(tokens, row.partition.class_of[tokens], row.targets)

    def why_masked(self, at: TextPlace, token: int) -> Refusal | None:
        """Return the reason that ``token`` is masked; ``None`` where it is live.

        In this order: ids that write nothing; the end of the text; the byte after which no member is left; the limit of tokens.
        """
        if self.live(at)[0][token]:
            return None
        text, name, target = self.vocabulary.tokens[token], self.name_of(token), self.guide.advance(at.state, token)
        end = token == self.vocabulary.eos_ids[0]
        if not text and not end:
            because = "No guide allows an id without bytes; all ends of sequence count as the first one."
            return Refusal("vocabulary", "an id that writes nothing", because)
        if (found := self.no_end(at.state) if end else self.fault(at.state, text)) is not None:
            return found
        if target == DEAD:
            because = "Bytes go on behind it, and no tokens write them to the end."
            return Refusal("vocabulary", "the vocabulary", because, name)
        needed, left = self.guide.min_tokens(target), at.remaining - 1
        because = f"The shortest end takes {needed} more tokens after it, and the limit leaves {left}."
        return Refusal("budget", "the limit of tokens", because, name)

    def walk(self, ids: Sequence[int]) -> list[TextStep]:
        """Return the steps of the tokens ``ids``, up to the first that is masked."""
        if len(ids) > MOST_TOKENS:
            raise UnsupportedError(f"Give a text of at most {MOST_TOKENS:,} tokens. {len(ids):,} were given.")
        at, steps = self.begin, list[TextStep]()
        for token in ids:
            steps.append(self._step(at, int(token)))
            if steps[-1].refusal is not None:
                return steps
            at = self.after(at, int(token))
        return [*steps, self._step(at, None)]

    def _step(self, at: TextPlace, token: int | None) -> TextStep:
        (mask, moves), no_end = self.live(at), self.why_masked(at, self.vocabulary.eos_ids[0])
        led = _grouped(zip(moves.targets.tolist(), moves.tokens.tolist(), strict=True))
        masked = np.flatnonzero(~mask)
        masked = masked[:: -(-len(masked) // LOOKED_AT) or 1]
        why = [(token, refusal) for token in masked.tolist() if (refusal := self.why_masked(at, token)) is not None]
        refused = _grouped((refusal[:2], (token, refusal.because)) for token, refusal in why)[:GROUPS]
        return TextStep(
            place=at,
            token=token,
            why_no_end="" if no_end is None else no_end.because,
            live=len(moves.tokens),
            targets=len(led),
            groups=tuple(
                self._group(several, f"state {s}", str(self._distance(s) or 0)) for s, several in led[:GROUPS]
            ),
            masked=tuple(
                self._group([token for token, _ in several], ": ".join(what), several[0][1])
                for what, several in refused
            ),
            looked_at=len(masked),
            distance=self._distance(at.state),
            refusal=None if token is None else self.why_masked(at, token),
        )

    def _group(self, tokens: list[int], label: str, said: str) -> TokenGroup:
        return TokenGroup(len(tokens), tuple(map(self.name_of, tokens[:SAMPLE])), label, said)

    def _distance(self, state: int) -> int | None:
        distance = self.guide.min_tokens(state)
        return None if distance >= UNREACHABLE else distance

    def tokens_of(self, encode: Callable[[str], Iterable[int]], text: str) -> list[int]:
        """Return the tokens of a text; an :class:`UnsupportedError` where the tokenizer writes other bytes."""
        try:
            wanted = text.encode()
        except UnicodeEncodeError as error:
            raise UnsupportedError(f"Give characters of Unicode. {text!r:.80} has none at {error.start}.") from None
        ids = [int(token) for token in encode(text)]
        written = b"".join(self.vocabulary.tokens[token] for token in ids if token < len(self.vocabulary))
        if written != wanted:
            raise UnsupportedError(
                f"Give a text that the tokenizer writes as it is, or another tokenizer. It writes {text!r:.80} as {written!r:.80}."
            )
        return ids

    @cached_property
    def _single(self) -> dict[int, int]:
        """The tokens of single bytes, which lead where longer ones do (grammar-theory.md, section 7)."""
        found = {token[0]: number for number, token in enumerate(self.vocabulary.tokens) if len(token) == 1}
        if not found:
            raise UnsupportedError(
                "Give a tokenizer with tokens of single bytes, as all of byte-level BPE have. This vocabulary has none, and what "
                f"a {type(self.guide).__name__} refuses is found byte by byte."
            )
        return found

    @cached_property
    def _moves(self) -> dict[int, dict[int, int]]:
        return {}

    def moves(self, state: int) -> dict[int, int]:
        """Return the state after each byte that ``state`` goes on with."""
        if state not in self._moves:
            found = {byte: self.guide.advance(state, token) for byte, token in self._single.items()}
            self._moves[state] = {byte: target for byte, target in found.items() if target != DEAD}
        return self._moves[state]

    def ends(self, state: int) -> bool:
        """Return True if the text may end."""
        return self.guide.advance(state, self.vocabulary.eos_ids[0]) == DONE

    def describe(self, state: int) -> str:
        """Return a debugging picture of a state, with the bytes that may follow."""
        return f"{self.guide.describe(state)[:300]}; {byte_set(self.moves(state))} may follow"

    def fault(self, state: int, text: bytes) -> Refusal | None:
        """Return the fault at the first byte after which no member is left; ``None`` where all are read."""
        for offset, byte in enumerate(text):
            name, after, read = byte_name(byte), self.moves(state).get(byte), text_name(text[:offset])
            if byte not in self._single:
                return Refusal(
                    "vocabulary", name, f"No token writes {name} alone, so it is not told what refuses.", read
                )
            if after is None:
                return Refusal("language", f"state {state}", f"{self.describe(state)}, and {name} came.", read)
            state = after
        return None

    def no_end(self, state: int) -> Refusal | None:
        """Return the reason that the text may not end; ``None`` where it may."""
        return None if self.ends(state) else Refusal("end", f"state {state}", f"No end: {self.describe(state)}.")

    def graph(self, more: Sequence[int] = ()) -> dict[str, Any]:
        """Return the first states from the start on, and ``more``, with the bytes between them; nodes and edges."""
        states = dict.fromkeys([self.guide.start])
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
                "start": state == self.guide.start,
                "end": self.ends(state),
            }
            for state in states
        ]
        read = _grouped(((state, target), byte) for state in states for byte, target in self.moves(state).items())
        edges = [
            {"source": f"s{source}", "target": f"s{target}", "label": byte_set(members)}
            for (source, target), members in read
            if target in states
        ]
        return {"nodes": nodes, "edges": edges, "whole": len(edges) == len(read)}


def _grouped(pairs: Iterable[tuple[Key, Item]]) -> list[tuple[Key, list[Item]]]:
    """Return the items of each key, those of the most first."""
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return sorted(groups.items(), key=lambda group: -len(group[1]))
