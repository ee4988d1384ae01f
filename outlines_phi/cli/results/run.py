"""What the draws of a file depend on: its first line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, final

from ... import __version__
from ...errors import UnsupportedError
from ...guides.phrases.banned import BannedPhrases
from ...plugin.drafts import DraftOptions
from ...sampling.smc.smc import SMC
from ...settings import SamplingSettings

FORMAT, VERSION = "outlines-phi draws", 1
"""What the first line of a file says that it is."""

SHOWN = {
    "model.weights": ("the weights or the configuration of the model", "model.name"),
    "model.vocabulary": ("the vocabulary of the model", "model.name"),
    "model.tokenizer": ("the tokenizer or its chat template", "model.name"),
    "output_type.pattern": ("the output type", "output_type.name"),
    "banned_phrases.phrases": ("the banned phrases", "banned_phrases.count"),
}
"""Fingerprints, with what they are called and the key under which a reader finds a name."""

UNCOMPARED = {"record", "outlines_phi", "model.name", "output_type.name"}
"""Keys that are there to be read: the same weights may lie in another folder."""


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that decides the draws of a file, but for its prompts, which each of its lines has.

    Attributes
    ----------
    model
        See :func:`outlines_phi.cli.inputs.model.identity`.
    output_type
        How the command names it.
    pattern
        The regular expression or the grammar that it stands for.
    settings
        What defines the law.
    tokenization
        Which spellings of a text count.
    phi
        The name of the estimator.
    sampler
        How it draws, where not by itself.
    ban
        What must not be written.
    draft
        What proposes tokens: other drafts are other draws of the same law.
    tolerance, confidence
        Of certified draws.
    n, seed
        Draws per prompt, and what all random streams come from.
    """

    model: dict[str, str]
    output_type: str
    pattern: str
    settings: SamplingSettings
    tokenization: str
    phi: str
    n: int
    seed: int
    sampler: SMC | None = None
    ban: BannedPhrases | None = None
    draft: DraftOptions | None = None
    tolerance: float | None = None
    confidence: float | None = None

    def header(self) -> dict[str, Any]:
        """Return the first line of a file."""
        settings = asdict(self.settings)
        del settings["seed"]
        return {
            "record": "run",
            "format": FORMAT,
            "version": VERSION,
            "outlines_phi": __version__,
            "model": self.model,
            "output_type": {"name": self.output_type, "pattern": _digest(self.pattern)},
            "settings": {**settings, "tokenization": self.tokenization},
            "phi": self.phi,
            **({} if self.sampler is None else {"sampler": asdict(self.sampler)}),
            **({} if self.ban is None else {"banned_phrases": _ban(self.ban)}),
            **({} if self.draft is None else {"draft": {"names": self.draft.names, "length": self.draft.length}}),
            **({} if self.tolerance is None else {"tolerance": self.tolerance, "confidence": self.confidence}),
            "n": self.n,
            "seed": self.seed,
        }

    def check(self, saved: dict[str, Any], path: object) -> None:
        """Raise UnsupportedError where ``saved``, the first line of the file at ``path``, is of another run; says of which."""
        then, now = dict(_flat(saved)), dict(_flat(self.header()))
        different = [key for key in {**now, **then} if key not in UNCOMPARED and then.get(key) != now.get(key)]
        if not different:
            return
        parts = []
        for key in different:
            what, name = SHOWN.get(key, (key.removeprefix("settings."), key))
            parts.append(f"{what} ({then.get(name)!r} in the file, {now.get(name)!r} in this command)")
        raise UnsupportedError(
            f"{path} was begun by another run, which differs in {'; '.join(parts)}. Give the arguments of that run to go on with "
            "it, another --output, or --overwrite to begin anew."
        )


def check_format(header: Any, path: object) -> dict[str, Any]:
    """Return ``header``, the first line of a file; raise UnsupportedError unless this version reads such files."""
    match header:
        case {"format": str(found), "version": version} if found == FORMAT and version != VERSION:
            raise UnsupportedError(
                f"{path} has version {version!r} of the format {FORMAT!r}; this version of outlines_phi reads {VERSION}. Use "
                "the version that wrote it, or another file."
            )
        case {"format": str(found), "phi": str(), "n": int(), "seed": int(), "output_type": {"name": str()}} if (
            found == FORMAT
        ):
            return header
    raise UnsupportedError(
        f"{path} was not written by outlines-phi generate: its first line is not that of a file of {FORMAT}. Give another file; "
        "generate replaces it under --overwrite."
    )


def _flat(header: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in header.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _ban(ban: BannedPhrases) -> dict[str, Any]:
    """Return what a file says of banned phrases: it may be thousands. Their level is in its ``phi``."""
    options = {"ignore_case": ban.ignore_case, "whole_word": ban.whole_word, "across_prompt": ban.across_prompt}
    return {"count": len(ban), "phrases": _digest("\n".join(ban.names)), **options}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
