"""The legal mass at each step of a masked draw, and the fields of JSON that its steps stood in."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from ..vocabulary.vocabulary import Vocabulary

ROOT = "(whole value)"  # The outermost value; its own punctuation and keys
END = "(end of text)"  # After the outermost value, where only the end of sequence is left
PLAIN_KEY = re.compile(r"[^\W\d][\w-]*")  # Keys that a path shows as they are; others are quoted

TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(?:(")|\\?)|[][{}:,\s]|[^][{}:,\s"]+', re.DOTALL)
"""A lexeme of JSON or the beginning of one; the group is the quote that ends a string."""


def byte_places(data: bytes) -> list[str]:
    """Return the path of the value that a JSON text stands in before each of its bytes, and after the last: ``[len + 1]``.

    ``address.city``, ``tags[]`` (all elements share a place). Keys and punctuation belong to the object or array that they
    structure, :data:`ROOT` for the outermost one; from the colon on, a place is the field's. It never fails: a text that is cut
    short, or is not JSON, has a place at every byte.
    """
    containers: list[tuple[str, bool]] = []  # paths of what is open, and whether it is an object
    value: str | None = ROOT  # the path of the value that is due or being written
    key, is_open = b"", False
    places = [ROOT]
    for found in TOKEN.finditer(data):
        token = found[0]
        if is_open:  # a number: that it has ended shows only in what follows
            value, is_open = None, False
        path, in_object = containers[-1] if containers else (ROOT, False)
        match token:
            case b"{" | b"[" if value is not None:
                containers.append((value, token == b"{"))
                value = None if token == b"{" else _element(value)
            case b"}" | b"]":
                del containers[-1:]
                value = None
            case b"," if containers and not in_object:
                value = _element(path)
            case b":" if in_object:
                value = _member(path, key)
            case _ if token.isspace() or token in b"{[,:":
                pass
            case _ if value is None:
                key = token[1:-1]
            case _:
                is_open = token not in (b"true", b"false", b"null") and not found[1]
                value = value if is_open else None
        outside = containers[-1][0] if containers else END
        places += [places[-1]] * (len(token) - 1) + [outside if value is None else value]
    return places


def _element(path: str) -> str:
    return "[]" if path == ROOT else f"{path}[]"


def _member(path: str, key: bytes) -> str:
    try:
        name = json.loads(b'"' + key + b'"')
    except ValueError:
        name = key.decode(errors="replace")
    shown = name if PLAIN_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)
    return shown if path == ROOT else f"{path}.{shown}"


def field_values(text: str) -> dict[str, str] | None:
    """Return the value of each field of a JSON object or array, as JSON; ``None`` where ``text`` is neither.

    Objects are opened, so ``address.city`` is a field; an array is one value.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict | list):
        return None
    return dict(_leaves(ROOT, record))


def _leaves(path: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict) and value:
        inner = ((_member(path, json.dumps(key)[1:-1].encode()), member) for key, member in value.items())
        return [leaf for below, member in inner for leaf in _leaves(below, member)]
    return [(path, json.dumps(value, ensure_ascii=False))]


ROUNDING = 1e-15
"""Relative to a node's legal mass: more than the rounding of the sums below, so that an upper bound stays one."""


@final
@dataclass
class Trace:
    """One trajectory of plain masking, step by step."""

    # The tokens written, and the bytes of each; the end of sequence last, unless the trajectory failed.
    token_ids: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    log_p: list[float] = field(default_factory=list)  # ``log p(v | y)`` of each token, in nats
    # ``log S(y)`` of each step, the log of the probability that the model itself writes a legal token. One more than
    # there are tokens, ``-inf``, where the trajectory failed: truncation had left no legal token.
    log_legal: list[float] = field(default_factory=list)
    # The top log probability less that of the top legal token, at each step, in nats; ``inf`` at a failure.
    margin: list[float] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """True if a step had no legal token: a draw of weight 0."""
        return len(self.log_legal) > len(self.token_ids)

    @property
    def log_w(self) -> float:
        """``sum_t log S(y_t)``: the log weight, which is at most 0."""
        return min(0.0, math.fsum(self.log_legal)) if not self.failed else -math.inf

    @property
    def text(self) -> str:
        """The text that was written."""
        return b"".join(self.pieces).decode(errors="replace")


@final
class TraceRecorder:
    """Records every step of ``n`` trajectories of plain masking of each prompt; an observer of ``AncestralSampler(LocalPhi())``."""

    def __init__(self, vocabulary: Vocabulary, prompts: int, n: int) -> None:
        self.traces = [[Trace() for _ in range(n)] for _ in range(prompts)]
        self._vocabulary = vocabulary

    def step(
        self,
        draws: Sequence[tuple[int, int]],
        rows: Sequence[int],
        tokens: Sequence[int],
        log_p: Tensor,
        scores: Tensor,
    ) -> None:
        """Record one step of each of ``draws``; see :class:`outlines_phi.sampling.stepper.Observer`."""
        log_s = torch.logsumexp(scores.double(), -1)
        margin = (log_p.amax(-1) - scores.amax(-1)).double()
        chosen = log_p[torch.tensor(rows, device=log_p.device), torch.tensor(tokens, device=log_p.device)].double()
        log_legal, margins = log_s.tolist(), margin.tolist()
        for (prompt, number), row, token, log_p_v in zip(draws, rows, tokens, chosen.tolist(), strict=True):
            trace = self.traces[prompt][number]
            trace.log_legal.append(log_legal[row])
            trace.margin.append(margins[row])
            if log_legal[row] > -math.inf:
                trace.token_ids.append(token)
                trace.pieces.append(self._vocabulary.text_of(token))
                trace.log_p.append(log_p_v)


def tree_bounds(traces: Sequence[Trace]) -> tuple[float, float]:
    """Return ``(Lo, U)`` with ``Lo <= Phi <= U`` for certain, from the distributions that the traces of one prompt have met.

    The recursion of the token tree (theory.md, sections 5.1 and 10) over the prefixes that were visited: each knows its legal mass
    ``S(y)`` and the probability of every token that some trace took there. On a small language the two meet.
    """
    legal: list[float] = []
    taken: list[dict[int, list[Any]]] = []  # by token: its probability, and the number of the prefix that it leads to
    for trace in traces:
        edge: list[Any] = [1.0, 0]
        for step, log_legal in enumerate(trace.log_legal):
            if edge[1] is None:
                edge[1] = len(legal)
            node = edge[1]
            if node == len(legal):
                legal.append(math.exp(log_legal))
                taken.append({})
            if step < len(trace.token_ids):
                edge = taken[node].setdefault(trace.token_ids[step], [math.exp(trace.log_p[step]), None])
    lower, upper = [0.0] * len(legal), [0.0] * len(legal)
    # A node is numbered after its parent, so from the last one back every child is known. No child: the end of sequence.
    for node in reversed(range(len(legal))):
        edges = taken[node].values()
        rest = max(0.0, legal[node] - math.fsum(p for p, _ in edges)) + ROUNDING * legal[node]
        lower[node] = math.fsum(p * (1.0 if child is None else lower[child]) for p, child in edges)
        upper[node] = rest + math.fsum(p * (1.0 if child is None else upper[child]) for p, child in edges)
    return min(lower[0], upper[0]), min(1.0, upper[0])
