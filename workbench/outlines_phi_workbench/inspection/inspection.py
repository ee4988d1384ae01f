"""The page of an inspection, as plain data: the overview, a part, a text, the reason of a token."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from outlines_phi.errors import UnsupportedError

from .inspected import Inspected
from .machines.byte_names import text_name
from .model_masses import PromptedModel
from .node_verdicts import Verdicts
from .refusals import TextPlace, why_masked
from .text_walk import after, begin, bytes_of, place_after, tokens_of, walk
from .theorems import theorem_graph

MOST_SEARCHED = 20_000  # States that the search knows by name; a machine with more is searched by its parts alone
MOST_TOKENS = 2_000  # Tokens of a text that is walked through
MOST_FOUND = 20  # Tokens of one spelling whose reasons are told

Data = dict[str, Any]


@final
@dataclass(frozen=True, eq=False)
class Inspection:
    """The data of an inspection: all methods return what ``json.dumps`` takes, and threads take turns.

    ``encode`` returns the tokens of a text, ``prompted`` is the model that is asked, if any, ``prompt`` its prompt, and
    ``verdicts`` what was verified, if anything.
    """

    inspected: Inspected
    encode: Callable[[str], Sequence[int]]
    prompted: PromptedModel | None = None
    prompt: str = ""
    verdicts: Verdicts | None = None
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def overview(self, texts: Sequence[str], *, is_served: bool) -> Data:
        """Return the parts and the calls between them, and what the page says of all; ``texts`` are walked through already."""
        machine, inspected = self.inspected.machine, self.inspected
        return _plain(
            {
                "name": inspected.name,
                "kind": machine.kind,
                "remark": machine.graph.remark,
                "tokens": len(inspected.vocabulary),
                "budget": inspected.budget,
                "prompt": None if self.prompted is None else self.prompt,
                "served": is_served,
                "searched": self._is_searched,
                "parts": machine.graph.parts,
                "calls": machine.graph.calls,
                "texts": list(texts),
                "verdicts": self.verdicts,
                "banned": 0 if inspected.phrases is None else len(inspected.phrases.phrases.names),
            }
        )

    def part(self, id: str) -> Data:
        """Return the states of a part.

        Raises :class:`UnsupportedError` where there is none of this id.
        """
        if all(part.id != id for part in self.inspected.machine.graph.parts):
            raise UnsupportedError(
                f"Give the id of a part, such as {self.inspected.machine.graph.parts[0].id}. {id!r} is none."
            )
        with self._turn:
            return _plain(self.inspected.machine.graph.states_of(id))

    def theorems(self) -> Data:
        """Return the statements that masks and samplers rest on, with the verdicts of their checks where something was verified."""
        verdicts = {} if self.verdicts is None else {check["id"]: check["verdict"] for check in self.verdicts.checks}
        parts, calls = theorem_graph(verdicts)
        return _plain({"parts": parts, "calls": calls})

    def names(self) -> list[tuple[str, str, str]]:
        """Return the names of states for the search: part, node, and label; none where they are too many."""
        graph = self.inspected.machine.graph
        if not self._is_searched:
            return []
        with self._turn:
            return [
                (part.id, node.id, f"{node.label}: {node.text}")
                for part in graph.parts
                for node in graph.states_of(part.id).nodes
                if node.part is None
            ]

    def walk(self, text: str) -> Data:
        """Return the steps of a text, with what the model says of each.

        Raises :class:`UnsupportedError` where the text is too long, or the tokenizer changes it.
        """
        ids = tokens_of(self.inspected, self.encode, text)
        if len(ids) > MOST_TOKENS:
            raise UnsupportedError(f"Give a text of at most {MOST_TOKENS:,} tokens. {len(ids):,} were given.")
        with self._turn:
            found = walk(self.inspected, ids)
            masses = None
            if self.prompted is not None:
                masses = self.prompted.masses(self.inspected, found.ids, self._places(found.ids))
        return _plain({**_fields(found), "fault": found.fault, "masses": masses})

    def why(self, ids: Sequence[int], token: str) -> Data:
        """Return the reason that masks each token that writes ``token`` behind ``ids``, or that it is live.

        ``<end>`` is the end of sequence, ``#12`` the token of id 12.
        """
        vocabulary = self.inspected.vocabulary
        if token == "<end>":
            asked = [vocabulary.eos_ids[0]]
        elif token.startswith("#") and token[1:].isdecimal() and int(token[1:]) < len(vocabulary):
            asked = [int(token[1:])]
        else:
            written = bytes_of(token)
            asked = [number for number, each in enumerate(vocabulary.tokens) if each == written and written]
        if not asked:
            raise UnsupportedError(
                f"Give a text that one token writes, #12 for an id, or <end>. No token writes {token!r:.80}."
            )
        with self._turn:
            at = place_after(self.inspected, ids)
            found = [(number, why_masked(self.inspected, at, number)) for number in asked[:MOST_FOUND]]
        return _plain(
            {
                "tokens": [
                    {"token": number, "text": text_name(vocabulary.tokens[number]), "refusal": refusal}
                    for number, refusal in found
                ]
            }
        )

    @property
    def _is_searched(self) -> bool:
        return sum(part.size for part in self.inspected.machine.graph.parts) <= MOST_SEARCHED

    def _places(self, ids: Sequence[int]) -> list[TextPlace]:
        places = [begin(self.inspected)]
        for token in ids:
            places.append(after(self.inspected, places[-1], token))
        return places


def _fields(record: Any) -> Data:
    return {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}


def _plain(value: Any) -> Any:
    """Return a value that ``json.dumps`` takes: records as their fields, and infinities as texts."""
    if dataclasses.is_dataclass(value):
        return {name: _plain(each) for name, each in _fields(value).items()}
    match value:
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case float() if not math.isfinite(value):
            return str(value)
    return value
