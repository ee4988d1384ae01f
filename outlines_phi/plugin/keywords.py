"""Keywords that a call does not take, and what is meant by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from ..errors import UnsupportedError

END = "write the end into the format, such as outlines.types.regex(r'[^\\n]*\\n') for a line"
"""What to do in place of a stop."""

BUDGET = "give max_new_tokens="

PARTICLES = "give sampler=SMC(particles=..., resample=...)"

BANNED = "give banned_phrases=['...'], whatever tokens spell them"

CERTIFIED = "give phi=ExactPhi(tolerance=..., confidence=...)"

_CLOSE = 0.8
"""How near a keyword has to be to another one to be it, mistyped: nearer than any option of transformers is."""

MEANT: dict[str, str] = {
    "max_tokens": BUDGET,
    "max_length": f"{BUDGET}, which does not count the prompt",
    "n": "give num_return_sequences= in a call, or the argument n of sample()",
    "samples": "give num_return_sequences= in a call, or the argument n of sample()",
    "stop": END,
    "stop_at": END,
    "stop_strings": END,
    **dict.fromkeys(("ban", "banned", "banned_strings", "banned_words", "bad_words", "blacklist"), BANNED),
}
"""What to do in place of a keyword of another library."""

MEANT_BY_DRAWS = {
    **MEANT,
    "particles": PARTICLES,
    "resample": PARTICLES,
    "tolerance": CERTIFIED,
    "confidence": CERTIFIED,
}
"""The same in calls that draw, and for options that live in objects."""


def refuse_unknown(
    keywords: Iterable[str], known: Sequence[str], meant: Mapping[str, str], otherwise: str = ""
) -> None:
    """Refuse keywords that are not ``known``.

    Parameters
    ----------
    keywords
        Those of the call.
    known
        What it takes.
    meant
        What to do in place of some keywords; for others the nearest known one is named.
    otherwise
        What else to say.

    Raises
    ------
    UnsupportedError
        Names the keywords, what is likely meant, and what is taken.
    """
    unknown = sorted(set(keywords) - set(known))
    if not unknown:
        return
    hints = {name: _hint(name, known, meant) for name in unknown}
    said = "; ".join(f"{name}: {hint}" if len(unknown) > 1 else hint for name, hint in hints.items() if hint)
    message = (
        f"{', '.join(unknown)} cannot be used here{f' ({said})' if said else ''}; expected any of {', '.join(known)}."
    )
    raise UnsupportedError(f"{message} {otherwise}".rstrip())


def refuse_mistyped(keywords: Iterable[str]) -> None:
    """Refuse keywords that go on to transformers where they are meant for ``banned_phrases``.

    Raises
    ------
    UnsupportedError
        Names the keyword.
    """
    for name in keywords:
        if MEANT.get(name) == BANNED or get_close_matches(name, ("banned_phrases",), n=1, cutoff=_CLOSE):
            raise UnsupportedError(f"{name} cannot be used here; {BANNED}.")


def _hint(name: str, known: Sequence[str], meant: Mapping[str, str]) -> str:
    """Return what to do in place of a keyword; empty where nothing is known of it."""
    near = get_close_matches(name, known, n=1)
    return meant.get(name, f"did you mean {near[0]}=?" if near else "")
