"""What a client asks the processor in an engine for: a text of JSON, in the arguments of a request of vLLM."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, final
from uuid import uuid4

from ....errors import OutlinesPhiError, UnsupportedError
from ....format_limits import current_limits, limits
from ....guides.phrases.banned import BannedPhrases
from ....numerics.checks import is_count
from ....settings import SamplingSettings
from ....vocabulary.vocabulary import Vocabulary
from ...types.json_text import Joined, JSONText, OneOf, Part, Repeated, Written
from ...types.output_types import GrammarText, Language
from ...types.tables import CompiledTypes

ARGUMENT = "outlines_phi"  # The name of the argument

FORM = 2
"""The form of the arguments; that of client and server is one."""

BYTES = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b""], eos=256)
"""The vocabulary of bytes: what a language is compiled for where the model's own tokens are not known, to see that it can be."""


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
    ``language``, ``ban``: What may be written, ``None`` for free text, and what not.
    ``settings``: The distribution; its seed is the randomness of the draws, with ``row``, the place of the prompt in its batch.
    ``alone``: Whether the prompt has a tree of its own, as in a call with a seed.
    ``name``: A random name of the call, which nobody else can guess: what it names is shared with no other call.
    """

    road: Literal["exact", "local", "probe"]
    language: Language | None = None
    ban: BannedPhrases | None = None
    settings: SamplingSettings = SamplingSettings()
    row: int = 0
    alone: bool = False
    name: str = field(default_factory=lambda: uuid4().hex)

    def text(self) -> str:
        """Return the argument."""
        said = {
            "form": FORM,
            "road": self.road,
            "language": _language_said(self.language),
            "ban": None if self.ban is None else _ban_said(self.ban),
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
        ban = said.pop("ban")
        call = cls(
            language=_language_read(said.pop("language")),
            ban=None if ban is None else BannedPhrases(map(_phrase_read, ban.pop("phrases")), **ban),
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


_COMPILED = CompiledTypes(BYTES)


def check(text: object) -> None:
    """Raise what is wrong with an argument: that it cannot be read, or the error of :class:`CompiledTypes` for its language."""
    with reading():
        call = ServedCall.read(text)
        if call.road != "probe":
            _COMPILED.of_written(call.language, call.ban)


def _ban_said(ban: BannedPhrases) -> dict[str, Any]:
    phrases = [
        {"pattern": phrase.pattern, "flags": phrase.flags} if isinstance(phrase, re.Pattern) else phrase
        for phrase in ban.phrases
    ]
    options = ("ignore_case", "whole_word", "across_prompt")
    return {"phrases": phrases, **{name: getattr(ban, name) for name in options}}


def _phrase_read(said: Any) -> Any:
    return re.compile(said["pattern"], said["flags"]) if isinstance(said, dict) else said


def _language_said(language: Language | None) -> Any:
    match language:
        case GrammarText():
            return {"grammar": language.text}
        case JSONText():
            return {"json": _part_said(language.part)}
    return language


def _language_read(said: Any) -> Language | None:
    match said:
        case None | str():
            return said
        case {"grammar": str(text)}:
            return GrammarText(text)
        case {"json": part}:
            return JSONText(_part_read(part))
    raise ValueError("no language")


def _part_said(part: Part) -> Any:
    match part:
        case str():
            return part
        case Joined() | OneOf():
            return {type(part).__name__: [_part_said(one) for one in part.parts]}
    said = {**part._asdict()}
    return {type(part).__name__: {**said, "part": _part_said(part.part)} if isinstance(part, Repeated) else said}


def _part_read(said: Any) -> Part:
    match said:
        case str():
            return said
        case {"Joined": parts}:
            return Joined(tuple(map(_part_read, parts)))
        case {"OneOf": parts}:
            return OneOf(tuple(map(_part_read, parts)))
        case {"Repeated": fields}:
            return Repeated(**{**fields, "part": _part_read(fields["part"])})
        case {"Written": fields}:
            return Written(**fields)
    raise ValueError("no part of a language")
