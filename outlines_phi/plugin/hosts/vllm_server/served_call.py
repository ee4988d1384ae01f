"""The message of a client to the processor in an engine: a text of JSON, in the arguments of a request of vLLM."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from itertools import count, islice
from typing import Any, Literal, NamedTuple, final
from uuid import uuid4

from torch import Tensor

from ....errors import OutlinesPhiError, UnsupportedError
from ....format_limits import current_limits, limits
from ....guides.phrases.banned import BannedPhrases
from ....guides.thinking import Stops
from ....numerics.checks import is_count
from ....settings import SamplingSettings
from ....vocabulary.vocabulary import BYTES
from ...types.output_types import GrammarText, JSONText, Language
from ...types.tables import CompiledTypes

ARGUMENT = "outlines_phi"  # The name of the argument

BAN = ("phrases", "ignore_case", "whole_word", "across_prompt")  # The fields of a ban that tell the language

FORM = 4
"""The form of the arguments; that of client and server is one."""

LIMITS = "OUTLINES_PHI_SERVED_LIMITS"
"""Environment variable of a server: limits on formats other than these, as in ``{"states": 5000, "source": 200000}``."""

SERVED = {"source": 1 << 17, "nesting": 50, "states": 2_000, "members": 2_000, "phrases": 1 << 12}


@contextmanager
def reading() -> Iterator[None]:
    """Set the limits on what anybody may ask an engine to compile, which bound the wait of its steps, and type all errors."""
    try:
        with limits(**{**SERVED, **json.loads(os.environ.get(LIMITS, "{}"))}):
            yield
    except OutlinesPhiError:
        raise
    except Exception as error:  # it runs over a text of anybody
        raise UnsupportedError(
            f"Draw by outlines_phi.wrap(outlines.from_vllm(client, model)), which writes the argument {ARGUMENT}, with a smaller "
            f"format. It cannot be read: {type(error).__name__}: {error!s:.200}."
        ) from error


@final
@dataclass(frozen=True, kw_only=True)
class ServedCall:
    """The draws of one prompt.

    ``road``: Attempts by rejection, masking, or nothing at all: whether somebody is there.
    ``language``, ``ban``, ``stops``: What may be written, ``None`` for free text, what not, and what ends it.
    ``settings``: The distribution; its seed is the randomness of the draws, with ``row``, the place of the prompt in its batch.
    ``alone``: Whether the prompt has a tree of its own, as in a call with a seed.
    ``name``: A random name of the call, which nobody else can guess: what it names is shared with no other call.
    """

    road: Literal["exact", "local", "probe"]
    language: Language | None = None
    ban: BannedPhrases | None = None
    stops: Stops | None = None
    settings: SamplingSettings = SamplingSettings()
    row: int = 0
    alone: bool = False
    name: str = field(default_factory=lambda: uuid4().hex)

    def text(self) -> str:
        """Return the argument."""
        said = {
            "form": FORM,
            "road": self.road,
            "language": _said(self.language),
            "ban": self.ban and {name: _said(getattr(self.ban, name)) for name in BAN},
            "stops": self.stops and asdict(self.stops),
            "settings": asdict(self.settings),
        }
        return json.dumps({**said, "row": self.row, "alone": self.alone, "name": self.name})

    @classmethod
    def read(cls, text: object) -> ServedCall:
        """Return the call of an argument, while :func:`reading`."""
        current_limits().check("source", len(text), f"The length of the argument {ARGUMENT}")  # type: ignore[arg-type]
        said = json.loads(text)  # type: ignore[arg-type]
        if said["form"] != FORM:
            raise UnsupportedError(
                f"Install the same version of outlines_phi beside the client and beside the server. Arguments of the form "
                f"{said['form']!r:.20} were given; this server reads the form {FORM}."
            )
        del said["form"]
        ban, stops = said.pop("ban"), said.pop("stops")
        call = cls(
            language=_read(said.pop("language")),
            ban=None if ban is None else BannedPhrases(_read(ban.pop("phrases")), **ban),
            stops=None if stops is None else Stops(**{name: _read(value) for name, value in stops.items()}),
            settings=SamplingSettings(**said.pop("settings")),
            **said,
        )
        if (
            call.road not in ("exact", "local", "probe")
            or not is_count(call.row)
            or not isinstance(call.settings.seed, int)
            or not isinstance(call.name, str)
        ):
            raise UnsupportedError(
                f"Give a road, a row, a seed and a name that there are. The argument {ARGUMENT} has {text!r:.200}."
            )
        return call


_COMPILED = CompiledTypes(BYTES)  # where the model's own tokens are not known: to see that a language can be compiled


def check(text: object) -> None:
    """Refuse a wrong argument: one that cannot be read, or the error of :class:`CompiledTypes` for its language."""
    with reading():
        call = ServedCall.read(text)
        if call.road != "probe":
            _COMPILED.of_written(call.language, call.ban, call.stops)


def _said(value: Any) -> Any:
    """Return the JSON of a language, or of phrases."""
    match value:
        case GrammarText():
            return {"grammar": value.text}
        case JSONText():
            return {"json": value.part}
        case re.Pattern():
            return {"pattern": value.pattern, "flags": value.flags}
        case tuple():
            return [_said(each) for each in value]
    return value


def _read(said: Any) -> Any:
    """Invert :func:`_said`; what is none of its values raises any error."""
    match said:
        case {"grammar": str(text)}:
            return GrammarText(text)
        case {"json": part}:
            return JSONText(_read(part))
        case {"pattern": pattern, "flags": flags}:
            return re.compile(pattern, flags)
        case list():
            return tuple(_read(each) for each in said)
    return said


NUMBERS = 5
"""Count of numbers that come with the last token of a draw."""

SHOWN = (
    NUMBERS + 1
)  # Tokens of a step that the server is to return: the one that is written, and those that carry numbers

MARK = 128.0
"""The logit of the token to write is this and its outcome; a sampler gives tokens that far below no probability at all."""

SCALE = 2.0**-13
"""Numbers are written by this scale, which loses nothing: the server returns none below -9999."""

LEAST = -9999.0

PREFIX = "token_id:"  # The prefix of an id in the server's answers


class WalkEnd(IntEnum):
    """Outcome of a draw.

    ``MEMBER``: It is written whole.
    ``FAILED``: An attempt that the coin of thinning has ended.
    ``NOWHERE``: No token that is allowed has any probability; of an attempt: no member of the language has.
    ``EMPTY``, ``TOO_SHORT``: The language has no member after the prompt, or none within the length limit.
    ``BROKEN``: An error of the host, or of the model.
    ``ENDED``: It was over already.
    ``READY``: Nothing was asked for but whether anybody is there.
    """

    UNDER_WAY = 0
    MEMBER = 1
    FAILED = 2
    NOWHERE = 3
    EMPTY = 4
    TOO_SHORT = 5
    BROKEN = 6
    ENDED = 7
    READY = 8


class WalkAccount(NamedTuple):
    """Account of a draw, in nats: ``log p``, and bounds of ``log Phi``; both are ``log_w`` where it has a weight."""

    log_p: float
    low: float
    high: float


@final
@dataclass(frozen=True)
class Answer:
    """The end of one draw: its tokens, what became of it, the length limit that it had, and its place in the launch order.

    Where the limit is too small, ``budget`` is the least that would do.
    """

    tokens: tuple[int, ...]
    text: str | None
    outcome: WalkEnd
    account: WalkAccount
    budget: int
    launch: int


def carriers(token: int) -> Iterator[int]:
    """Yield the ids whose logits carry numbers beside a token to write: the lowest others."""
    return islice((other for other in count() if other != token), NUMBERS)


def force(row: Tensor, token: int, outcome: WalkEnd, account: WalkAccount, budget: int, launch: int) -> None:
    """Let a row of logits, ``[V]``, write ``token`` and carry the numbers, none of which is positive."""
    row.fill_(-math.inf)
    row[token] = MARK + outcome
    for carrier, number in zip(carriers(token), (*account, -budget, -launch), strict=True):
        row[carrier] = number * SCALE


def read(choice: Any) -> Answer | None:
    """Parse the answer in a choice of the server's response; ``None`` where no processor of ours wrote it."""
    tokens: list[int] = []
    for step in getattr(choice.logprobs, "content", None) or ():
        mark = step.logprob - MARK
        if not step.token.startswith(PREFIX) or mark not in tuple(WalkEnd):
            return None
        tokens.append(int(step.token.removeprefix(PREFIX)))
        if (outcome := WalkEnd(int(mark))) is not WalkEnd.UNDER_WAY:
            found = {int(other.token.removeprefix(PREFIX)): other.logprob for other in step.top_logprobs}
            numbers = [found.get(carrier, LEAST) for carrier in carriers(tokens[-1])]
            *account, budget, launch = (x / SCALE if x > LEAST else -math.inf for x in numbers)
            return Answer(
                tuple(tokens), choice.message.content, outcome, WalkAccount(*account), -int(budget), -int(launch)
            )
    return None
