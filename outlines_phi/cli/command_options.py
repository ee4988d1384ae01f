"""The options that commands share: in groups, each a dataclass that reads what was given, and some by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, final, get_args, get_type_hints

import typer

from ..drafting.forced import ForcedDrafter
from ..errors import UnsupportedError
from ..guides.grammar.notation.reader import NAMES
from ..guides.phrases.banned import LEVELS, BannedPhrases
from ..phi.estimator import Phi
from ..phi.onestep import LocalPhi
from ..phi.tree.store import TreeStore
from ..plugin.call import ESTIMATORS, Call, Correction, Unset, meant_by
from ..plugin.choices import ENDS, TOKENIZATIONS, guessed
from ..plugin.drafts import DRAFTERS, DraftOptions, resolve_draft
from ..plugin.session import PhiModel
from ..plugin.types.output_types import to_language
from ..sampling.phi_options import AutoPhi, ExactPhi, LookaheadPhi
from ..sampling.resolve import DRAFT_LENGTH, sampler_for
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


def option(kind: Any, said: str, *flags: str, **more: Any) -> Any:
    """Return the type of an option of a command, of ``kind``; ``more`` as typer takes it, or of :func:`one_of`."""
    return Annotated[kind, typer.Option(*flags, help=said, **more)]


Type = option(str | None, "Output type, module:Class: pydantic, dataclass, Enum, Literal, function, ...", "--type")
Schema = option(Path | None, "Output type: file of a JSON schema.")
RegexOption = option(str | None, "Output type: regular expression.", "--regex")
Seed = option(int | None, "Same seed, same draws; by default a random one.")
Tokenization = option(
    str | None, "Tokenizations of a text that count; by default any.", **one_of("--tokenization", TOKENIZATIONS)
)
Ends = option(str | None, "open: the text begins with a member and may go on.", **one_of("--ends", ENDS))
OpenAt = option(str | None, "With --ends open: regular expression of the character after a member.")


class OptionGroup(SimpleNamespace):
    """Options that commands share: ``rows`` has the type of each, and its default where that is not ``None``."""

    rows: ClassVar[dict[str, Any]]

    def __init__(self, **given: Any) -> None:
        super().__init__(**{name: default for name, (_, default) in self.parameters().items()} | given)

    @classmethod
    def parameters(cls) -> dict[str, tuple[Any, Any]]:
        """Return the type and the default of each option, by name."""
        return {name: row if isinstance(row, tuple) else (row, None) for name, row in cls.rows.items()}


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
    groups = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, OptionGroup)}
    types: dict[str, tuple[Any, Any]] = {}
    for name, parameter in signature(command).parameters.items():
        types |= groups[name].parameters() if name in groups else {name: (kinds[name], parameter.default)}

    @wraps(command)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{option: given.pop(option) for option in group.rows})
        command(**given)

    only = Parameter.KEYWORD_ONLY
    parameters = [Parameter(name, only, default=default, annotation=kind) for name, (kind, default) in types.items()]
    called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {name: kind for name, (kind, _) in types.items()}
    return called


@final
class PromptOptions(OptionGroup):
    """The prompts."""

    rows: ClassVar[dict[str, Any]] = {
        "prompts": Annotated[
            list[str] | None, typer.Argument(show_default=False, help="The prompts; - alone for the standard input.")
        ],
        "file": option(
            Path | None,
            "File of prompts: one per line; .jsonl: objects with a prompt (text or chat messages); .parquet: a column.",
            "--file",
            "--input",
        ),
        "column": option(str | None, f"Field or column of the file that has the prompts; by default {COLUMN}."),
    }

    def read(self) -> list[Prompt]:
        """Return them; see :func:`read_prompts`."""
        return read_prompts(self.prompts or [], self.file, self.column)

    def read_rows(self) -> Rows:
        """Return the columns beside each prompt, and the prompt or its error; see :func:`read_rows`."""
        return read_rows(self.prompts or [], self.file, self.column)

    def __bool__(self) -> bool:
        return bool(self.prompts) or self.file is not None


@final
class FormatOptions(OptionGroup):
    """The output type."""

    rows: ClassVar[dict[str, Any]] = {
        "type_": Type,
        "schema": Schema,
        "regex": RegexOption,
        "grammar": option(
            str | None,
            f"Output type: file of a grammar, in Lark's dialect or .gbnf, or one of {', '.join(NAMES)}, dyck-n.",
        ),
    }

    def read(self, *, free: bool = False) -> tuple[str, Any]:
        """Return the command's name of the type, and the type; see :func:`read_output_type`. One without a language is refused."""
        name, output_type = read_output_type(self.type_, self.schema, self.regex, self.grammar, free=free)
        if output_type is not None:
            to_language(output_type)
        return name, output_type

    def __bool__(self) -> bool:
        return any(given is not None for given in (self.type_, self.schema, self.regex, self.grammar))


@final
class SettingOptions(OptionGroup):
    """Settings that, with the model, define the distribution of the draws."""

    rows: ClassVar[dict[str, Any]] = {
        "temperature": option(float | None, "Divides the logits; by default the model's own, else 1."),
        "top_k": option(int | None, "Truncation to the k likeliest tokens; by default none."),
        "top_p": option(float | None, "Truncation to a probability mass; by default none."),
        "min_p": option(float | None, "Truncation relative to the likeliest token; by default none."),
        "repetition_penalty": option(float | None, "As in transformers; by default the model's own, else 1."),
        "max_new_tokens": option(int | None, "Most tokens of an output, its end included; part of the distribution."),
    }

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of a call."""
        return keywords(**vars(self))


@final
class BanOptions(OptionGroup):
    """The banned phrases."""

    rows: ClassVar[dict[str, Any]] = {
        "ban": option(
            list[str] | None,
            "Phrase that must not be written; may be given several times. No output type: free text.",
        ),
        "ban_file": option(Path | None, "File of banned phrases, one per line."),
        "ban_ignore_case": (option(bool, "Ban phrases in upper and lower case.", "--ban-ignore-case"), False),
        "ban_whole_word": (option(bool, "Ban phrases only as whole words.", "--ban-whole-word"), False),
        "ban_across_prompt": (
            option(
                bool,
                "Whether a phrase counts that the prompt begins and the output ends.",
                "--ban-across-prompt/--no-ban-across-prompt",
            ),
            True,
        ),
    }

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
class DraftingOptions(OptionGroup):
    """The drafts."""

    rows: ClassVar[dict[str, Any]] = {
        "draft": option(
            list[str] | None,
            "What proposes tokens ahead; may be given several times, the first to ask leading.",
            **one_of("--draft", list(DRAFTERS)),
        ),
        "draft_length": option(int | None, f"Most tokens of a draft; {DRAFT_LENGTH} where there is one.", min=1),
    }

    def read(self) -> DraftOptions | None:
        """Return the drafters; ``None`` for no drafts."""
        if not self.draft:
            said = {f"--draft-length {self.draft_length}": self.draft_length is not None}
            refuse_without("--draft forced", "--draft", said)
        return resolve_draft(self.draft, self.draft_length) if self.draft else None


@final
class ModelOptions(OptionGroup):
    """The model, and where it runs."""

    rows: ClassVar[dict[str, Any]] = {
        "model": (
            option(
                str,
                "Folder or hub name of a causal language model, a GGUF file, or the address of a vLLM server; "
                f"{BUNDLED!r} for a small one.",
            ),
            BUNDLED,
        ),
        "device": option(str | None, "cpu, cuda, cuda:1, ...; by default a GPU where there is one."),
        "dtype": option(str | None, "Type of the weights; by default as saved.", **one_of("--dtype", DTYPES)),
        "host": option(
            str | None, "By default llamacpp for a GGUF file, else transformers.", **one_of("--host", HOSTS)
        ),
    }

    def load(self, prompts: Sequence[Prompt] = ()) -> PhiModel:
        """Return the model, which takes the ``prompts``."""
        model = load(self.model, self.device, self.dtype, self.host)
        check_chats(model, prompts)
        return model


@final
class RayOptions(OptionGroup):
    """The actors of Ray that draw."""

    rows: ClassVar[dict[str, Any]] = {
        "ray": (
            option(bool, "Draw in actors of Ray Data, into a folder: --output FOLDER, made of parts.", "--ray"),
            False,
        ),
        "actors": option(int | None, "With --ray: actors, a model in each; by default 1.", min=1),
        "gpus": option(float | None, "With --ray: GPUs of an actor; by default 1 where the cluster has any.", min=0),
        "parts": option(
            str | None, "With --ray: form of the parts; by default that of --file.", **one_of("--parts", FORMS)
        ),
    }

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
class CorrectionOptions(OptionGroup):
    """Correction of the draws, and their sampler."""

    rows: ClassVar[dict[str, Any]] = {
        "ban_level": option(
            str | None,
            "Correction for what is banned; by default that of --phi, or lookahead.",
            **one_of("--ban-level", [level for level in LEVELS if level]),
        ),
        "phi": option(
            str | None,
            "Correction.",
            **one_of("--phi", list(ESTIMATORS), meant_by),
            show_default=f"{AutoPhi.name}; with --particles: {LocalPhi.name}; of free text: {LookaheadPhi.name}",
        ),
        "particles": option(int | None, "Pick each draw from a population of so many particles (SMC).", min=1),
        "resample": option(
            str | None, "When particles are resampled; by default never.", **one_of("--resample", get_args(Resample))
        ),
        "tolerance": option(
            float | None,
            "Draws within this total variation of the exact distribution, without rejection (--phi exact).",
        ),
        "confidence": option(float | None, "With --tolerance: certified at this confidence; by default for certain."),
    }

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
        call = Call.of(
            Correction().replaced_by(phi, ban), output_type, {**settings, **keywords(sampler=sampler, draft=draft)}
        )
        try:
            sampler_for(call.phi or LocalPhi(), TreeStore(0), sampler, draft and ForcedDrafter())
        except UnsupportedError as error:
            raise UnsupportedError(f"{error} The option --particles gives sampler=SMC(...).") from error
        return call
