"""The options that commands share: the model, the output type, the prompts, and what defines the law."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from ...errors import UnsupportedError
from ...guides.grammar.library import NAMES
from ...guides.phrases.banned import LEVELS
from ...phi.estimators.auto import AutoPhi
from ...phi.estimators.local import LocalPhi
from ...phi.estimators.lookahead import LookaheadPhi
from ...plugin.drafts import DRAFTERS
from ...plugin.options import ESTIMATORS, TOKENIZATIONS
from ...sampling.resolve import DRAFT_LENGTH
from ...sampling.smc.smc import Resample
from .model import BUNDLED, Dtype


def one_of(option: str, names: Sequence[str]) -> dict[str, Any]:
    """Return what makes an option, given once or several times, take some names alone, and show them."""

    def check(value: Any) -> Any:
        for given in value if isinstance(value, list) else [value]:
            if given is not None and given not in names:
                near = get_close_matches(given, names, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise UnsupportedError(f"{option} {given} was given{hint}; expected one of {', '.join(names)}.")
        return value

    return {"callback": check, "metavar": f"<{'|'.join(names)}>"}


Prompts = Annotated[
    list[str] | None, typer.Argument(show_default=False, help="The prompts; - alone for the standard input.")
]
File = Annotated[
    Path | None,
    typer.Option(help="File of prompts: one per line; .jsonl: objects with a prompt (text or chat messages)."),
]
Model = Annotated[
    str,
    typer.Option(help=f"Folder or hub name of a Hugging Face causal language model; {BUNDLED!r} for the small one."),
]
Type = Annotated[
    str | None,
    typer.Option("--type", help="Output type, module:Class: pydantic, dataclass, Enum, Literal, function, ..."),
]
Schema = Annotated[Path | None, typer.Option(help="Output type: file of a JSON schema.")]
RegexOption = Annotated[str | None, typer.Option("--regex", help="Output type: regular expression.")]
GrammarOption = Annotated[
    str | None,
    typer.Option(
        "--grammar", help=f"Output type: file of a grammar in Lark's dialect, or one of {', '.join(NAMES)}, dyck-n."
    ),
]
Temperature = Annotated[float | None, typer.Option(help="Divides the logits; by default the model's own, else 1.")]
TopK = Annotated[int | None, typer.Option("--top-k", help="Truncation to the k likeliest tokens; by default none.")]
TopP = Annotated[float | None, typer.Option("--top-p", help="Truncation to a probability mass; by default none.")]
MinP = Annotated[
    float | None, typer.Option("--min-p", help="Truncation relative to the likeliest token; by default none.")
]
Repetition = Annotated[
    float | None, typer.Option("--repetition-penalty", help="As in transformers; by default the model's own, else 1.")
]
MaxNewTokens = Annotated[
    int | None, typer.Option("--max-new-tokens", help="Most tokens of an output, its end included; part of the law.")
]
Seed = Annotated[int | None, typer.Option(help="Same seed, same draws; by default a random one.")]
Ban = Annotated[
    list[str] | None,
    typer.Option(
        "--ban", help="Phrase that must not be written; may be given several times. No output type: free text."
    ),
]
BanFile = Annotated[Path | None, typer.Option("--ban-file", help="File of banned phrases, one per line.")]
BanIgnoreCase = Annotated[bool, typer.Option("--ban-ignore-case", help="Ban phrases in upper and lower case.")]
BanWholeWord = Annotated[bool, typer.Option("--ban-whole-word", help="Ban phrases only as whole words.")]
BanAcrossPrompt = Annotated[
    bool,
    typer.Option(
        "--ban-across-prompt/--no-ban-across-prompt",
        help="Whether a phrase counts that the prompt begins and the output ends.",
    ),
]
BanLevel = Annotated[
    str | None,
    typer.Option(
        "--ban-level",
        **one_of("--ban-level", [level for level in LEVELS if level]),
        help="Correction for what is banned; by default that of --phi, or lookahead.",
    ),
]
Draft = Annotated[
    list[str] | None,
    typer.Option(
        "--draft",
        **one_of("--draft", list(DRAFTERS)),
        help="What proposes tokens ahead; may be given several times, the first to ask leading.",
    ),
]
DraftLength = Annotated[
    int | None,
    typer.Option("--draft-length", help=f"Most tokens of a draft; {DRAFT_LENGTH} where there is one.", min=1),
]
PhiOption = Annotated[
    str | None,
    typer.Option(
        "--phi",
        **one_of("--phi", list(ESTIMATORS)),
        help="Correction.",
        show_default=f"{AutoPhi.name}; with --particles: {LocalPhi.name}; of free text: {LookaheadPhi.name}",
    ),
]
Particles = Annotated[
    int | None, typer.Option(min=1, help="Pick each draw from a population of so many particles (SMC).")
]
ResampleOption = Annotated[
    str | None,
    typer.Option(
        "--resample",
        **one_of("--resample", get_args(Resample)),
        help="When particles are resampled; by default never.",
    ),
]
Tokenization = Annotated[
    str | None,
    typer.Option(
        **one_of("--tokenization", TOKENIZATIONS), help="Spellings of a text by tokens that count; by default any."
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(help="Draws within this total variation of the exact law, without rejection (--phi exact)."),
]
Confidence = Annotated[
    float | None, typer.Option(help="With --tolerance: certified at this confidence; by default for certain.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; by default a GPU where there is one.")]
DtypeOption = Annotated[Dtype | None, typer.Option("--dtype", help="Type of the weights; by default as saved.")]


def keywords(**given: Any) -> dict[str, Any]:
    """Return the keywords of a call: the options that were given."""
    return {name: value for name, value in given.items() if value is not None}
