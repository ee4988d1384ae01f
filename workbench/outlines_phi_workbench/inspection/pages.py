"""The page of an inspection: the states, texts, verdicts and theorems, as files that need no server and no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from jinja2 import Environment, PackageLoader, StrictUndefined

from outlines_phi import UnsupportedError
from outlines_phi.numerics.cache import make_folder, write_atomically

from ..verification.verification import Verification
from .inspected import Inspected
from .theorems import theorem_graph

FOLDER = Path(__file__).parent / "page"
FILES = {
    path.relative_to(FOLDER).as_posix(): path.read_bytes()
    for path in sorted(FOLDER.rglob("*"))
    if path.is_file() and path.suffix != ".j2"
}
"""The files beside the pages by their paths: styles, the script, and the graph library with its licences."""


@final
@dataclass(frozen=True, eq=False)
class Inspection:
    """The pages of an inspected guide; ``encode`` returns the tokens of a text."""

    inspected: Inspected
    encode: Callable[[str], Sequence[int]]
    texts: Sequence[str] = ()
    verification: Verification | None = None

    def states(self) -> str:
        """Return the page of the states."""
        return self._page("states", self.inspected.graph())

    def theorems(self) -> str:
        """Return the page of the statements that masks and samplers rest on, with the verdicts of their checks."""
        results = () if self.verification is None else self.verification.results
        verdicts = {each.check.id: each.finding.verdict.value for each in results}
        return self._page("theorems", theorem_graph(verdicts))

    def text(self, text: str) -> str:
        """Return the page of a text, up to where it leaves the language.

        Raises :class:`UnsupportedError` where it is too long, or the tokenizer changes it.
        """
        steps = self.inspected.walk(self.inspected.tokens_of(self.encode, text))
        return self._page("text", self.inspected.graph([step.place.state for step in steps]), steps=steps)

    def _page(self, view: str, graph: Any, **shown: Any) -> str:
        loader = PackageLoader(__package__, "page")
        environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
        shown |= {"view": view, "of": self, "graph": graph, "verification": self.verification}
        return environment.get_template("page.html.j2").render(**shown)


def build(inspection: Inspection, folder: Path, tell: Callable[[str], None] = lambda _: None) -> int:
    """Write the pages into ``folder``, which is made; return how many files there are.

    Raises :class:`UnsupportedError` where a text cannot be shown, or the folder not be written.
    """
    contents = dict(FILES)
    for number, text in enumerate(inspection.texts):
        tell(text)
        contents[f"text-{number}.html"] = inspection.text(text).encode()
    contents |= {"index.html": inspection.states().encode(), "theorems.html": inspection.theorems().encode()}
    for path, content in contents.items():
        make_folder((folder / path).parent, f"--output-dir {folder}")
        write_atomically(folder / path, content)
    return len(contents)


def check_folder(folder: Path) -> None:
    """Raise :class:`UnsupportedError` where ``folder`` cannot be a site: it is a file, or a folder with other files."""
    if folder.exists() and not folder.is_dir():
        raise UnsupportedError(f"Give a folder, by --output-dir. {folder} is a file.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "theorems.html").is_file():
        raise UnsupportedError(f"Give an empty folder, or a new one, by --output-dir. {folder} holds other files.")
