"""The output type of a command: a schema or a grammar in a file, a type in a module, or a regular expression."""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

from outlines.types import CFG, Regex

from ...errors import GrammarError, GrammarWarning, UnsupportedError
from ...guides.grammar.notation.reader import NAMES, grammar_text, read_grammar
from ...plugin.types.output_types import to_json

EXPECTED = "Give exactly one of --type module:Class, --schema FILE.json, --regex PATTERN and --grammar FILE.lark."


FREE = "free text"
"""How a command names what has no output type."""


def read_output_type(
    named: str | None, schema: Path | None, regex: str | None, grammar: str | None = None, *, free: bool = False
) -> tuple[str, Any]:
    """Return how the command names its output type, and the type.

    Parameters
    ----------
    named
        ``module:Class``: whatever Outlines takes, in a module that can be imported; the working folder is on the path.
    schema
        A file with a JSON schema.
    regex
        A regular expression.
    grammar
        A file with a grammar in Lark's dialect, or the name of one that comes with the package.
    free
        Whether there may be none, because phrases are banned; the type is ``None`` then.

    Raises
    ------
    UnsupportedError
        Not exactly one of them, a file that cannot be read, or a name that cannot be imported.
    GrammarError
        A schema or a grammar that is not one; points into the file.
    """
    given = {"--type": named, "--schema": schema, "--regex": regex, "--grammar": grammar}
    chosen = [option for option, value in given.items() if value is not None]
    if free and not chosen:
        return FREE, None
    if len(chosen) != 1:
        raise UnsupportedError(
            f"{EXPECTED} {' and '.join(chosen)} were given." if chosen else f"{EXPECTED} No output type was given."
        )
    if schema is not None:
        return f"--schema {schema}", _schema(schema)
    if regex is not None:
        return f"--regex {regex}", Regex(regex)
    if grammar is not None:
        return f"--grammar {grammar}", _grammar(grammar)
    return f"--type {named}", _imported(str(named))


def _schema(schema: Path) -> Any:
    try:
        return to_json(_text(schema, f"--schema {schema}", "a JSON file"), None)
    except GrammarError as error:
        said = str(error) if error.position is None else str(error).split("\n")[0]
        raise GrammarError(f"--schema {schema}: {said}", error.source, error.position) from error
    except RecursionError as error:
        raise UnsupportedError(
            f"Give a schema of fewer levels: --schema {schema} is nested too deeply to be read."
        ) from error


def _grammar(grammar: str) -> CFG:
    text = read_grammar_text(grammar, f"--grammar {grammar}")
    try:
        with warnings.catch_warnings():  # they come when it is compiled
            warnings.simplefilter("ignore", GrammarWarning)
            read_grammar(text)
    except GrammarError as error:
        said = str(error) if error.position is None else str(error).split("\n")[0]
        raise GrammarError(f"--grammar {grammar}: {said}", error.source, error.position) from error
    return CFG(text)


def read_grammar_text(grammar: str, given: str) -> str:
    """Return the text of a file in Lark's dialect, or of a grammar that is shipped; ``given`` is what to call it in a message."""
    path = Path(grammar)
    if path.suffix != ".lark" and not path.exists():
        return grammar_text(grammar)
    return _text(path, given, f"a file in Lark's dialect, or one of {', '.join(NAMES)} and dyck-n")


def _text(path: Path, given: str, expected: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UnsupportedError(f"Give {expected}: {given} cannot be read, {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UnsupportedError(f"Save the file as UTF-8: {given} is not UTF-8, {error.reason}.") from error


def _imported(named: str) -> Any:
    module_name, _, path = named.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise UnsupportedError(
            "Give module:Class, such as schemas:Person for the class Person of schemas.py in the working folder, builtins:int, or "
            f"outlines.types:email; --type {named} was given."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        found = importlib.import_module(module_name)
    except KeyboardInterrupt:  # of whoever waits for the module
        raise
    except BaseException as error:  # a module that is imported runs, and may raise anything, SystemExit too
        raise UnsupportedError(
            f"--type {named}: the module {module_name} cannot be imported: {type(error).__name__}: {error}. Modules are looked "
            f"for in the working folder and among the installed ones."
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            near = difflib.get_close_matches(name, dir(found), n=3)
            hint = f" Is {' or '.join(near)} meant?" if near else ""
            raise UnsupportedError(f"--type {named}: {found!r:.80} has no {name}.{hint}")
        found = getattr(found, name)
    return found
