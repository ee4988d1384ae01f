"""The files that a grammar in Lark's dialect imports."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

from lark.exceptions import LarkError, UnexpectedInput
from lark.load_grammar import _parse_grammar, stdlib_loader

from ....errors import GrammarError
from .source import Source


@final
class Imports:
    """What Lark asks for the text of a grammar that is imported.

    ``%import name`` is Lark's own library, or a file in the folder of the grammar's own file, ``path``; ``%import .name`` is a file
    in the folder of the file that asks. Errors point into the file that they are of.
    """

    def __init__(self, source: Source, path: Path | None) -> None:
        self._folder = None if path is None else path.absolute().parent
        self._sources: list[tuple[Path | None, Source]] = [(None, source)]

    def __call__(self, folder: Any, name: str) -> tuple[Any, str]:
        """Return what identifies the file ``name``, relative to ``folder`` where one is given, and its text."""
        if not isinstance(folder, str):  # the library's, or not said
            try:
                return stdlib_loader(folder, name)
            except OSError:
                if folder is not None or self._folder is None:
                    raise
        path = Path(folder or self._folder or "", name)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            if self._folder is None:
                raise  # Lark goes on to look elsewhere
            raise self._missing(path, str(error.strerror)) from error
        except UnicodeDecodeError as error:
            raise self._missing(path, f"it is not UTF-8, {error.reason}") from error
        self._check(path, text)
        return str(path), text

    def _check(self, path: Path, text: str) -> None:
        """Raise :class:`GrammarError` where the text of a file is no grammar: Lark would not say in which file."""
        try:
            source = Source.of(text)
            self._sources.append((path, source))
            try:
                _parse_grammar(text, str(path))
            except UnexpectedInput as error:
                raise source.unexpected(error) from None
            except LarkError as error:
                raise source.refused(error) from None
        except GrammarError as error:
            raise _inside(path, error) from None

    def _missing(self, path: Path, why: str) -> GrammarError:
        """Return the error of a file that cannot be read, at the import that asks for it."""
        said = (
            f"the grammar {path.stem!r} cannot be imported from {path}: {why}. Lark's library has `common`, `python`, `unicode` "
            "and `lark`"
        )
        for importing, source in self._sources:
            at = source.position_of_import(path.stem)
            if at is not None:
                error = GrammarError(said, source.text, at)
                return error if importing is None else _inside(importing, error)
        return GrammarError(said)


def _inside(path: Path, error: GrammarError) -> GrammarError:
    said = str(error) if error.position is None else str(error).split("\n")[0]
    return GrammarError(f"in the imported file {path}: {said}", error.source, error.position)
