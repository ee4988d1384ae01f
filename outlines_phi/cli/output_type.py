"""The output type of a command: a schema in a file, a type in a module, or a regular expression."""

from __future__ import annotations

import difflib
import importlib
import sys
from pathlib import Path
from typing import Any

from outlines.types import Regex

from ..errors import GrammarError, UnsupportedError
from ..plugin.output_types import to_json

EXPECTED = "Give exactly one of --type module:Class, --schema FILE.json and --regex PATTERN."


FREE = "free text"
"""How a command names what has no output type."""


def read_output_type(
    named: str | None, schema: Path | None, regex: str | None, *, free: bool = False
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
    free
        Whether there may be none, because phrases are banned; the type is ``None`` then.

    Raises
    ------
    UnsupportedError
        Not exactly one of the three, a file that cannot be read, or a name that cannot be imported.
    GrammarError
        A schema that is not one; points into the file.
    """
    given = {"--type": named, "--schema": schema, "--regex": regex}
    chosen = [option for option, value in given.items() if value is not None]
    if free and not chosen:
        return FREE, None
    if len(chosen) != 1:
        raise UnsupportedError(
            f"{' and '.join(chosen)} were given as output type. {EXPECTED}" if chosen else f"No output type. {EXPECTED}"
        )
    if schema is not None:
        return f"--schema {schema}", _schema(schema)
    if regex is not None:
        return f"--regex {regex}", Regex(regex)
    return f"--type {named}", _imported(str(named))


def _schema(schema: Path) -> Any:
    try:
        return to_json(_text(schema), None)
    except GrammarError as error:
        said = str(error) if error.position is None else str(error).split("\n")[0]
        raise GrammarError(f"--schema {schema}: {said}", error.source, error.position) from error
    except RecursionError as error:
        raise UnsupportedError(f"--schema {schema} is nested too deeply to be read.") from error


def _text(schema: Path) -> str:
    try:
        return schema.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UnsupportedError(f"--schema {schema} cannot be read: {error.strerror}. Give a JSON file.") from error
    except UnicodeDecodeError as error:
        raise UnsupportedError(f"--schema {schema} is not UTF-8: {error.reason}. Save it as UTF-8.") from error


def _imported(named: str) -> Any:
    module_name, _, path = named.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise UnsupportedError(
            f"--type {named} was given; expected module:Class, such as schemas:Person for the class Person of schemas.py in the "
            "working folder, builtins:int, or outlines.types:email."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        found = importlib.import_module(module_name)
    except Exception as error:  # a module that is imported runs, and may raise anything
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
