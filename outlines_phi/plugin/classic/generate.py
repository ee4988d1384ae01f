"""The classic API, as in Outlines 0.x: from what :func:`outlines_phi.Generator` takes to generators of values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import EnumMeta
from functools import partial
from json import loads
from typing import Any, TypeAlias, final, get_args

import torch
from outlines.types import Regex
from outlines.types.dsl import CFG, Choice
from outlines.types.utils import get_schema_from_enum

from ...errors import UnsupportedError
from ...guides.fsm import CharacterFSM, FSMGuide, encoded
from ...guides.grammar.grammar import Grammar
from ...numerics.checks import check_counts
from ...sampling.ancestral import SMC
from ..call import Correction, Unset
from ..drafts import check_draft, resolve_draft
from ..generator import Generator, PhiGenerator
from ..streaming import Pieces
from ..types.output_types import to_json, to_language
from ..types.readers import ValueReader, fixed_texts, parsed, reader
from ..wrapping import wrapped
from .samplers import ClassicSampler, multinomial, particles

__all__: list[str] = ["cfg", "choice", "format", "fsm", "json", "regex", "text"]

HOSTED = {"do_sample": True, "num_beams": 1, "num_return_sequences": 1, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
HOSTED |= {"typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
"""The options of draws in Hugging Face's loop, at neutral values, so that none is inherited."""

Samplers: TypeAlias = ClassicSampler | SMC
DEFAULT = multinomial()
_SEEDED = threading.Lock()  # Held while torch's own generator is seeded, which all threads share


@final
@dataclass(eq=False)
class ClassicGenerator:
    """A generator with its sampler and the reader of values, as the functions of this module return it."""

    generator: PhiGenerator
    sampler: Any
    reader: Callable[[str], Any]
    phi = property(lambda self: self.generator.phi)
    banned_phrases = property(lambda self: self.generator.banned_phrases)

    def __post_init__(self) -> None:
        if isinstance(self.sampler, SMC):
            self.sampler = particles(self.sampler)
        if not isinstance(self.sampler, ClassicSampler):
            expected = "samplers.multinomial(), samplers.greedy() or samplers.beam_search(), of outlines_phi.samplers"
            raise UnsupportedError(f"Give {expected}, or SMC(...). {self.sampler!r:.80} was given as sampler.")

    def __call__(
        self, prompts: Any, max_tokens: int | None = None, stop_at: Any = None, seed: int | None = None, **settings: Any
    ) -> Any:
        """Return the value; a list for a list of prompts, and for each prompt where the sampler has several samples.

        ``max_tokens`` cuts an output with ``phi=None`` and for free text alone. An output ends after the first of the texts
        ``stop_at``, which are kept; under ``phi`` a value is read from what stands before it. With ``phi=None`` torch is seeded.
        ``settings`` are as in calls of :func:`outlines_phi.Generator`.
        """
        stops, keywords = self._keywords(max_tokens, stop_at, settings)
        door = self.generator.batch if isinstance(prompts, (list, tuple)) else self.generator
        if seed is None or keywords.get("phi", Unset.UNSET) is not None:
            return self._read(door(prompts, **keywords, **({} if seed is None else {"seed": seed})), stops)
        check_counts("a classic generator", seed=seed, least=0)
        device = self.generator.model.lm.device
        with _SEEDED, torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            return self._read(door(prompts, **keywords), stops)

    def stream(
        self, prompts: Any, max_tokens: int | None = None, stop_at: Any = None, seed: int | None = None, **settings: Any
    ) -> Iterator[str]:
        """Yield the text of one prompt piece by piece, unformatted; parameters as in a call, ``seed`` under ``phi`` alone."""
        stops, keywords = self._keywords(max_tokens, stop_at, settings)
        return _until(self.generator.stream(prompts, **keywords, **({} if seed is None else {"seed": seed})), stops)

    def _keywords(self, max_tokens: Any, stop_at: Any, settings: dict[str, Any]) -> tuple[Any, Any]:
        """Return the texts that end the output, and the keywords of the generator's call."""
        stops = [] if stop_at is None else [stop_at] if isinstance(stop_at, str) else stop_at
        if not isinstance(stops, (list, tuple)) or not all(isinstance(stop, str) and stop for stop in stops):
            raise UnsupportedError(f"Give a text that is not empty, or a list of them. stop_at={stop_at!r} was given.")
        if max_tokens is not None:
            check_counts("a classic generator", max_tokens=max_tokens)
            settings["max_new_tokens"] = max_tokens
        keywords, model, free = {**self.sampler, **settings}, self.generator.model, self.generator.output_type is None
        said = (settings.get(name, Unset.UNSET) for name in ("phi", "banned_phrases"))
        correction = self.generator.correction.replaced_by(*said)
        drawn = keywords.get("do_sample", True) and "sampler" not in keywords
        # Free text is the model's own distribution already, under any phi, unless something is banned.
        own = free and drawn and correction.ban is None
        if not own and correction.estimator(keywords.get("sampler")) is not None:
            keeps = self.reader is str or (isinstance(self.reader, ValueReader) and self.reader.keeps)
            name = "stop_strings" if keeps else "stop"  # what is left of which is read
            return stops, {**keywords, **({name: stops} if stops else {})}
        keywords = {**(HOSTED if drawn else {}), **keywords, "phi": None}
        if "max_new_tokens" not in keywords:  # 0.x stops at the end of the text or of the context
            keywords |= {"max_length": model.lm.max_length or 2**30, "max_new_tokens": None}
        return stops, keywords | ({"stop_strings": list(stops), "tokenizer": model.hf_tokenizer} if stops else {})

    def _read(self, texts: Any, stops: Sequence[str]) -> Any:
        if isinstance(texts, list):
            return [self._read(text, stops) for text in texts]
        return self.reader("".join(_until((text for text in [texts]), stops)))


def json(
    model: Any, schema_object: Any, sampler: Samplers = DEFAULT, whitespace_pattern: str | None = None, **options: Any
) -> ClassicGenerator:
    """Return a generator of JSON: for a type, a function's arguments, an ``Enum``, a genson builder, a schema as text or dict."""
    model, given = wrapped(model, "generate.json(model, type)", schema_object), schema_object
    if not isinstance(given, EnumMeta):
        schema = to_json(given, whitespace_pattern)
        read = reader(schema if isinstance(given, (str, dict)) else given)
        return _generator(model, schema, sampler, read, **options)
    try:
        schema = to_json(get_schema_from_enum(given), whitespace_pattern)
    except (AttributeError, ValueError) as error:
        raise UnsupportedError(f"Give members that JSON has. {given!r} has no JSON schema: {error}.") from error
    read = ValueReader(given, parsed(to_language(schema), partial(_member, given)))
    return _generator(model, schema, sampler, read, **options)


def regex(model: Any, regex_str: str | Regex, sampler: Samplers = DEFAULT, **options: Any) -> ClassicGenerator:
    """Return a generator of the texts that a regular expression matches as a whole."""
    term = Regex(regex_str) if isinstance(regex_str, str) else regex_str
    return _generator(model, term, sampler, None, (Regex, "a regular expression as text"), **options)


def choice(model: Any, choices: Any, sampler: Samplers = DEFAULT, **options: Any) -> ClassicGenerator:
    """Return a generator of one of several texts or numbers, or of a member of an ``Enum``, written by its value, unquoted."""
    if isinstance(choices, (list, tuple)) and all(isinstance(item, (str, int, float)) for item in choices):
        choices = Choice(list(choices))
    expected = f"a list of texts and numbers, such as {list(get_args(choices)) or ['yes', 'no']!r:.200}, or an Enum"
    return _generator(model, choices, sampler, None, ((Choice, EnumMeta), expected), **options)


def format(model: Any, python_type: Any, sampler: Samplers = DEFAULT, **options: Any) -> ClassicGenerator:  # noqa: A001
    """Return a generator of any output type; the text of a member of an ``Enum`` is its *name* here, as in 0.x."""
    if not isinstance(python_type, EnumMeta) or not len(python_type):
        return _generator(model, python_type, sampler, **options)
    names: dict[str, Any] = dict(python_type.__members__)
    return _generator(model, Choice(list(names)), sampler, ValueReader(python_type, fixed_texts(names)), **options)


def text(
    model: Any, sampler: Samplers = DEFAULT, *, draft: Any = None, draft_length: int | None = None, **said: Any
) -> ClassicGenerator:
    """Return a generator of free text, by the model's own distribution; with a look-ahead where phrases are banned."""
    model = wrapped(model, "generate.text(model)")
    correction = model.correction.replaced_by(**said)
    if correction.ban is None and isinstance(said.get("phi", Unset.UNSET), Unset):
        correction = Correction(None)
    drafts = check_draft(model, correction.estimator(free=True), resolve_draft(draft, draft_length))
    return ClassicGenerator(PhiGenerator(model, None, correction, {"draft": drafts}), sampler, str)


def cfg(model: Any, cfg_str: str | CFG | Grammar, sampler: Samplers = DEFAULT, **options: Any) -> ClassicGenerator:
    """Return a generator of the texts of a grammar in Lark's dialect, or of :func:`outlines_phi.guides.read_grammar`."""
    term = CFG(cfg_str) if isinstance(cfg_str, str) else cfg_str
    return _generator(model, term, sampler, None, ((CFG, Grammar), "a text in Lark's dialect"), **options)


def fsm(model: Any, fsm: CharacterFSM, sampler: Samplers = DEFAULT, **options: Any) -> ClassicGenerator:
    """Return a generator of the texts that an automaton over characters accepts, one of the package interegular or of its form."""
    model = wrapped(model, "generate.fsm(model, fsm)", fsm)
    guide = FSMGuide.from_automaton(encoded(fsm), model.lm.vocabulary) if isinstance(fsm, CharacterFSM) else fsm
    return _generator(model, guide, sampler, None, (FSMGuide, "an interegular.fsm.FSM"), **options)


def _generator(
    model: Any, given: Any, sampler: Any, read: Any = None, asked: tuple[Any, str] = (object, ""), **options: Any
) -> ClassicGenerator:
    if not isinstance(given, asked[0]):
        raise UnsupportedError(f"Give {asked[1]}, or another type to generate.format. {given!r:.80} was given.")
    generator = Generator(model, given, **options)
    return ClassicGenerator(generator, sampler, read or generator.reader)


def _member(members: Any, written: str) -> Any:
    value = loads(written)
    return value if isinstance(value, dict) and all(one.value != value for one in members) else members(value)


def _until(pieces: Pieces, stops: Sequence[str]) -> Pieces:
    """Yield ``pieces`` up to the end of the stop that is found first in them."""
    text = ""
    with closing(pieces):
        for piece in pieces:
            done, text = len(text), text + piece
            ends = [(text.find(stop), len(stop)) for stop in stops if stop in text]
            yield text[done : sum(min(ends)) if ends else None]
            if ends:
                return
