"""Keywords that a call does not take, and what is meant by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from ..errors import UnsupportedError
from .hosts import generation_config
from .hosts.generation_config import BUDGET, END

PARTICLES = "give sampler=SMC(particles=..., resample=...)"

BANNED = "give banned_phrases=['...'], whatever tokens spell them"

CERTIFIED = "give phi=ExactPhi(tolerance=..., confidence=...)"

_CLOSE = 0.8
"""How near a keyword has to be to another one to be it, mistyped: nearer than any option of transformers is."""

OWN_LOOP = "give banned_phrases= or constraint= for a rule of your own, or keep the loop with phi=None"

MEANT: dict[str, str] = {
    **generation_config.MEANT,
    "max_tokens": BUDGET,
    "n": "give num_return_sequences= in a call, or the argument n of sample()",
    "samples": "give num_return_sequences= in a call, or the argument n of sample()",
    "stop": END,
    "stop_at": END,
    "stopping_criteria": END,
    "logits_processor": OWN_LOOP,
    "prefix_allowed_tokens_fn": OWN_LOOP,
    "generation_config": "give its fields as keywords, such as temperature=",
    "assistant_model": "give draft=, a smaller model with the same tokenizer",
    "streamer": "call stream(), and iterate over it",
    "tools": "write them into the prompt, as tokenizer.apply_chat_template(messages, tools=tools, tokenize=False) does",
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
    expected = "" if all(name in meant for name in unknown) else f"; expected any of {', '.join(known)}"
    message = f"{', '.join(unknown)} cannot be used here{f' ({said})' if said else ''}{expected}."
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
