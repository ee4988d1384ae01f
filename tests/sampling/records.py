"""A random distribution over the texts of a small object, and the law of its fields by enumeration in plain Python."""

from __future__ import annotations

import itertools
import json
import math
from abc import ABC, abstractmethod
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from outlines_phi import BannedPhrases, SamplingSettings, Vocabulary
from outlines_phi.guides import JSONGuide, Table
from outlines_phi.lm import TableModel
from tests.inner import Request, TreeStore, banned, sampler_for

Ids = tuple[int, ...]

WRITTEN = ['{"', "a", '":', '"x', '"y', "x", "y", '"', '",', '","', "b", '["', "],", '"],"', "c", "true", "false", "}"]
BYTES = [chr(byte) for byte in range(0x20, 0x7F) if chr(byte) not in WRITTEN]
VOCABULARY = Vocabulary.from_tokens(["<eos>", *WRITTEN, *BYTES], 0)  # the model never writes the other bytes
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"enum": ["x", "y", "xy"]},
        "b": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 2},
        "c": {"type": "boolean"},
    },
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
LISTS = [list(items) for n in (1, 2) for items in itertools.product("xy", repeat=n)]
TEXTS = [
    json.dumps({"a": a, "b": b, "c": c}, separators=(",", ":")).encode()
    for a, b, c in itertools.product(["x", "y", "xy"], LISTS, [True, False])
]


def introductions(text: bytes) -> int:
    """Return the number of values that a text has introduced: by a colon, or a comma within an array."""
    outside = b"".join(text.split(b'"')[::2])  # no string holds a quote
    within = outside.partition(b"[")[2].partition(b"]")[0]
    return outside.count(b":") + within.count(b",")


class Blocks(ABC):
    """The law of a random distribution that is drawn block by block, whose tokens and ends of blocks a language says."""

    prompt: Ids
    lm: TableModel

    @abstractmethod
    def steps(self, ids: Ids) -> dict[int, float]:
        """Return the probabilities of the tokens after which a text may still be completed."""

    @abstractmethod
    def ended(self, root: Ids, ids: Ids, least: float) -> bool:
        """Return True if the block that began at ``root`` has ended."""

    @cache  # noqa: B019 - a handful of languages
    def p(self, ids: Ids) -> NDArray[np.float64]:
        logits = self.lm.next_logits((*self.prompt, *ids))
        return np.exp(logits - np.max(logits)) / np.exp(logits - np.max(logits)).sum()

    @cache  # noqa: B019
    def reach(self, root: Ids, ids: Ids, least: float) -> float:
        """The probability that the block that began at ``root`` is completed, from ``ids`` on."""
        if ids != root and self.ended(root, ids, least):
            return 1.0
        return sum(p * self.reach(root, (*ids, token), least) for token, p in self.steps(ids).items())

    @cache  # noqa: B019
    def law(self, least: float) -> tuple[dict[Ids, float], dict[Ids, int]]:
        """``q(y) = prod_i p(y_i | y_<i) 1[y_i in L_i] / Phi_i``, and the number of blocks of each member."""
        found, blocks = {}, {}
        stack: list[tuple[Ids, Ids, float, int]] = [((), (), 1.0, 1)]
        while stack:
            root, ids, q, count = stack.pop()
            for token, p in self.steps(ids).items():
                longer, share = (*ids, token), q * p / (self.reach(root, root, least) if ids == root else 1.0)
                if token == 0:
                    found[longer], blocks[longer] = share, count
                elif self.ended(root, longer, least):
                    stack.append((longer, longer, share, count + 1))
                else:
                    stack.append((root, longer, share, count))
        assert math.isclose(sum(found.values()), 1.0, rel_tol=1e-9)
        return found, blocks


class Record(Blocks):
    """A random distribution over the texts of an object, without those that hold a banned phrase.

    ``fit`` is added to the logits of tokens after which a text may still be completed.
    """

    prompt = (3, 4)
    budget = 60

    def __init__(self, seed: int, phrase: bytes = b"", fit: float = 0.0) -> None:
        self.texts = [text for text in TEXTS if not phrase or phrase not in text]
        guide = JSONGuide.of(SCHEMA, VOCABULARY, blanks="")
        self.table = Table(banned(guide, BannedPhrases([phrase.decode()])) if phrase else guide)
        written = np.arange(len(VOCABULARY)) <= len(WRITTEN)
        noise = TableModel.random(VOCABULARY, seed=seed, scale=1.5)
        after = len(self.prompt)

        def logits(ids: Ids) -> NDArray[np.float64]:
            return np.where(written, noise.next_logits(ids), -np.inf) + fit * self.live(ids[after:])

        self.lm = TableModel(VOCABULARY, logits)

    def draw(self, phi: object, n: int, seed: int = 1, rows: int = 1, **options: object) -> list:
        request = self.request(n, seed, rows, **options)
        return [draw for draws in sampler_for(phi, TreeStore()).sample(request) for draw in draws]  # type: ignore[arg-type]

    def request(self, n: int, seed: int = 1, rows: int = 1, **options: object) -> Request:
        settings = SamplingSettings(max_new_tokens=self.budget, seed=seed)
        prompts = [self.prompt] * rows
        return Request(lm=self.lm, table=self.table, prompts=prompts, settings=settings, n=n, **options)  # type: ignore[arg-type]

    def text(self, ids: Ids) -> bytes:
        return b"".join(VOCABULARY.tokens[token] for token in ids)

    def begins(self, text: bytes) -> bool:
        return any(member.startswith(text) for member in self.texts)

    @cache  # noqa: B019
    def live(self, ids: Ids) -> NDArray[np.bool_]:
        """Return the mask of the tokens after which a text may still be completed."""
        text = self.text(ids)
        allowed = (
            text in self.texts if token == 0 else bool(spelled) and self.begins(text + spelled)
            for token, spelled in enumerate(VOCABULARY.tokens)
        )
        return np.array(list(allowed))

    @cache  # noqa: B019
    def steps(self, ids: Ids) -> dict[int, float]:
        """The probabilities of the tokens after which a text may still be completed."""
        p = self.p(ids)
        return {token: float(p[token]) for token in np.flatnonzero(self.live(ids)).tolist() if p[token] > 0}

    def between(self, text: bytes) -> bool:
        """Return True if a text is behind a value, and behind the comma if one may come."""
        outside = b"".join(b"s" if i % 2 else part for i, part in enumerate(text.split(b'"')))
        if outside.endswith((b",", b",s")) and b"[" not in outside.rpartition(b"]")[2]:
            return True  # at the name of the next member
        value = text.endswith((b'"', b"]", b"true", b"false", b"}")) and not outside.endswith(
            (b"{s", b",s", b"{", b"[s")
        )
        named = text.endswith((b'"a"', b'"b"', b'"c"'))
        ended = text.endswith(b'"') and text.count(b'"') % 2 == 0 and not named
        return (value and not text.endswith(b'"') or ended) and not self.may_have_comma(text)

    def may_have_comma(self, text: bytes) -> bool:
        return any(member.startswith(text + b",") for member in (text for text in TEXTS))

    @cache  # noqa: B019
    def ended(self, root: Ids, ids: Ids, least: float) -> bool:
        """Return True if the block that began at ``root`` has ended."""
        before, text = self.text(root), self.text(ids)
        if ids[-1:] == (0,) or introductions(text) > introductions(before):
            return True
        late = self.between(text) and not self.between(before)
        return ids != root and late and 0 < sum(self.steps(ids).values()) < least

    @cached_property
    def members(self) -> dict[Ids, float]:
        """``p(y)`` of each member."""
        found, stack = {}, [((), 1.0)]
        while stack:
            written, q = stack.pop()
            for token, p in self.steps(written).items():
                (found.__setitem__ if token == 0 else lambda *member: stack.append(member))((*written, token), q * p)
        return found


def ids(draws: list) -> list[Ids]:
    return [draw.token_ids for draw in draws]
