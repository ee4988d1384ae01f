"""The pages as a folder, and as a server on this machine."""

import hashlib
import json
import re
from html import unescape
from pathlib import Path

import pytest

from outlines_phi import UnsupportedError
from outlines_phi_workbench.inspection.pages import FILES, Inspection, build, check_folder
from outlines_phi_workbench.verification.subject import Subject
from outlines_phi_workbench.verification.verification import verify

from .conftest import LANGUAGES, encode, inspected, vocabulary

VENDORED = {
    "vendor/cytoscape.min.js": "081591ab735b2b6a3b31a3c60f8f3a3e2fee8c92939e0c7820ad1208571b6cd8",
    "vendor/cytoscape-dagre.min.js": "ec671a41d2bfcac580352e2997797793949e3489cecaf347fc48670d4bd456b0",
}
"""The files of the graph library, as their packages in the npm registry have them."""


def said(page: str) -> str:
    """The text of a page."""
    return " ".join(unescape(re.sub("<[^>]+>", " ", page)).split())


def test_a_folder_holds_all_that_its_pages_ask_for(tmp_path: Path) -> None:
    subject = Subject.of_grammar(LANGUAGES["arithmetic"][0], vocabulary(), depth=1)
    made = Inspection(inspected("arithmetic"), encode, ["1+2", "(3"], verification=verify(subject))
    assert build(made, tmp_path / "site") == sum(path.is_file() for path in (tmp_path / "site").rglob("*"))
    check_folder(tmp_path / "site")
    for name in ("index.html", "theorems.html", "text-0.html", "text-1.html"):
        page = (tmp_path / "site" / name).read_text(encoding="utf-8")
        graph = json.loads(re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[0])
        assert graph["nodes"] and {edge["target"] for edge in graph["edges"]} <= {node["id"] for node in graph["nodes"]}
        for path in re.findall(r'(?:src|href)="([^"#:]+)"', page):
            assert (tmp_path / "site" / path).is_file(), path
        assert not re.search(r"https?://|//cdn|<form", page)
    assert "T10 what is allowed begins a member BOUNDED" in said((tmp_path / "site" / "index.html").read_text())
    assert "Step 1 of 2" in said((tmp_path / "site" / "text-1.html").read_text())
    assert "* is masked by the language" in said(made.text("1+*"))


def test_texts_are_never_read_as_markup() -> None:
    page = Inspection(inspected("schema"), encode).text('{"name": "<b')
    assert not re.search(r"<b\W", page) and "&lt;" in page
    assert not [path for path, content in FILES.items() if b"innerHTML" in content and "vendor" not in path]


def test_the_graph_library_is_what_its_packages_hold_with_licences() -> None:
    assert {path: hashlib.sha256(FILES[path]).hexdigest() for path in VENDORED} == VENDORED
    for name, version in (("cytoscape", "3.34.4"), ("cytoscape-dagre", "4.0.1"), ("@dagrejs/dagre", "3.0.0")):
        assert f"| {name} | {version} |" in FILES["vendor/VERSIONS.md"].decode()
    for licence in ("cytoscape.LICENSE", "cytoscape-dagre.LICENSE", "dagre.LICENSE"):
        assert b"Permission is hereby granted" in FILES[f"vendor/{licence}"]


def test_what_cannot_be_built_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder, match in ((tmp_path / "file", r"Give a folder, by --output-dir\."), (tmp_path, "holds other files")):
        with pytest.raises(UnsupportedError, match=match):
            check_folder(folder)
    with pytest.raises(UnsupportedError, match=r"Give another folder: --output-dir .* cannot be made a folder"):
        build(Inspection(inspected("arithmetic"), encode), tmp_path / "file" / "below")
