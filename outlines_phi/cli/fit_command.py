"""``outlines-phi fit``: how well output types fit what a model writes by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UnsupportedError
from ..plugin.call import CallOptions
from ..plugin.generator import LINE, Generator
from .app import Debug
from .command_options import ModelOptions, PromptOptions, SettingOptions, Tokenization, grouped, keywords
from .inputs import model_input, read_output_type


@grouped
def fit(
    inputs: PromptOptions,
    source: ModelOptions,
    sampling: SettingOptions,
    type_: Annotated[
        list[str] | None, typer.Option("--type", help="Output type, module:Class; again for each.")
    ] = None,
    schema: Annotated[list[Path] | None, typer.Option(help="File of a JSON schema; again for each.")] = None,
    regex: Annotated[list[str] | None, typer.Option(help="Regular expression; again for each.")] = None,
    grammar: Annotated[list[str] | None, typer.Option(help="Grammar, as generate takes it; again for each.")] = None,
    tokenization: Tokenization = None,
    line: Annotated[
        int, typer.Option(min=1, help="Tokens of the line that the model writes by itself, at most.")
    ] = LINE,
    debug: Debug = False,
) -> None:
    """Measure the fit of output types to the model's own texts after each prompt, and advise.

    log Phi, the likeliest first tokens outside of each type and in it, and the line of greedy decoding without a type.
    """
    given = inputs.read()
    forms = [
        *(read_output_type(named, None, None) for named in type_ or ()),
        *(read_output_type(None, file, None) for file in schema or ()),
        *(read_output_type(None, None, pattern) for pattern in regex or ()),
        *(read_output_type(None, None, None, name) for name in grammar or ()),
    ]
    if not forms:
        raise UnsupportedError(
            "Give at least one of --type, --schema, --regex and --grammar, each as often as wanted: no output type was given."
        )
    settings = sampling.keywords() | keywords(tokenization=tokenization)
    CallOptions.read(settings, None)
    (_, first), *others = forms
    asked = [model_input(prompt) for prompt in given]
    typer.echo(Generator(source.load(given), first).fit(asked, [form for _, form in others], tokens=line, **settings))
