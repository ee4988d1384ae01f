"""The generator of the classic API: prompts in, typed values out, nested as in Outlines 0.x."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch

from ...errors import EmptyLanguageError, UnsupportedError, too_small
from ...guides.phrases.banned import BannedPhrases
from ...numerics.checks import check_counts
from ...phi.estimator import Phi
from ..choices import MEANT, refuse_unknown
from ..generation_config import END, said
from ..generator import PhiGenerator
from ..options import USED, Unset
from ..session import PhiModel
from .samplers import ClassicSampler

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

_SEEDED = threading.Lock()  # Held while torch's own generator is seeded, which all threads share


@final
@dataclass(eq=False)
class ClassicGenerator:
    """What the functions of :mod:`outlines_phi.generate` return: a generator, its sampler, and what makes values of texts."""

    generator: PhiGenerator
    sampler: ClassicSampler
    reader: Callable[[str], Any]

    @property
    def phi(self) -> Phi | None:
        """The estimator; ``None`` for plain masking, in Hugging Face's own loop."""
        return self.generator.phi

    @property
    def banned_phrases(self) -> BannedPhrases | None:
        """What is not written; ``None`` where nothing is banned."""
        return self.generator.banned_phrases

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
            The most tokens to write, end of sequence included. With ``phi=None`` and for free text the output ends there, complete
            or not; under ``phi`` no output is cut. Left out, free text with banned phrases ends after 256 tokens.
        stop_at
            Texts after the first of which the output ends, with ``phi=None``; they are kept, as in 0.x.
        seed
            Of the draws; the loop of ``phi=None`` is seeded as well.
        **settings
            Other keywords of a call, such as ``temperature``; they replace those of the sampler. ``banned_phrases=`` replaces
            that of the generator.

        Raises
        ------
        ValueReadError
            The output type refuses a text, or it was cut short (``phi=None``).
        """
        stops = _stops(stop_at)
        keywords = self._keywords(prompts, max_tokens, stops, settings)
        generate = self.generator.batch if isinstance(prompts, (list, tuple)) else self.generator
        if keywords["phi"] is not None:
            with _named(max_tokens):
                return self._read(generate(prompts, seed=seed, **keywords), ())
        with _seeded(seed, self.generator.model):
            return self._read(generate(prompts, **keywords), stops)

    def stream(
        self,
        prompts: Any,
        max_tokens: int | None = None,
        stop_at: str | list[str] | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> Iterator[str]:
        """Yield the text of one prompt piece by piece, unformatted; parameters as in a call.

        Without a correction it has no ``seed``: Hugging Face's loop runs in a thread of its own.
        """
        if self.sampler.samples > 1:
            raise UnsupportedError(
                f"Use multinomial(), or call the generator: a stream is one text, and {self.sampler.samples} samples were given."
            )
        stops = _stops(stop_at)
        keywords = self._keywords(prompts, max_tokens, stops, settings)
        if keywords["phi"] is not None:
            with _named(max_tokens):
                return self.generator.stream(prompts, seed=seed, **keywords)
        if seed is not None:
            raise UnsupportedError(
                f"Call torch.manual_seed(seed) before a stream in Hugging Face's own loop, or stream a format with phi='exact'; "
                f"seed={seed!r} was given."
            )
        return _until(self.generator.stream(prompts, **keywords), stops)

    def _keywords(
        self, prompts: Any, max_tokens: Any, stops: tuple[str, ...], settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the keywords of the generator's own call; ``phi`` among them is ``None`` for Hugging Face's loop."""
        own, free = self.generator.correction, self.generator.output_type is None
        correction = own.replaced_by(banned_phrases=settings.get("banned_phrases", Unset.UNSET))
        particles = settings.get("sampler", getattr(self.sampler, "sampler", None))
        phi = correction.estimator(particles, free=free)
        for name in sorted(settings.keys() & RESERVED.keys()):
            raise UnsupportedError(f"Give {RESERVED[name]} instead: {name}= was given to a classic generator.")
        if max_tokens is not None:
            check_counts("a classic generator", max_tokens=max_tokens)
        if phi is not None:
            keywords = self.sampler.under(phi)
            # Free text is the model's own distribution already, under any phi, unless something is banned.
            if correction.said is not None and (not free or correction.ban is not None):
                refuse_unknown(
                    said(settings),
                    KNOWN,
                    MEANT_CLASSIC,
                    "A generator made with phi=None takes every keyword of the model's own generate.",
                )
                if stops:
                    raise UnsupportedError(
                        "Write the end into a format, such as generate.regex(model, r'[^\\n]*\\n') for a line, or use phi=None. "
                        f"stop_at={stops[0]!r} was given under a correction, which counts whole texts."
                    )
                return {**keywords, **settings, "max_new_tokens": max_tokens, "phi": phi}
            if not keywords.get("do_sample", True):
                raise UnsupportedError(
                    "Give a format, or phi=None for the most probable token at every step. "
                    f"greedy() was given with phi={phi.name!r} for free text, whose most probable member is not searched for."
                )
        keywords = {**self.sampler.hosted(), **settings, "phi": None}
        if stops:
            keywords |= {"stop_strings": list(stops), "tokenizer": self.generator.model.hf_tokenizer}
        return {**keywords, "max_new_tokens": self._room(prompts) if max_tokens is None else max_tokens}

    def _room(self, prompts: Any) -> int:
        """Return how many tokens fit after the longest prompt: 0.x stops at the end of the text or never."""
        many, model = prompts if isinstance(prompts, (list, tuple)) else [prompts], self.generator.model
        longest = max((len(model._prompt_ids(prompt)) for prompt in many), default=0)
        return max(1, (model.lm.max_length or 2**30) - longest)

    def _read(self, texts: Any, stops: tuple[str, ...]) -> Any:
        if isinstance(texts, list):
            return [self._read(text, stops) for text in texts]
        return self.reader(_cut(texts, stops))


def _stops(stop_at: Any) -> tuple[str, ...]:
    stops = () if stop_at is None else (stop_at,) if isinstance(stop_at, str) else stop_at
    if isinstance(stops, (list, tuple)) and all(isinstance(stop, str) and stop for stop in stops):
        return tuple(stops)
    raise UnsupportedError(f"stop_at={stop_at!r} was given; expected a text, or a list of texts, none of them empty.")


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
def _seeded(seed: int | None, model: PhiModel) -> Iterator[None]:
    """Seed torch for one call of the host's own loop, and leave its generators as they were."""
    if seed is None:
        yield
        return
    check_counts("a classic generator", seed=seed, least=0)
    device = model.lm.device
    with _SEEDED, torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
