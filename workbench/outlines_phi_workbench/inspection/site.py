"""The page of an inspection as files that need no server and no network."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outlines_phi.errors import UnsupportedError

from .inspection import Inspection

PAGE = Path(__file__).parent / "page"

DATA = "data"  # The folder of what the page reads


def page_files() -> dict[str, bytes]:
    """Return the files of the page by their paths: markup, styles, scripts, and the graph library with its licences."""
    files = (path for path in sorted(PAGE.rglob("*")) if path.is_file())
    return {path.relative_to(PAGE).as_posix(): path.read_bytes() for path in files}


def script(key: str, value: Any) -> bytes:
    """Return data as a script, which a page that was opened from a folder may read, as it may not read JSON."""
    content = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Line ends of a script that are none in JSON.
    content = content.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f"inspection.receive({json.dumps(key)},{content});\n".encode()


def data_of(inspection: Inspection, key: str, texts: Sequence[str], *, is_served: bool) -> Any:
    """Return the data of a key: ``site``, ``names``, ``theorems``, ``part-ID`` or ``walk-NUMBER`` of one of ``texts``.

    Raises :class:`UnsupportedError` for another key.
    """
    kind, _, name = key.partition("-")
    if key == "site":
        return inspection.overview(texts, is_served=is_served)
    if key == "names":
        return inspection.names()
    if key == "theorems":
        return inspection.theorems()
    if kind == "part":
        return inspection.part(name)
    if kind == "walk" and name.isdecimal() and int(name) < len(texts):
        return inspection.walk(texts[int(name)])
    raise UnsupportedError(f"Open the page at /. There is no data {key!r:.80}.")


def build(inspection: Inspection, folder: Path, texts: Sequence[str], tell: Callable[[str], None] | None = None) -> int:
    """Write the page and its data into ``folder``, which is made; return how many files there are.

    Raises :class:`UnsupportedError` where a text leaves the language, or the folder cannot be written.
    """
    walks = {}
    for number, text in enumerate(texts):
        walks[f"walk-{number}"] = found = inspection.walk(text)
        if found["leaves"]:
            read = found["steps"][-1]["offset"]
            raise UnsupportedError(
                "Give a text of the output type, or the beginning of one; outlines-phi inspect serve shows any text up to where it "
                f"leaves the language. --text {text!r:.80} leaves it in the token after {read} bytes: {found['fault']}"
            )
    contents = page_files()
    keys = [
        "site",
        "names",
        "theorems",
        *(f"part-{part.id}" for part in inspection.inspected.machine.graph.parts),
        *walks,
    ]
    for key in keys:
        if tell is not None:
            tell(key)
        data = walks[key] if key in walks else data_of(inspection, key, texts, is_served=False)
        contents[f"{DATA}/{key}.js"] = script(key, data)
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
    if folder.is_dir() and any(folder.iterdir()) and not (folder / DATA / "site.js").is_file():
        raise UnsupportedError(f"Give an empty folder, or a new one, by --output-dir. {folder} holds other files.")
