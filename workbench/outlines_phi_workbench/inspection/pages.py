"""The page of an inspection: the states, texts, verdicts and theorems, as files that need no server and no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from jinja2 import Environment, PackageLoader, StrictUndefined

from outlines_phi import UnsupportedError

from ..verification.verification import Verification
from .inspected import Inspected
from .model_masses import PromptedModel
from .theorems import theorem_graph

FOLDER = Path(__file__).parent / "page"
FILES = {
    path.relative_to(FOLDER).as_posix(): path.read_bytes()
    for path in sorted(FOLDER.rglob("*"))
    if path.is_file() and path.suffix != ".j2"
}
"""The files beside the pages by their paths: styles, the script, and the graph library with its licences."""

Link = Callable[[str, str], str]  # The address of a view, ``states``, ``theorems`` or ``text``, and its argument


def in_a_folder(view: str, argument: str = "") -> str:
    """Return the file of a view."""
    return {"states": "index.html", "theorems": "theorems.html"}.get(view, f"text-{argument}.html")


@final
@dataclass(frozen=True, eq=False)
class Inspection:
    """What can be looked at; ``encode`` returns the tokens of a text, ``prompted`` is the model that is asked, if any."""

    inspected: Inspected
    encode: Callable[[str], Sequence[int]]
    texts: Sequence[str] = ()
    prompted: PromptedModel | None = None
    prompt: str = ""
    verification: Verification | None = None

    def states(self, link: Link = in_a_folder) -> str:
        """Return the page of the states."""
        return self._page("states", link, graph=self.inspected.machine.graph())

    def theorems(self, link: Link = in_a_folder) -> str:
        """Return the page of the statements that masks and samplers rest on, with the verdicts of their checks."""
        results = () if self.verification is None else self.verification.results
        return self._page(
            "theorems", link, graph=theorem_graph({each.check.id: each.finding.verdict.value for each in results})
        )

    def text(
        self, text: str, link: Link = in_a_folder, *, asked: tuple[int, str] | None = None, typed: bool = False
    ) -> str:
        """Return the page of a text; ``asked`` is a step, and a token of which it says why it is masked there.

        Raises :class:`UnsupportedError` where the text is too long, or the tokenizer changes it; or, unless it was ``typed``,
        where it leaves the language.
        """
        inspected = self.inspected
        ids = inspected.tokens_of(self.encode, text)
        steps = inspected.walk(ids)
        if (refusal := steps[-1].refusal) is not None and not typed:
            raise UnsupportedError(
                "Give a text of the output type, or the beginning of one; outlines-phi inspect serve shows any text up to where it "
                f"leaves the language. --text {text!r:.80} leaves it in the token after {len(steps) - 1}: {refusal.fault.because}"
            )
        places = [step.place for step in steps]
        masses = None if self.prompted is None else self.prompted.masses(inspected, ids[: len(steps) - 1], places)
        reasons: list[Any] = []
        if asked is not None:
            if not 0 <= asked[0] < len(steps):
                raise UnsupportedError(f"Give a step of the text, 0 to {len(steps) - 1}. {asked[0]} was given.")
            reasons = inspected.asked(places[asked[0]], asked[1])
        graph = inspected.machine.graph([place.state for place in places])
        return self._page(
            "text", link, graph=graph, text=text, steps=steps, masses=masses, asked=asked, reasons=reasons, typed=typed
        )

    def _page(self, view: str, link: Link, **shown: Any) -> str:
        loader = PackageLoader(__package__, "page")
        environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
        environment.filters["share"] = lambda p: f"{p:.4f}" if p >= 5e-4 or p == 0 else f"{p:.1e}"
        return environment.get_template("page.html.j2").render(
            view=view, link=link, of=self, served=link is not in_a_folder, verification=self.verification, **shown
        )


def build(inspection: Inspection, folder: Path, tell: Callable[[str], None] = lambda _: None) -> int:
    """Write the pages into ``folder``, which is made; return how many files there are.

    Raises :class:`UnsupportedError` where a text leaves the language, or the folder cannot be written.
    """
    views: dict[str, Callable[[], str]] = {"index.html": inspection.states, "theorems.html": inspection.theorems}
    for number, text in enumerate(inspection.texts):
        views[f"text-{number}.html"] = lambda text=text: inspection.text(text)  # type: ignore[misc]
    contents = dict(FILES)
    for name, view in views.items():
        tell(name)
        contents[name] = view().encode()
    try:
        for path, content in contents.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    except OSError as error:
        raise UnsupportedError(
            f"Give a folder that can be written, by --output-dir. {folder} cannot be: {error.strerror}."
        ) from error
    return len(contents)


def check_folder(folder: Path) -> None:
    """Raise :class:`UnsupportedError` where ``folder`` cannot be a site: it is a file, or a folder with other files."""
    if folder.exists() and not folder.is_dir():
        raise UnsupportedError(f"Give a folder, by --output-dir. {folder} is a file.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "theorems.html").is_file():
        raise UnsupportedError(f"Give an empty folder, or a new one, by --output-dir. {folder} holds other files.")
