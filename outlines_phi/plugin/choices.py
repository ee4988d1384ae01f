"""What goes with what: keywords that a door does not take, what is meant by them, and which ones it takes only at rest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, final

from ..errors import UnsupportedError
from . import generation_config
from .generation_config import BUDGET, END

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


@final
class Misfit(NamedTuple):
    """Keywords that a door has no use for, and what to say of them, with ``{name}`` and ``{value}``.

    At their ``neutral`` values they ask for nothing, so it takes them all the same.
    """

    names: tuple[str, ...]
    why: str
    neutral: tuple[Any, ...] = (None,)


_DRAWN = "Leave {name} out of {door}, which is about the conditioned distribution itself and draws nothing"
_COUNT = ("num_return_sequences",)
_DRAFT = ("draft", "draft_length")
_LAW = (
    Misfit(("phi",), f"{_DRAWN}.", ()),
    Misfit(_COUNT, f"{_DRAWN} (the number of members is the argument top of mode()).", ()),
    Misfit(("do_sample", "num_beams", "sampler", *_DRAFT), f"{_DRAWN}.", ()),
)

_OF_DRAWS = Misfit(
    ("sampler", "progress", "constraint", "tokenization", *_DRAFT),
    "Give phi='exact', phi='auto' or a proposal such as phi='local' beside {name}=, or leave it out: {name}= was given "
    "without phi=, and plain masking in {door} has no use for it.",
    (None, False, "any"),
)

MISFITS: dict[str, tuple[Misfit, ...]] = {
    "Hugging Face's own loop": (
        Misfit(
            ("seed",),
            "Call torch.manual_seed(seed) beforehand, or give phi= beside seed=. Hugging Face's generate takes its "
            "randomness from torch, and seed= was given without phi=.",
            (),
        ),
        _OF_DRAWS,
    ),
    "llama.cpp's own loop": (_OF_DRAWS,),
    "mlx-lm's own loop": (
        Misfit(
            ("seed",),
            "Call mlx.core.random.seed(seed) beforehand, or give phi= beside seed=. mlx-lm takes its randomness from there, and "
            "seed= was given without phi=.",
            (),
        ),
        _OF_DRAWS,
    ),
    "vLLM's own loop": (
        Misfit(
            (
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "repetition_penalty",
                "seed",
                "max_new_tokens",
                "num_return_sequences",
            ),
            "Give it in sampling_params=SamplingParams(...), or give phi= beside {name}=. {name}= was given without phi=, and vLLM "
            "takes its settings from there.",
            (),
        ),
        _OF_DRAWS,
    ),
    "a vLLM server": (
        Misfit(
            ("sampler", "draft", "constraint", "tokenization", "progress"),
            "Leave {name} out, {roads}. {name}= was given for draws that a server makes by itself.",
            (None, False, "any"),
        ),
    ),
    "do_sample=False": (
        Misfit(
            ("sampler", *_DRAFT),
            "Leave one of the two out: {name}= was given with do_sample=False. It is for draws, and the most probable member is "
            "searched for, many prefixes in each model call.",
        ),
    ),
    "probabilities()": _LAW,
    "mode()": _LAW,
    "an audit": (
        Misfit(
            ("tokenization", "constraint"),
            "Leave {name}= out of an audit, which is of plain masking; masking knows any tokenization and no predicates.",
            (None, "any"),
        ),
        Misfit(
            ("phi", *_COUNT, "sampler", *_DRAFT),
            "Leave {name}= out of an audit, which is of plain masking and draws n={n} times for each prompt.",
            (),
        ),
    ),
    "a stream": (
        Misfit(
            ("progress",),
            "Leave progress out of a stream, whose pieces tell how far it has come, or call the model without streaming.",
            (None, False),
        ),
        Misfit(("streamer",), "Iterate over the stream: streamer= was given for a stream, which has its own."),
    ),
    "a stream under a correction": (
        Misfit(
            ("do_sample",),
            "Call the model without streaming, or stream with phi=None: do_sample={value} was given for a stream with phi=. "
            "The most probable text is not known from left to right.",
            (None, True),
        ),
    ),
}
"""By the door: the keywords of other doors that it has no use for."""


def refuse_misfits(door: str, keywords: Mapping[str, Any], **said: Any) -> None:
    """Refuse keywords that ``door`` has no use for; ``said`` is what messages tell beside."""
    for misfit in MISFITS[door]:
        for name in misfit.names:
            if name in keywords and keywords[name] not in misfit.neutral:
                raise UnsupportedError(misfit.why.format(name=name, value=keywords[name], door=door, **said))


def refuse_unknown(
    keywords: Iterable[str], known: Sequence[str], meant: Mapping[str, str], otherwise: str = ""
) -> None:
    """Refuse keywords that are not ``known``: ``meant`` says what to do in place of some; for others the nearest one is named."""
    unknown = sorted(set(keywords) - set(known))
    if not unknown:
        return
    hints = {name: _hint(name, known, meant) for name in unknown}
    said = "; ".join(f"{name}: {hint}" if len(unknown) > 1 else hint for name, hint in hints.items() if hint)
    expected = "" if all(name in meant for name in unknown) else f"; expected any of {', '.join(known)}"
    message = f"{', '.join(unknown)} cannot be used here{f' ({said})' if said else ''}{expected}."
    raise UnsupportedError(f"{message} {otherwise}".rstrip())


def refuse_mistyped(keywords: Iterable[str]) -> None:
    """Refuse keywords that go on to transformers where they are meant for ``banned_phrases``."""
    for name in keywords:
        if MEANT.get(name) == BANNED or get_close_matches(name, ("banned_phrases",), n=1, cutoff=_CLOSE):
            raise UnsupportedError(f"{name} cannot be used here; {BANNED}.")


def guessed(given: object, names: Iterable[str], kind: type | tuple[type, ...]) -> str:
    """Return what a wrong value was likely meant to be: one of ``names``, or an instance of ``kind``; empty for neither."""
    if isinstance(given, type) and issubclass(given, kind):
        return f", a class (did you mean {given.__name__}()?)"
    plain = {re.sub("[-_ ]", "", name): name for name in names}
    near = get_close_matches(re.sub("[-_ ]", "", given.lower()), plain, n=1) if isinstance(given, str) else []
    return f" (did you mean {plain[near[0]]!r}?)" if near else ""


def _hint(name: str, known: Sequence[str], meant: Mapping[str, str]) -> str:
    """Return what to do in place of a keyword; empty where nothing is known of it."""
    near = get_close_matches(name, known, n=1)
    return meant.get(name, f"did you mean {near[0]}=?" if near else "")
