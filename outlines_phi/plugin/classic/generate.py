"""The classic API: ``generate.json``, ``regex``, ``choice``, ``format``, ``cfg`` and ``text``, as in Outlines 0.x, with ``phi=``.

Each function returns a :class:`~outlines_phi.plugin.classic.classic_generator.ClassicGenerator`; calling that gives typed values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from json import loads
from typing import Any, TypeAlias, TypedDict, get_args

from outlines.types import Regex
from outlines.types.dsl import CFG, Choice
from outlines.types.utils import get_schema_from_enum
from typing_extensions import Unpack

from ...errors import UnsupportedError
from ...guides.character_fsm import CharacterFSM, encoded
from ...guides.fsm import FSMGuide
from ...guides.grammar.grammar import Grammar
from ...phi.constraint import Predicate, TextConstraint
from ...phi.estimator import Phi
from ...sampling.smc import SMC
from ..call import Ban, Correction
from ..choices import MEANT, refuse_unknown
from ..drafts import Drafts, check_draft, resolve_draft
from ..generator import Generator, PhiGenerator
from ..options import Unset
from ..session import PhiModel
from ..types.output_types import to_json, to_language
from ..types.readers import ValueReader, fixed_texts, parsed, reader
from ..wrapping import wrapped
from .classic_generator import ClassicGenerator
from .samplers import ClassicSampler, multinomial, particles

__all__: list[str] = ["cfg", "choice", "format", "fsm", "json", "regex", "text"]

Samplers: TypeAlias = ClassicSampler | SMC

DEFAULT_SAMPLER = multinomial()


class Options(TypedDict, total=False):
    """What every function of a format takes beside it; as for :func:`outlines_phi.Generator`."""

    phi: str | Phi | Unset | None
    constraint: Predicate | TextConstraint | None
    banned_phrases: Ban | Unset | None
    draft: Drafts | None
    draft_length: int | None


def json(
    model: Any,
    schema_object: Any,
    sampler: Samplers = DEFAULT_SAMPLER,
    whitespace_pattern: str | None = None,
    **options: Unpack[Options],
) -> ClassicGenerator:
    """Return a generator of JSON.

    Parameters
    ----------
    model
        From :func:`outlines_phi.from_transformers` or :func:`outlines_phi.wrap`, or a stock one, which is wrapped.
    schema_object
        A pydantic model, dataclass or ``TypedDict`` (values: instances), a function (its arguments), an ``Enum`` (the member; the
        arguments of a function that is one), a genson ``SchemaBuilder``, or the text or dict of a JSON schema (``json.loads``).
    sampler
        ``samplers.multinomial(...)`` or ``samplers.greedy()``; ``samplers.beam_search(...)`` with ``phi=None``; ``SMC(...)``,
        or ``samplers.particles(SMC(...), samples=n)``.
    whitespace_pattern
        Of the white space between tokens of JSON.
    **options
        ``phi``, ``constraint``, ``banned_phrases``, ``draft`` and ``draft_length``, as for :func:`outlines_phi.Generator`.
    """
    model = _wrapped(model, schema_object)
    match schema_object:
        case type() if issubclass(schema_object, Enum):
            schema = to_json(_schema_of(schema_object), whitespace_pattern)
            read: Any = ValueReader(schema_object, parsed(to_language(schema), partial(_member, schema_object)))
        case str() | dict():
            schema = to_json(schema_object, whitespace_pattern)
            read = reader(schema)
        case _:
            schema = to_json(schema_object, whitespace_pattern)
            read = reader(schema_object)
    return _generator(model, schema, sampler, read, **options)


def regex(
    model: Any,
    regex_str: str | Regex,
    sampler: Samplers = DEFAULT_SAMPLER,
    **options: Unpack[Options],
) -> ClassicGenerator:
    """Return a generator of the texts that a regular expression matches as a whole; parameters as for :func:`json`."""
    model = _wrapped(model, regex_str)
    if isinstance(regex_str, (str, Regex)):
        return _generator(model, Regex(regex_str) if isinstance(regex_str, str) else regex_str, sampler, **options)
    raise _refused(regex_str, "regular expression", "its text, or one of outlines.types")


def choice(
    model: Any,
    choices: Sequence[Any] | type[Enum],
    sampler: Samplers = DEFAULT_SAMPLER,
    **options: Unpack[Options],
) -> ClassicGenerator:
    """Return a generator of one of several texts or numbers, or of a member of an ``Enum``; parameters as for :func:`json`.

    The text of a member is its value, without quotation marks.
    """
    model = _wrapped(model, choices)
    match choices:
        case type() if issubclass(choices, Enum):
            return _generator(model, choices, sampler, **options)
        case list() | tuple() if all(isinstance(item, (str, int, float)) for item in choices):
            return _generator(model, Choice(list(choices)), sampler, **options)
    items = list(get_args(choices)) or ["yes", "no"]
    raise _refused(choices, "choices", f"a list of texts and numbers, such as {items!r:.200}, or an Enum")


def format(  # noqa: A001 - named as in Outlines 0.x
    model: Any,
    python_type: Any,
    sampler: Samplers = DEFAULT_SAMPLER,
    **options: Unpack[Options],
) -> ClassicGenerator:
    """Return a generator of ``int``, ``float``, ``bool``, ``date``, ``time``, ``datetime`` or any other output type.

    Parameters as for :func:`json`. The text of a member of an ``Enum`` is its *name* here, as in 0.x.
    """
    model = _wrapped(model, python_type)
    if isinstance(python_type, type) and issubclass(python_type, Enum) and len(python_type):
        names = dict(python_type.__members__)
        return _generator(model, Choice(list(names)), sampler, ValueReader(python_type, fixed_texts(names)), **options)
    return _generator(model, python_type, sampler, **options)


def text(
    model: Any,
    sampler: Samplers = DEFAULT_SAMPLER,
    *,
    phi: str | Phi | Unset | None = Unset.UNSET,
    banned_phrases: Ban | Unset | None = Unset.UNSET,
    draft: Drafts | None = None,
    draft_length: int | None = None,
) -> ClassicGenerator:
    """Return a generator of free text, in Hugging Face's own loop unless phrases are banned; parameters as for :func:`json`.

    Free text has nothing else to correct: sampling it follows the model's own distribution, whatever ``phi`` is. Without
    ``max_tokens`` or ``stop_at`` in a call it goes on to the end of the text or of the context; where phrases are banned it is
    drawn with a look-ahead by default, 256 tokens at most.
    """
    model = _wrapped(model)
    correction = model.correction.replaced_by(phi, banned_phrases)
    if correction.ban is None and isinstance(phi, Unset):
        correction = Correction(None)
    drafts = check_draft(model, correction.estimator(free=True), resolve_draft(draft, draft_length))
    return ClassicGenerator(PhiGenerator(model, None, correction, draft=drafts), _sampler(sampler), str)


def cfg(
    model: Any,
    cfg_str: str | CFG | Grammar,
    sampler: Samplers = DEFAULT_SAMPLER,
    **options: Unpack[Options],
) -> ClassicGenerator:
    """Return a generator of the texts that a context-free grammar derives; parameters as for :func:`json`.

    The grammar is its text in Lark's dialect, where it begins is the rule ``start``, or what
    :func:`outlines_phi.guides.read_grammar` has read, as GBNF. With ``phi=None`` the masks are this package's
    own as well, in Hugging Face's loop.
    """
    model = _wrapped(model, cfg_str)
    if isinstance(cfg_str, (str, CFG, Grammar)):
        return _generator(model, CFG(cfg_str) if isinstance(cfg_str, str) else cfg_str, sampler, **options)
    raise _refused(cfg_str, "grammar", "its text in Lark's dialect, outlines.types.CFG, or read_grammar(...)")


def fsm(
    model: Any,
    fsm: CharacterFSM,
    sampler: Samplers = DEFAULT_SAMPLER,
    **options: Unpack[Options],
) -> ClassicGenerator:
    """Return a generator of the texts that a finite automaton over characters accepts; parameters as for :func:`json`.

    The automaton is one of the package interegular, as in 0.x, or has what those have.
    """
    model = _wrapped(model, fsm)
    if isinstance(fsm, CharacterFSM):
        return _generator(model, FSMGuide.from_automaton(encoded(fsm), model.lm.vocabulary), sampler, **options)
    raise UnsupportedError(
        "Give an interegular.fsm.FSM as fsm, or write the format as a regular expression (generate.regex). "
        f"{fsm!r:.80} is no automaton."
    )


def _generator(
    model: Any, output_type: Any, sampler: Any, read: Callable[[str], Any] | None = None, **options: Any
) -> ClassicGenerator:
    refuse_unknown(options, list(Options.__annotations__), MEANT)
    generator = Generator(model, output_type, **options)
    return ClassicGenerator(generator, _sampler(sampler), read or generator.reader)


def _refused(given: Any, what: str, expected: str) -> UnsupportedError:
    return UnsupportedError(
        f"{given!r:.80} was given as {what}; expected {expected}. generate.format takes other types and terms."
    )


def _wrapped(model: Any, second: Any = None) -> PhiModel:
    return wrapped(model, "the model first, then the format", second)


def _sampler(sampler: Any) -> ClassicSampler:
    if isinstance(sampler, SMC):
        return particles(sampler)
    if isinstance(sampler, ClassicSampler):
        return sampler
    raise UnsupportedError(
        f"{sampler!r:.80} was given as sampler; expected samplers.multinomial(samples=1, top_k=None, top_p=None, "
        "temperature=None), samplers.greedy() or samplers.beam_search(beams=1), of outlines_phi.samplers, or SMC(...)."
    )


def _schema_of(members: type[Enum]) -> dict[str, Any]:
    try:
        return get_schema_from_enum(members)
    except (AttributeError, ValueError) as error:
        raise UnsupportedError(
            f"{members!r} has no JSON schema: {error}. Expected members that are texts, numbers, or functools.partial(function)."
        ) from error


def _member(members: type[Enum], written: str) -> Any:
    value = loads(written)
    return value if isinstance(value, dict) else members(value)
