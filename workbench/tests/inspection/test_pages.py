"""The pages as a folder, and as a server on this machine."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from outlines_phi import UnsupportedError
from outlines_phi_workbench.inspection.loopback_server import LoopbackServer
from outlines_phi_workbench.inspection.pages import FILES, Inspection, build, check_folder
from outlines_phi_workbench.verification.subject import Subject
from outlines_phi_workbench.verification.verification import verify

from .conftest import LANGUAGES, encode, inspected, vocabulary

VENDORED = {
    "vendor/cytoscape.min.js": "081591ab735b2b6a3b31a3c60f8f3a3e2fee8c92939e0c7820ad1208571b6cd8",
    "vendor/cytoscape-dagre.min.js": "ec671a41d2bfcac580352e2997797793949e3489cecaf347fc48670d4bd456b0",
}
"""The files of the graph library, as their packages in the npm registry have them."""


def arithmetic(*texts: str) -> Inspection:
    return Inspection(inspected("arithmetic"), encode, texts)


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


def test_texts_are_never_read_as_markup() -> None:
    page = Inspection(inspected("schema"), encode).text('{"name": "<b', typed=True)
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
    with pytest.raises(UnsupportedError, match=r"(?s)Give a text of the output type.* '1\+\*' leaves it .*\* came"):
        build(arithmetic("1+*"), tmp_path / "site")
    assert not (tmp_path / "site").exists()
    for folder, match in ((tmp_path / "file", r"Give a folder, by --output-dir\."), (tmp_path, "holds other files")):
        with pytest.raises(UnsupportedError, match=match):
            check_folder(folder)
    with pytest.raises(UnsupportedError, match=r"Give a folder that can be written"):
        build(arithmetic(), tmp_path / "file" / "below")


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(arithmetic("1")) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: LoopbackServer, path: str, **headers: str) -> tuple[int, http.client.HTTPResponse, str]:
    """Return the answer to a request; ``{}`` in the path is the token of the run."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest("GET", path.replace("{}", server.token), skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value.replace("PORT", str(server.server_port)))
    connection.endheaders()
    found = connection.getresponse()
    return found.status, found, said(found.read().decode())


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/?token={}", 200, "States of the guide"),
        ("/theorems?token={}", 200, "Arrows lead to what a statement rests on"),
        ("/text-0?token={}", 200, "Step 1 of 1"),
        ("/text?token={}&typed=1%2B*", 200, "* is masked by the language"),
        ("/text?token={}&typed=1&step=1&why=(", 200, "( is masked by the language"),
        ("/text?token={}&typed=1&step=0&why=(", 200, "( is live."),
        ("/graph.js", 200, "use strict"),
        ("/nothing?token={}", 400, "Open the page at /."),
        ("/text-7?token={}", 400, "Open the page at /."),
        ("/text-" + "9" * 5000 + "?token={}", 400, "Exceeds the limit"),
        ("/text?token={}&typed=1&step=7&why=(", 400, "Give a step of the text, 0 to 1"),
        ("/text?token={}&typed=1&step=x&why=(", 400, "invalid literal"),
        ("/text?token={}&typed=" + "1" * 5000, 400, "Give a text of at most"),
        ("/../pyproject.toml?token={}", 400, "Open the page at /."),
        ("/%ff?token={}", 400, "'utf-8' codec"),
        ("/", 403, "Open the address that was printed"),
        ("/?token=other", 403, "Open the address that was printed"),
        ("/text?token=&typed=1", 403, "Open the address that was printed"),
    ],
)
def test_a_server_answers_who_has_its_token(server: LoopbackServer, path: str, status: int, text: str) -> None:
    code, answer, shown = ask(server, path)
    assert code == status and text in shown
    assert (
        answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        and answer.headers["Cache-Control"] == "no-store"
    )
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Host": "attacker.example:PORT"},
        {"Origin": "http://attacker.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
    ids=str,
)
def test_another_origin_is_told_nothing(server: LoopbackServer, headers: dict[str, str]) -> None:
    assert ask(server, "/?token={}", **headers)[0] == ask(server, "/graph.js", **headers)[0] == 403
    own = {"Origin": "http://localhost:PORT", "Sec_Fetch_Site": "same-origin", "Host": "localhost:PORT"}
    assert ask(server, "/?token={}", **own)[0] == 200


def test_every_run_has_its_own_token_and_port(server: LoopbackServer) -> None:
    assert server.address == f"http://127.0.0.1:{server.server_port}/?token={server.token}"
    with LoopbackServer(arithmetic()) as other:
        assert other.token != server.token and len(other.token) >= 20
    with pytest.raises(UnsupportedError, match=rf"Give another --port.* Port {server.server_port} cannot be had"):
        LoopbackServer(arithmetic(), server.server_port)
