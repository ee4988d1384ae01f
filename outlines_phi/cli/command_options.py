"""The options that commands share: tables of them, and what reads those that were given."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from inspect import Parameter, Signature, signature
from os.path import isfile, samefile
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, final, get_args, get_type_hints

import typer

from ..drafting.forced import ForcedDrafter
from ..errors import UnsupportedError
from ..guides.grammar.notation.reader import NAMES
from ..guides.phrases.banned import LEVELS, BannedPhrases
from ..phi.estimator import LocalPhi, Phi
from ..phi.tree.evaluator import TreeStore
from ..plugin.call import ESTIMATORS, Call, CallOptions, Correction, Unset, meant_by
from ..plugin.choices import OPTIONS, STOPS, guessed
from ..plugin.drafts import DRAFTERS, resolve_draft
from ..plugin.session import PhiModel
from ..plugin.types.output_types import to_language
from ..sampling.ancestral import SMC, Resample
from ..sampling.phi_options import AutoPhi, ExactPhi, LookaheadPhi
from ..sampling.resolve import sampler_for
from ..sampling.sampler import DRAFT_LENGTH, Prefetch
from ..settings import SamplingSettings
from .actors import FORMS, Pool
from .inputs import (
    BUNDLED,
    COLUMN,
    DTYPES,
    HOSTS,
    PARQUET,
    Prompt,
    check_chats,
    load,
    read_output_type,
    read_prompts,
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


def of_call(name: str) -> Any:
    """Return the type of the option of a call that :data:`~outlines_phi.plugin.choices.OPTIONS` has under a name."""
    row = OPTIONS[name]
    return option(row.kind | None, row.said, **(one_of(f"--{name}", row.names) if row.names else {}))


Seed = of_call("seed")


def refuse_without(remedy: str, without: str, given: dict[str, bool]) -> None:
    """Refuse the options that were given, which say nothing without others."""
    if useless := [option for option, is_given in given.items() if is_given]:
        raise UnsupportedError(f"Give {remedy}, or leave it out: {', '.join(useless)} was given without {without}.")


Rows = dict[str, Any]  # By the names of options: the type of each, and its default where that is not `None`

PROMPTS: Rows = {
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
FORMAT: Rows = {
    "type_": Type,
    "schema": Schema,
    "regex": RegexOption,
    "grammar": option(
        str | None,
        f"Output type: file of a grammar, in Lark's dialect or .gbnf, or one of {', '.join(NAMES)}, dyck-n.",
    ),
}
SETTINGS: Rows = {field.name: of_call(field.name) for field in fields(SamplingSettings) if field.name != "seed"}
TEXTS: Rows = {name: of_call(name) for name in ("tokenization", "ends", "open_at", *STOPS)}
ACCOUNTS: Rows = {
    "tokens": (option(bool, OPTIONS["tokens"].said, "--tokens"), False),
    "top": of_call("top"),
}
BANS: Rows = {
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
NO_DRAFTS = "none"  # The name that asks for no drafts, which `draft=[]` does elsewhere

DRAFTS: Rows = {
    "draft": option(
        list[str] | None,
        f"What proposes tokens ahead; may be given several times, the first to ask leading; {NO_DRAFTS}: nothing does.",
        **one_of("--draft", [*DRAFTERS, NO_DRAFTS]),
    ),
    "draft_length": option(int | None, f"Most tokens of a draft; {DRAFT_LENGTH} where there is one.", min=1),
}
MODEL: Rows = {
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
    "host": option(str | None, "By default llamacpp for a GGUF file, else transformers.", **one_of("--host", HOSTS)),
}
RAY: Rows = {
    "ray": (option(bool, "Draw in actors of Ray Data, into a folder: --output FOLDER, made of parts.", "--ray"), False),
    "actors": option(int | None, "With --ray: actors, a model in each; by default 1.", min=1),
    "gpus": option(float | None, "With --ray: GPUs of an actor; by default 1 where the cluster has any.", min=0),
    "parts": option(
        str | None, "With --ray: form of the parts; by default that of --file.", **one_of("--parts", FORMS)
    ),
}
CORRECTION: Rows = {
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


@final
class Given(SimpleNamespace):
    """The options of a command that are in the tables above, by name."""

    def read_prompts(self) -> list[Prompt]:
        """Return the prompts; see :func:`read_prompts`."""
        return read_prompts(self.prompts or [], self.file, self.column)

    def read_type(self, *, free: bool = False) -> tuple[str, Any]:
        """Return the command's name of the type, and the type; see :func:`read_output_type`. One without a language is refused."""
        name, output_type = read_output_type(self.type_, self.schema, self.regex, self.grammar, free=free)
        if output_type is not None:
            to_language(output_type)
        return name, output_type

    def spare_inputs(self, outputs: Sequence[Path | None]) -> None:
        """Refuse to write over a file that the command reads: its prompts, phrases, or what has the output type."""
        module, _, _ = (getattr(self, "type_", None) or "").partition(":")
        sources = {
            name: getattr(self, name.replace("-", "_"), None) for name in ("file", "schema", "grammar", "ban-file")
        }
        for name, source in {**sources, "type": f"{module.replace('.', '/')}.py"}.items():
            if any(one and isfile(one) and source and isfile(source) and samefile(one, source) for one in outputs):
                raise UnsupportedError(
                    f"Give another --output: {source} is the file of --{name}, which this command reads."
                )

    def keywords(self, **others: Any) -> dict[str, Any]:
        """Return the keywords of a call, checked: the settings that were given, and those of ``others`` that are not ``None``."""
        given = {name: getattr(self, name, None) for name in (*SETTINGS, *TEXTS, *ACCOUNTS)} | others
        found = {name: value for name, value in given.items() if value is not None}
        CallOptions.read(found, None)
        return found

    def read_ban(self, level: str | None = None) -> BannedPhrases | None:
        """Return the banned phrases, to be corrected for at ``level``; ``None`` where nothing is banned."""
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

    def load(self, prompts: Sequence[Prompt] = ()) -> PhiModel:
        """Return the model, which takes the ``prompts``."""
        model = load(self.model, self.device, self.dtype, self.host)
        check_chats(model, prompts)
        return model

    def pool(self, output: Path | None) -> tuple[Pool, str] | None:
        """Return the actors and the form of the parts; ``None`` without Ray."""
        if not self.ray:
            given = {"--actors": self.actors, "--gpus": self.gpus, "--parts": self.parts}
            refuse_without("--ray", "--ray", {name: value is not None for name, value in given.items()})
            return None
        if output is None:
            raise UnsupportedError(
                "Give --output FOLDER, for the parts that actors write: --ray was given without --output."
            )
        usual = "parquet" if self.file is not None and self.file.suffix == PARQUET else "jsonl"
        return Pool(actors=self.actors or 1, gpus=self.gpus), self.parts or usual

    def call(self, output_type: Any, ban: BannedPhrases | None) -> Call:
        """Return the call that the command makes for each batch of prompts."""
        certified = {
            name: getattr(self, name) for name in ("tolerance", "confidence") if getattr(self, name) is not None
        }
        if certified and self.phi not in (None, ExactPhi.name):
            raise UnsupportedError(
                f"Leave one of the two out: --tolerance or --confidence was given with --phi {self.phi}, and draws at a certified "
                "distance come from --phi exact alone."
            )
        phi: Phi | str | Unset = ExactPhi(**certified) if certified else self.phi or Unset.UNSET
        if self.particles is None:
            refuse_without("--particles 50", "--particles", {f"--resample {self.resample}": self.resample is not None})
        if not self.draft:
            refuse_without(
                "--draft forced", "--draft", {f"--draft-length {self.draft_length}": self.draft_length is not None}
            )
        resample = {} if self.resample is None else {"resample": self.resample}
        sampler = None if self.particles is None else SMC(particles=self.particles, **resample)
        drafters = [name for name in self.draft or () if name != NO_DRAFTS]
        if drafters and drafters != self.draft:
            raise UnsupportedError(
                f"Leave --draft {NO_DRAFTS} out, or the others. It asks for no drafts, and {', '.join(drafters)} was given too."
            )
        draft = resolve_draft(drafters, self.draft_length) if self.draft else None
        keywords = self.keywords(sampler=sampler, draft=draft)
        call = Call.of(Correction().replaced_by(phi, ban), output_type, keywords)
        try:
            sampler_for(call.phi or LocalPhi(), TreeStore(0), sampler, Prefetch(ForcedDrafter()) if drafters else None)
        except UnsupportedError as error:
            raise UnsupportedError(f"{error} The option --particles gives sampler=SMC(...).") from error
        return call


def taking(*tables: Rows) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator of a command whose first argument is the :class:`Given` of the options of some tables."""
    rows = {name: row if isinstance(row, tuple) else (row, None) for table in tables for name, row in table.items()}

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        kinds = get_type_hints(command, include_extras=True)
        own = {name: (kinds[name], one.default) for name, one in signature(command).parameters.items()}
        types = rows | {name: row for name, row in own.items() if name != "given"}

        @wraps(command)
        def called(**values: Any) -> None:
            given, output = Given(**{name: values.pop(name) for name in rows}), values.get("output")
            given.spare_inputs(output if isinstance(output, list) else [output])
            command(given, **values)

        only = Parameter.KEYWORD_ONLY
        parameters = [Parameter(name, only, default=value, annotation=kind) for name, (kind, value) in types.items()]
        called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {name: kind for name, (kind, _) in types.items()}
        return called

    return decorated
