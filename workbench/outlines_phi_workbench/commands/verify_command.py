"""``outlines-phi verify``: what a grammar's masks promise, checked against the definition."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import typer
from outlines.types import JsonSchema
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlines_phi import UnsupportedError, Vocabulary
from outlines_phi.cli.app import FAILED, Debug
from outlines_phi.cli.command_options import Given, taking
from outlines_phi.cli.inputs import load_tokenizer
from outlines_phi.cli.terminal import bar
from outlines_phi.guides import CFGGuide, JSONGuide, read_grammar
from outlines_phi.guides.grammar.grammar import Grammar
from outlines_phi.guides.grammar.notation.reader import grammar_text
from outlines_phi.numerics.cache import write_atomically
from outlines_phi.numerics.checks import counted
from outlines_phi.plugin.types.output_types import GrammarText, GuidanceText, JSONText, ThinkingText, to_language

from ..verification.certificate import certificate as certify
from ..verification.subject import MEANINGS, Subject, Verdict
from ..verification.verification import CHECKS, MOST, Verification
from ..verification.verification import verify as run_checks
from . import SUBJECT

COLORS = {
    Verdict.EXHAUSTIVE: "green",
    Verdict.BOUNDED: "cyan",
    Verdict.COUNTEREXAMPLE: "bold red",
    Verdict.NOT_NEEDED: "dim",
}
"""Of the verdicts."""


@taking(SUBJECT)
def verify(
    given: Given,
    depth: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens of words, however many there are; by default as --most allows."),
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Most pairs of states where no --depth is asked for.")] = MOST,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    certificate: Annotated[
        Path | None, typer.Option(help="File for a certificate of a grammar's masks, which a proven program checks.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Check the masks of a grammar against the definition.

    Every statement has a verdict: EXHAUSTIVE, BOUNDED, or COUNTEREXAMPLE with a shortest witness, which is exit status 1. PROVED is
    said by the program that checks a --certificate alone.
    """
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(given.tokenizer))
    with bar("reading", len(CHECKS)) as progress:
        limits = {"depth": depth, "most": None if depth else most}
        name, subject = read_subject(given, vocabulary, **limits)
        if certificate is not None:
            if not isinstance(subject.guide, CFGGuide):
                raise UnsupportedError("Give a grammar, or leave --certificate out. Certificates are of grammars.")
            # Before the checks run, so that what is refused costs little.
            write_atomically(certificate.resolve(), (json.dumps(certify(subject.guide)) + "\n").encode())
        found = run_checks(
            subject, lambda check: progress.move(CHECKS.index(check), description=f"{check.id} {check.statement}")
        )
    if as_json:
        typer.echo(
            json.dumps({"subject": name, "tokenizer": given.tokenizer, **found.as_dict()}, indent=2, ensure_ascii=False)
        )
    else:
        print_verification(name, found, Console(highlight=False))
    if not found.holds:
        raise typer.Exit(FAILED)


def read_subject(given: Given, vocabulary: Vocabulary, **options: Any) -> tuple[str, Subject]:
    """Return the name of what is verified, and its subject; ``options`` are other attributes of that."""
    name, output_type = given.read_type()
    match language := to_language(output_type):
        case GrammarText(text):
            return name, Subject.of_grammar(read_grammar(text), vocabulary, text, **options)
        case Grammar():
            source = None if given.grammar is None else _text_in_lark(given.grammar)
            return given.grammar or name, Subject.of_grammar(language, vocabulary, source, **options)
        case GuidanceText() | ThinkingText():
            raise UnsupportedError(
                "Give its parts, as regular expressions or JSON schemas. What the masks of a guidance grammar promise, or those "
                "of thoughts, is not verified by this command."
            )
        case JSONText():
            fault = _validator(output_type) if isinstance(output_type, JsonSchema) else None
            guide = language.guide(vocabulary)
            assert isinstance(guide, JSONGuide)  # what is read here has no other part
            return name, Subject.of_json(guide, fault=fault, **options)
    return name, Subject.of_pattern(language, vocabulary, **options)


def _text_in_lark(grammar: str) -> str | None:
    """Return the text of a grammar that the command was given; ``None`` where it is in GBNF."""
    path = Path(grammar)
    if path.suffix == ".gbnf":
        return None
    return path.read_text(encoding="utf-8-sig") if path.exists() or path.suffix else grammar_text(grammar)


def _validator(schema: JsonSchema) -> Callable[[bytes], str | None]:
    read = json.loads(schema.schema)
    validator = jsonschema.validators.validator_for(read)(read)

    def fault(text: bytes) -> str | None:
        try:
            value = json.loads(text)
        except ValueError as error:
            return f"is no JSON: {error}"
        wrong = next(validator.iter_errors(value), None)
        return None if wrong is None else f"jsonschema: {wrong.message}"

    return fault


def print_verification(name: str, found: Verification, console: Console) -> None:
    """Print a row for every check, and under it the witness of a statement that does not hold."""
    subject, exploration = found.subject, found.subject.exploration
    reach = "any number of tokens" if exploration.closed else f"at most {counted(exploration.complete, 'token')}"
    covered = f"all words of {reach}: {len(exploration.nodes):,} pairs of states"
    console.print(Text.assemble((name, "bold"), f": {len(subject.guide.vocabulary):,} tokens; {covered}"))
    if subject.depth is None and not exploration.closed:
        more = counted(exploration.complete + 1, "token")
        console.print(
            Text(f"Those of {more} lead to more than --most {subject.most:,}; --depth tries them all.", "yellow")
        )
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title, justify in (("", "left"), ("check", "left"), ("verdict", "left"), ("cases", "right"), ("", "left")):
        table.add_column(title, justify=justify, no_wrap=title == "verdict")  # type: ignore[arg-type]
    for result in found.results:
        finding = result.finding
        bound = f"({finding.bound})" if finding.bound is not None and finding.verdict is Verdict.BOUNDED else ""
        said = "; ".join(filter(None, (finding.witness, finding.remark)))
        table.add_row(
            result.check.id,
            result.check.statement,
            Text(finding.verdict.value + bound, COLORS[finding.verdict]),
            f"{finding.cases:,}",
            Text(said, "red" if finding.verdict is Verdict.COUNTEREXAMPLE else "dim"),
        )
    console.print(table)
    console.print(Text("\nWhat the rows say (S: assumptions, T: theorems), and the verdicts", "bold"))
    legend = Table.grid(padding=(0, 2, 0, 0))
    for result in found.results:
        legend.add_row("", result.check.id, Text(result.check.meaning))
    for verdict in dict.fromkeys(result.finding.verdict for result in found.results):
        legend.add_row("", Text(verdict.value, COLORS[verdict]), Text(MEANINGS[verdict]))
    console.print(legend, "")
    wrong = [result.check.id for result in found.results if result.finding.verdict is Verdict.COUNTEREXAMPLE]
    said = f"Counterexamples to {', '.join(wrong)}." if wrong else "No counterexample."
    console.print(Text(said, "bold red" if wrong else "bold green"))
