"""The options that commands share: in groups, each a dataclass that reads what was given, and some by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, final, get_args, get_type_hints

import typer

from ..errors import UnsupportedError
from ..guides.grammar.notation.reader import NAMES
from ..guides.phrases.banned import LEVELS, BannedPhrases
from ..phi.estimator import Phi, ProposalPhi
from ..phi.onestep import LocalPhi
from ..plugin.call import ESTIMATORS, Call, Correction, Unset, meant_by
from ..plugin.choices import ENDS, TOKENIZATIONS, guessed
from ..plugin.drafts import DRAFTERS, DraftOptions, resolve_draft
from ..plugin.session import PhiModel
from ..plugin.types.output_types import to_language
from ..sampling.phi_options import AutoPhi, ExactPhi, LookaheadPhi
from ..sampling.resolve import DRAFT_LENGTH
from ..sampling.smc import SMC, Resample
from .actors import FORMS, Pool
from .inputs import (
    BUNDLED,
    COLUMN,
    DTYPES,
    HOSTS,
    PARQUET,
    Prompt,
    Rows,
    check_chats,
    load,
    read_output_type,
    read_prompts,
    read_rows,
)


def one_of(option: str, names: Sequence[str], meant: Callable[[str], str] | None = None) -> dict[str, Any]:
    """Return the arguments of an option, given once or several times, that takes some names alone and shows them.

    ``meant`` says what another name was likely meant to be; by default the nearest one.
    """

    def check(value: Any) -> Any:
        for given in value if isinstance(value, list) else [value]:
            if given is not None and given not in names:
                hint = guessed(given, names, ()) if meant is None else meant(given)
                raise UnsupportedError(f"{option} {given} was given{hint}; expected one of {', '.join(names)}.")
        return value

    return {"callback": check, "metavar": f"<{'|'.join(names)}>"}


Type = Annotated[
    str | None,
    typer.Option("--type", help="Output type, module:Class: pydantic, dataclass, Enum, Literal, function, ..."),
]
Schema = Annotated[Path | None, typer.Option(help="Output type: file of a JSON schema.")]
RegexOption = Annotated[str | None, typer.Option("--regex", help="Output type: regular expression.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same draws; by default a random one.")]
Tokenization = Annotated[
    str | None,
    typer.Option(**one_of("--tokenization", TOKENIZATIONS), help="Tokenizations of a text that count; by default any."),
]

Ends = Annotated[
    str | None, typer.Option(**one_of("--ends", ENDS), help="open: the text begins with a member and may go on.")
]
OpenAt = Annotated[
    str | None, typer.Option(help="With --ends open: regular expression of the character after a member.")
]


def keywords(**given: Any) -> dict[str, Any]:
    """Return the keywords of a call: the options that were given."""
    return {name: value for name, value in given.items() if value is not None}


def refuse_without(remedy: str, without: str, given: dict[str, bool]) -> None:
    """Refuse the options that were given, which say nothing without others."""
    if useless := [option for option, is_given in given.items() if is_given]:
        raise UnsupportedError(f"Give {remedy}, or leave it out: {', '.join(useless)} was given without {without}.")


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command as typer reads it: each argument that is a group stands for the options of the group."""
    kinds = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if (group := groups.get(parameter.name)) is None:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=kinds[parameter.name]))
            continue
        types = get_type_hints(group, include_extras=True)
        parameters += [
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name])
            for field in fields(group)
        ]

    @wraps(command)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


@final
@dataclass(frozen=True)
class PromptOptions:
    """The prompts."""

    prompts: Annotated[
        list[str] | None, typer.Argument(show_default=False, help="The prompts; - alone for the standard input.")
    ] = None
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "--input",
            help="File of prompts: one per line; .jsonl: objects with a prompt (text or chat messages); .parquet: a column.",
        ),
    ] = None
    column: Annotated[
        str | None, typer.Option(help=f"Field or column of the file that has the prompts; by default {COLUMN}.")
    ] = None

    def read(self) -> list[Prompt]:
        """Return them; see :func:`read_prompts`."""
        return read_prompts(self.prompts or [], self.file, self.column)

    def read_rows(self) -> Rows:
        """Return the columns beside each prompt, and the prompt or its error; see :func:`read_rows`."""
        return read_rows(self.prompts or [], self.file, self.column)

    def __bool__(self) -> bool:
        return bool(self.prompts) or self.file is not None


@final
@dataclass(frozen=True)
class FormatOptions:
    """The output type."""

    type_: Type = None
    schema: Schema = None
    regex: RegexOption = None
    grammar: Annotated[
        str | None,
        typer.Option(
            help=f"Output type: file of a grammar, in Lark's dialect or .gbnf, or one of {', '.join(NAMES)}, dyck-n."
        ),
    ] = None

    def read(self, *, free: bool = False) -> tuple[str, Any]:
        """Return how the command names it, and the type; see :func:`read_output_type`. One that has no language is refused."""
        name, output_type = read_output_type(self.type_, self.schema, self.regex, self.grammar, free=free)
        if output_type is not None:
            to_language(output_type)
        return name, output_type

    def __bool__(self) -> bool:
        return any(given is not None for given in (self.type_, self.schema, self.regex, self.grammar))


@final
@dataclass(frozen=True)
class SettingOptions:
    """Settings that, with the model, define the distribution of the draws."""

    temperature: Annotated[
        float | None, typer.Option(help="Divides the logits; by default the model's own, else 1.")
    ] = None
    top_k: Annotated[int | None, typer.Option(help="Truncation to the k likeliest tokens; by default none.")] = None
    top_p: Annotated[float | None, typer.Option(help="Truncation to a probability mass; by default none.")] = None
    min_p: Annotated[
        float | None, typer.Option(help="Truncation relative to the likeliest token; by default none.")
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="As in transformers; by default the model's own, else 1."),
    ] = None
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Most tokens of an output, its end included; part of the distribution."),
    ] = None

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of a call."""
        return keywords(**vars(self))


@final
@dataclass(frozen=True)
class BanOptions:
    """The banned phrases."""

    ban: Annotated[
        list[str] | None,
        typer.Option(help="Phrase that must not be written; may be given several times. No output type: free text."),
    ] = None
    ban_file: Annotated[Path | None, typer.Option(help="File of banned phrases, one per line.")] = None
    ban_ignore_case: Annotated[bool, typer.Option("--ban-ignore-case", help="Ban phrases in upper and lower case.")] = (
        False
    )
    ban_whole_word: Annotated[bool, typer.Option("--ban-whole-word", help="Ban phrases only as whole words.")] = False
    ban_across_prompt: Annotated[
        bool,
        typer.Option(
            "--ban-across-prompt/--no-ban-across-prompt",
            help="Whether a phrase counts that the prompt begins and the output ends.",
        ),
    ] = True

    def read(self, level: str | None = None) -> BannedPhrases | None:
        """Return them, to be corrected for at ``level``; ``None`` where nothing is banned."""
        phrases = list(self.ban or ())
        if self.ban_file is not None:
            try:
                phrases += map(str, BannedPhrases.from_file(self.ban_file).phrases)
            except OSError as error:
                raise UnsupportedError(
                    "Give a file with one phrase on each line: "
                    f"--ban-file {self.ban_file} cannot be read: {error.strerror}."
                ) from error
        elif not phrases:
            refuse_without(
                "--ban PHRASE or --ban-file FILE",
                "banned phrases",
                {
                    "--ban-ignore-case": self.ban_ignore_case,
                    "--ban-whole-word": self.ban_whole_word,
                    "--no-ban-across-prompt": not self.ban_across_prompt,
                    "--ban-level": level is not None,
                },
            )
            return None
        return BannedPhrases(phrases, self.ban_ignore_case, self.ban_whole_word, self.ban_across_prompt, level)


@final
@dataclass(frozen=True)
class DraftingOptions:
    """The drafts."""

    draft: Annotated[
        list[str] | None,
        typer.Option(
            **one_of("--draft", list(DRAFTERS)),
            help="What proposes tokens ahead; may be given several times, the first to ask leading.",
        ),
    ] = None
    draft_length: Annotated[
        int | None,
        typer.Option(help=f"Most tokens of a draft; {DRAFT_LENGTH} where there is one.", min=1),
    ] = None

    def read(self, particles: int | None) -> DraftOptions | None:
        """Return the drafters; ``None`` for no drafts."""
        if self.draft and particles is not None:
            raise UnsupportedError(
                "Leave one of the two out: --draft was given with --particles, which are compared token by token."
            )
        if not self.draft:
            said = {f"--draft-length {self.draft_length}": self.draft_length is not None}
            refuse_without("--draft forced", "--draft", said)
        return resolve_draft(self.draft, self.draft_length) if self.draft else None


@final
@dataclass(frozen=True)
class ModelOptions:
    """The model, and where it runs."""

    model: Annotated[
        str,
        typer.Option(
            help=f"Folder or hub name of a causal language model, a GGUF file, or the address of a vLLM server; {BUNDLED!r} for a "
            "small one."
        ),
    ] = BUNDLED
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; by default a GPU where there is one.")] = (
        None
    )
    dtype: Annotated[
        str | None, typer.Option(**one_of("--dtype", DTYPES), help="Type of the weights; by default as saved.")
    ] = None
    host: Annotated[
        str | None,
        typer.Option(**one_of("--host", HOSTS), help="By default llamacpp for a GGUF file, else transformers."),
    ] = None

    def load(self, prompts: Sequence[Prompt] = ()) -> PhiModel:
        """Return the model, which takes the ``prompts``."""
        model = load(self.model, self.device, self.dtype, self.host)
        check_chats(model, prompts)
        return model


@final
@dataclass(frozen=True)
class RayOptions:
    """The actors of Ray that draw."""

    ray: Annotated[
        bool, typer.Option("--ray", help="Draw in actors of Ray Data, into a folder: --output FOLDER, made of parts.")
    ] = False
    actors: Annotated[int | None, typer.Option(min=1, help="With --ray: actors, a model in each; by default 1.")] = None
    gpus: Annotated[
        float | None,
        typer.Option(min=0, help="With --ray: GPUs of an actor; by default 1 where the cluster has any."),
    ] = None
    parts: Annotated[
        str | None,
        typer.Option(**one_of("--parts", FORMS), help="With --ray: form of the parts; by default that of --file."),
    ] = None

    def read(self, output: Path | None, file: Path | None) -> tuple[Pool, str] | None:
        """Return the actors and the form of the parts; ``None`` without Ray."""
        if not self.ray:
            given = {"--actors": self.actors, "--gpus": self.gpus, "--parts": self.parts}
            refuse_without("--ray", "--ray", {name: value is not None for name, value in given.items()})
            return None
        if output is None:
            raise UnsupportedError(
                "Give --output FOLDER, for the parts that actors write: --ray was given without --output."
            )
        pool = Pool(actors=self.actors or 1, gpus=self.gpus)
        return pool, self.parts or ("parquet" if file is not None and file.suffix == PARQUET else "jsonl")


@final
@dataclass(frozen=True)
class CorrectionOptions:
    """Correction of the draws, and their sampler."""

    ban_level: Annotated[
        str | None,
        typer.Option(
            **one_of("--ban-level", [level for level in LEVELS if level]),
            help="Correction for what is banned; by default that of --phi, or lookahead.",
        ),
    ] = None
    phi: Annotated[
        str | None,
        typer.Option(
            **one_of("--phi", list(ESTIMATORS), meant_by),
            help="Correction.",
            show_default=f"{AutoPhi.name}; with --particles: {LocalPhi.name}; of free text: {LookaheadPhi.name}",
        ),
    ] = None
    particles: Annotated[
        int | None, typer.Option(min=1, help="Pick each draw from a population of so many particles (SMC).")
    ] = None
    resample: Annotated[
        str | None,
        typer.Option(
            **one_of("--resample", get_args(Resample)),
            help="When particles are resampled; by default never.",
        ),
    ] = None
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Draws within this total variation of the exact distribution, without rejection (--phi exact)."
        ),
    ] = None
    confidence: Annotated[
        float | None, typer.Option(help="With --tolerance: certified at this confidence; by default for certain.")
    ] = None

    def call(
        self, output_type: Any, ban: BannedPhrases | None, settings: dict[str, Any], draft: DraftOptions | None
    ) -> Call:
        """Return the call that the command makes for each batch of prompts."""
        certified = keywords(tolerance=self.tolerance, confidence=self.confidence)
        if certified and self.phi not in (None, ExactPhi.name):
            raise UnsupportedError(
                f"Leave one of the two out: --tolerance or --confidence was given with --phi {self.phi}, and draws at a certified "
                "distance come from --phi exact alone."
            )
        phi: Phi | str | Unset = ExactPhi(**certified) if certified else self.phi or Unset.UNSET
        if self.particles is None:
            refuse_without("--particles 50", "--particles", {f"--resample {self.resample}": self.resample is not None})
        resample = keywords(resample=self.resample)
        sampler = None if self.particles is None else SMC(particles=self.particles, **resample)
        particles = keywords(sampler=sampler, draft=draft)
        call = Call.of(Correction().replaced_by(phi, ban), output_type, {**settings, **particles})
        if self.particles and not isinstance(call.phi, ProposalPhi):
            names = ", ".join(name for name, each in ESTIMATORS.items() if issubclass(each, ProposalPhi))
            raise UnsupportedError(
                f"Give --phi one that particles can follow ({names}), or leave one of the two out: "
                f"phi={call.phi and call.phi.name!r} was given with --particles, and draws in a way of its own."
            )
        return call
