"""The generator of the classic API: prompts in, typed values out, nested as in Outlines 0.x."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any, final

import torch

from ...automata.automaton import UNREACHABLE
from ...errors import EmptyLanguageError, UnsupportedError, too_small
from ...guides.regex import compile_regex
from ...phi.constraint import TextConstraint
from ..call import Ban, Corrected, Correction
from ..choices import MEANT, refuse_unknown
from ..drafts import DraftOptions
from ..hosts.generation_config import END, said
from ..hosts.transformers import PhiTransformers
from ..options import USED, Unset
from ..types.output_types import GrammarText, to_language
from .samplers import ClassicSampler, check_count

RESERVED = {
    "max_new_tokens": "max_tokens=",
    "stop_strings": "stop_at=",
    "num_return_sequences": "the sampler's samples=",
    "do_sample": "the sampler: multinomial() or greedy()",
    "num_beams": "the sampler: beam_search(beams)",
    "phi": "phi= of the function that made the generator",
}
"""Keywords of ``generate`` that the classic API has other names for."""

SAMPLES = "give the sampler's samples="
MEANT_CLASSIC = {
    **MEANT,
    "max_length": "give max_tokens=, which does not count the prompt",
    "n": SAMPLES,
    "samples": SAMPLES,
    "stop": f"give stop_at=, or {END}",
}
"""What is meant by keywords that no call takes."""

KNOWN = ("max_tokens", "stop_at", "seed", *(name for name in USED if name not in (*RESERVED, "seed")))
"""The keywords that a call under a correction takes."""

_SEEDED = threading.Lock()
"""Held while torch's own generator is seeded, which all threads share."""


@final
class ClassicGenerator(Corrected):
    """What the functions of :mod:`outlines_phi.generate` return.

    Attributes
    ----------
    model
        A wrapped model.
    output_type
        What it writes; ``None`` for free text.
    sampler
        How.
    correction
        The estimator, and what must not be written.
    reader
        What makes the value of a text.
    constraint
        Predicates that texts have to satisfy, beside the type.
    draft
        What proposes drafts.
    """

    def __init__(
        self,
        model: PhiTransformers,
        output_type: Any,
        sampler: ClassicSampler,
        correction: Correction,
        reader: Callable[[str], Any],
        constraint: TextConstraint | None = None,
        draft: DraftOptions | None = None,
    ) -> None:
        self.model, self.output_type, self.sampler, self.reader = model, output_type, sampler, reader
        self.correction, self.constraint, self.draft = correction, constraint, draft

    def banning(self, phrases: Ban | None) -> ClassicGenerator:
        """Return the same generator with other banned phrases; ``None`` for none."""
        correction = self.correction.replaced_by(banned_phrases=phrases)
        others = self.reader, self.constraint, self.draft
        return ClassicGenerator(self.model, self.output_type, self.sampler, correction, *others)

    def __call__(
        self,
        prompts: Any,
        max_tokens: int | None = None,
        stop_at: str | list[str] | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> Any:
        """Return the value, or a list of them.

        ========================  =================  ==============================
        prompts                   ``samples=1``      ``samples=n``
        ========================  =================  ==============================
        one                       ``value``          ``[value, ...]``
        a list of m               ``[value, ...]``   ``[[value, ...], ...]``
        ========================  =================  ==============================

        Parameters
        ----------
        prompts
            A prompt (``str`` or Outlines ``Chat``) or a list of them, drawn in shared model calls.
        max_tokens
            The most tokens to write, end of sequence included. Under ``phi`` it is part of the law and never cuts an output
            short. With ``phi=None`` and for free text the output ends there, complete or not. Left out, free text with banned
            phrases ends after 256 tokens.
        stop_at
            Texts after the first of which the output ends; they are kept, as in 0.x.
        seed
            The same call with the same seed gives the same result.
        **settings
            Other keywords of a call, such as ``temperature``; they replace those of the sampler. ``banned_phrases=`` replaces
            that of the generator.

        Raises
        ------
        ValueReadError
            The output type refuses a text, or it was cut short (``phi=None``).
        UnsupportedError
            An option that cannot be used, or a ``stop_at`` that would cut an output under ``phi``.
        """
        stops = self._stops(stop_at)
        correction = self.correction.replaced_by(banned_phrases=settings.pop("banned_phrases", Unset.UNSET))
        keywords = self._keywords(correction, prompts, max_tokens, stops, settings)
        generate = self.model.batch if isinstance(prompts, (list, tuple)) else self.model
        if self._corrects(correction):
            with _named(max_tokens):
                texts = generate(prompts, self.output_type, seed=seed, **keywords)
            return self._read(texts, ())
        with _seeded(seed, self.model.model.device):
            texts = generate(prompts, self.output_type, **keywords)
        return self._read(texts, stops)

    def stream(
        self,
        prompts: Any,
        max_tokens: int | None = None,
        stop_at: str | list[str] | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> Iterator[str]:
        """Yield the text of one prompt piece by piece, unformatted; parameters as in a call.

        Raises
        ------
        UnsupportedError
            Several prompts or samples; a seed with ``phi=None``, whose loop runs in a thread of its own.
        """
        if self.sampler.samples > 1:
            raise UnsupportedError(
                f"A stream was asked of a sampler of {self.sampler.samples} samples; a stream is one text. Use multinomial(), or "
                "call the generator."
            )
        stops = self._stops(stop_at)
        correction = self.correction.replaced_by(banned_phrases=settings.pop("banned_phrases", Unset.UNSET))
        keywords = self._keywords(correction, prompts, max_tokens, stops, settings)
        if self._corrects(correction):
            with _named(max_tokens):
                return self.model.stream(prompts, self.output_type, seed=seed, **keywords)
        if seed is not None:
            raise UnsupportedError(
                f"seed={seed!r} was given for a stream in Hugging Face's own loop; call torch.manual_seed(seed) before it, or "
                "stream a format with phi='exact'."
            )
        return _until(self.model.stream(prompts, self.output_type, **keywords), stops)

    def _corrects(self, correction: Correction) -> bool:
        # Free text is the model's own law already, under any phi, unless something is banned.
        return correction.said is not None and (self.output_type is not None or correction.ban is not None)

    def _keywords(
        self,
        correction: Correction,
        prompts: Any,
        max_tokens: Any,
        stops: tuple[str, ...],
        settings: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the keywords of the model's own call."""
        particles = settings.get("sampler", getattr(self.sampler, "sampler", None))
        phi = correction.estimator(particles, free=self.output_type is None)
        own: dict[str, Any] = {"constraint": self.constraint, "draft": self.draft}
        if correction.ban is not self.model.banned_phrases:  # whose level would stand beside phi
            own["banned_phrases"] = correction.ban
        for name in sorted(settings.keys() & RESERVED.keys()):
            raise UnsupportedError(f"{name}= was given to a classic generator; give {RESERVED[name]} instead.")
        if max_tokens is not None:
            check_count("max_tokens", max_tokens)
        if phi is not None:
            keywords = {**self.sampler.under(phi), **own}
            if self._corrects(correction):
                refuse_unknown(
                    said(settings),
                    KNOWN,
                    MEANT_CLASSIC,
                    "A generator made with phi=None takes every keyword of the model's own generate.",
                )
                self._check_stops(stops)
                return {**keywords, **settings, "max_new_tokens": max_tokens, "phi": phi}
            if not keywords.get("do_sample", True):
                raise UnsupportedError(
                    f"greedy() was given with phi={phi.name!r} for free text, whose most probable member is not searched "
                    "for. Give a format, or phi=None for the most probable token at every step."
                )
        keywords = {**self.sampler.hosted(), **own, **settings, "phi": None}
        if stops:
            keywords |= {"stop_strings": list(stops), "tokenizer": self.model.hf_tokenizer}
        return {**keywords, "max_new_tokens": self._room(prompts) if max_tokens is None else max_tokens}

    def _room(self, prompts: Any) -> int:
        """Return how many tokens fit after the longest prompt: 0.x stops at the end of the text or never."""
        many = prompts if isinstance(prompts, (list, tuple)) else [prompts]
        longest = max((len(self.model._prompt_ids(prompt)) for prompt in many), default=0)
        return max(1, (self.model.lm.max_length or 2**30) - longest)

    def _stops(self, stop_at: Any) -> tuple[str, ...]:
        match stop_at:
            case None:
                return ()
            case str() if stop_at:
                return (stop_at,)
            case list() | tuple() if all(isinstance(stop, str) and stop for stop in stop_at):
                return tuple(stop_at)
        raise UnsupportedError(
            f"stop_at={stop_at!r} was given; expected a text, or a list of texts, none of them empty."
        )

    def _check_stops(self, stops: tuple[str, ...]) -> None:
        """Refuse a stop that an output could go on after: cut there, it would leave the format."""
        if stops and self.output_type is None:
            raise UnsupportedError(
                f"stop_at={stops[0]!r} was given for free text under a correction, which counts whole texts. Write the end into a "
                "format, for instance generate.regex(model, r'[^\\n]*\\n') for a line; read a stream as far as you need it; or "
                "make the generator with phi=None, whose loop takes stops."
            )
        for stop in stops:
            language = to_language(self.output_type)
            if isinstance(language, GrammarText):
                raise UnsupportedError(
                    f"stop_at={stop!r} was given with phi= and a grammar, whose texts may go on after it, so that a cut would "
                    "leave the language. Leave it out, since the grammar says where a text ends, or use phi=None."
                )
            going_on = compile_regex(f"(?s:.*){re.escape(stop)}(?s:.+)")
            cut = compile_regex(language) & going_on
            if cut.distances[cut.start] != UNREACHABLE:
                raise UnsupportedError(
                    f"stop_at={stop!r} was given with phi=, and the format has texts that go on after it: cut there they would "
                    "leave the format. Write the end into the format, for instance regex(r'[^\\n]*\\n') for a line, or use "
                    "phi=None."
                )

    def _read(self, texts: Any, stops: tuple[str, ...]) -> Any:
        if isinstance(texts, list):
            return [self._read(text, stops) for text in texts]
        return self.reader(_cut(texts, stops))


def _cut(text: str, stops: tuple[str, ...]) -> str:
    """Return ``text`` up to the end of the stop that is found first in it."""
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    at, stop = min(found, default=(len(text), ""))
    return text[: at + len(stop)]


def _until(pieces: Generator[str, None, None], stops: tuple[str, ...]) -> Iterator[str]:
    """Yield ``pieces`` up to the end of the stop that is found first in them."""
    text = ""
    with closing(pieces):
        for piece in pieces:
            done, text = len(text), text + piece
            if rest := _cut(text, stops)[done:]:
                yield rest
            if any(stop in text for stop in stops):
                return


@contextmanager
def _named(max_tokens: int | None) -> Iterator[None]:
    """Call the budget by its name here where it is too small."""
    try:
        yield
    except EmptyLanguageError as error:
        if error.least_budget is None:
            raise
        raise too_small(max_tokens, error.least_budget, "max_tokens") from None


@contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed torch for one call of Hugging Face's loop, and leave its generators as they were."""
    if seed is None:
        yield
        return
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UnsupportedError(f"seed={seed!r} was given; expected a whole number of at least 0.")
    with _SEEDED, torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
