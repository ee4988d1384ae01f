"""The page as a folder, and as a server on this machine."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlines_phi.errors import UnsupportedError
from outlines_phi_workbench.inspection.inspection import Inspection
from outlines_phi_workbench.inspection.loopback_server import TOKEN, LoopbackServer
from outlines_phi_workbench.inspection.site import build, check_folder, data_of, page_files, script

from .conftest import encode, inspected

VENDORED = {
    "vendor/cytoscape.min.js": "081591ab735b2b6a3b31a3c60f8f3a3e2fee8c92939e0c7820ad1208571b6cd8",
    "vendor/cytoscape-dagre.min.js": "ec671a41d2bfcac580352e2997797793949e3489cecaf347fc48670d4bd456b0",
}
"""The files of the graph library, as their packages in the npm registry have them."""


def arithmetic() -> Inspection:
    return Inspection(inspected("arithmetic"), encode)


def received(content: bytes) -> tuple[str, Any]:
    """The key and the value of a script of data."""
    inside = content.decode().removeprefix("inspection.receive(").removesuffix(");\n")
    key, end = json.JSONDecoder().raw_decode(inside)
    return key, json.loads(inside[end + 1 :])


def test_a_folder_holds_all_that_the_page_asks_for(tmp_path: Path) -> None:
    count = build(arithmetic(), tmp_path / "site", ["1+2", "(3"])
    files = [path for path in (tmp_path / "site").rglob("*") if path.is_file()]
    assert len(files) == count
    data = dict(received(path.read_bytes()) for path in files if path.parent.name == "data")
    assert {f"{key}.js" for key in data} == {path.name for path in files if path.parent.name == "data"}
    site = data["site"]
    assert site["texts"] == ["1+2", "(3"] and not site["served"] and site["tokens"] == 1280
    assert {f"part-{part['id']}" for part in site["parts"]} | {
        "site",
        "names",
        "theorems",
        "walk-0",
        "walk-1",
    } == data.keys()
    assert data["walk-1"]["steps"][-1]["distance"] == 2 and not data["walk-1"]["leaves"]
    for script_name in re.findall(r'src="([^"]+)"', (tmp_path / "site" / "index.html").read_text(encoding="utf-8")):
        assert (tmp_path / "site" / script_name).is_file()


def test_nothing_is_loaded_from_elsewhere() -> None:
    own = {path: content.decode() for path, content in page_files().items() if not path.startswith("vendor/")}
    assert {"index.html", "style.css", "store.js", "graph.js", "steps.js", "page.js", "elements.js"} == own.keys()
    assert not [path for path, content in own.items() if re.search(r"https?://|//cdn|innerHTML|@import", content)]


def test_the_graph_library_is_what_its_packages_hold_with_licences() -> None:
    files = page_files()
    assert {path: hashlib.sha256(files[path]).hexdigest() for path in VENDORED} == VENDORED
    listed = files["vendor/VERSIONS.md"].decode()
    for name, version in (("cytoscape", "3.34.4"), ("cytoscape-dagre", "4.0.1"), ("@dagrejs/dagre", "3.0.0")):
        assert f"| {name} | {version} |" in listed
    for licence in ("cytoscape.LICENSE", "cytoscape-dagre.LICENSE", "dagre.LICENSE"):
        assert b"Permission is hereby granted" in files[f"vendor/{licence}"]


def test_data_hold_no_list_as_long_as_the_vocabulary() -> None:
    def longest(value: Any) -> int:
        if isinstance(value, dict):
            return max(map(longest, value.values()), default=0)
        return max(len(value), *map(longest, value), 0) if isinstance(value, list) else 0

    assert longest(arithmetic().walk("1+(2*3")) <= 12


def test_what_ends_a_line_in_a_script_is_escaped() -> None:
    assert received(script("k", {"a": "\u2028</script>"})) == ("k", {"a": "\u2028</script>"})
    assert "\u2028".encode() not in script("k", "\u2028")


def test_a_text_outside_of_the_language_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedError, match=r"(?s)Give a text of the output type.* '1\+\*' leaves it .* after 2 bytes: .*STAR"
    ):
        build(arithmetic(), tmp_path / "site", ["1+*"])
    assert not (tmp_path / "site").exists()


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnsupportedError, match=r"Give a folder, by --output-dir\. .*file is a file"):
        check_folder(tmp_path / "file")
    with pytest.raises(UnsupportedError, match="holds other files"):
        check_folder(tmp_path)
    with pytest.raises(UnsupportedError, match=r"Give a folder that can be written"):
        build(arithmetic(), tmp_path / "file" / "below", [])
    build(arithmetic(), tmp_path / "site", [])
    check_folder(tmp_path / "site")


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(arithmetic(), ["1"]) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(
    server: LoopbackServer,
    path: str,
    given: Any = None,
    headers: dict[str, str] | None = None,
    token: str | None = None,
) -> tuple[int, bytes]:
    """Return the answer to a request of a page that has the token, or another one, and ``headers``."""
    found = respond(server, path, given, headers, token)
    return found.status, found.read()


def respond(
    server: LoopbackServer,
    path: str,
    given: Any = None,
    headers: dict[str, str] | None = None,
    token: str | None = None,
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    body = given if given is None or isinstance(given, str) else json.dumps(given)
    sent = {TOKEN: server.token if token is None else token, **(headers or {})}
    connection.putrequest("GET" if given is None else "POST", path, skip_host="Host" in sent)
    for name, value in sent.items():
        connection.putheader(name, value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(None if body is None else body.encode())
    return connection.getresponse()


def test_a_server_answers_with_the_page_and_walks(server: LoopbackServer) -> None:
    assert server.address.startswith("http://127.0.0.1:") and server.server_port > 0
    assert ask(server, f"/?token={server.token}") == (200, page_files()["index.html"])
    assert json.loads(ask(server, "/data/site.json")[1])["served"]
    assert json.loads(ask(server, "/data/part-lexer.json")[1])["nodes"]
    assert json.loads(ask(server, "/data/walk-0.json")[1])["text"] == "1"
    status, content = ask(server, "/walk", {"text": "1+*"})
    found = json.loads(content)
    assert status == 200 and found["leaves"] and "STAR" in found["fault"]
    status, content = ask(server, "/why", {"ids": found["ids"], "token": ")"})
    (told,) = json.loads(content)["tokens"]
    assert told["refusal"]["fault"]["what"] == "terminal RPAR"
    (live,) = json.loads(ask(server, "/why", {"ids": [], "token": "("})[1])["tokens"]
    (end,) = json.loads(ask(server, "/why", {"ids": [], "token": "<end>"})[1])["tokens"]
    (by_id,) = json.loads(ask(server, "/why", {"ids": [], "token": f"#{live['token']}"})[1])["tokens"]
    assert live["refusal"] is None and by_id == live and end["refusal"]["fault"]["kind"] == "parser"


@pytest.mark.parametrize(
    ("path", "given", "status", "said"),
    [
        ("/nothing", None, 404, "Open the page at /."),
        ("/data/part-x.json", None, 404, "Give the id of a part"),
        ("/data/walk-7.json", None, 404, "Open the page at /. There is no data"),
        ("/data/site.js", None, 404, "Open the page at /."),
        ("/data/part-%ff.json", None, 404, "'utf-8' codec"),
        ("/data/%ed%a0%80.json", None, 404, "'utf-8' codec"),
        ("/data/walk-" + "9" * 5000 + ".json", None, 404, "Exceeds the limit"),
        ("x://[/data/site.json", None, 404, "Invalid IPv6"),
        ("/walk", "[" * 100_000, 400, "Post an object without others inside"),
        ("/walk", {"text": "1\ud800"}, 400, "Give characters of Unicode"),
        ("/why", {"ids": [], "token": "\udfff"}, 400, "Give characters of Unicode"),
        ("/why", {"ids": [], "token": "#" + "9" * 5000}, 400, "Exceeds the limit"),
        ("/../pyproject.toml", None, 404, "Open the page at /."),
        ("/walk", {"texts": 1}, 400, "Post {"),
        ("/walk", {"text": "1" * 5000}, 400, "Give a text of at most"),
        ("/why", {"ids": ["1"], "token": "x"}, 400, "Post {"),
        ("/why", {"ids": [10**9], "token": "x"}, 400, "Give tokens that are live"),
        ("/why", {"ids": [], "token": "no token is so long"}, 400, "Give a text that one token writes"),
    ],
)
def test_a_wrong_request_is_told_what_to_ask(
    server: LoopbackServer, path: str, given: Any, status: int, said: str
) -> None:
    found, content = ask(server, path, given)
    assert found == status and json.loads(content)["error"].startswith(said)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Host": "attacker.example:{port}"},
        {"Origin": "http://attacker.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_another_origin_is_told_nothing(server: LoopbackServer, headers: dict[str, str]) -> None:
    named = {name: value.format(port=server.server_port) for name, value in headers.items()}
    for path, given in ((f"/?token={server.token}", None), ("/data/site.json", None), ("/walk", {"text": "1"})):
        status, content = ask(server, path, given, named)
        assert status == 403 and json.loads(content).keys() == {"error"}


def test_the_page_of_this_run_is_told(server: LoopbackServer) -> None:
    own = {"Origin": f"http://127.0.0.1:{server.server_port}", "Sec-Fetch-Site": "same-origin"}
    assert ask(server, "/walk", {"text": "1"}, own)[0] == 200
    assert ask(server, "/data/site.json", headers={"Host": f"localhost:{server.server_port}"})[0] == 200


@pytest.mark.parametrize("token", ["", "other", "\xff"])
def test_without_the_token_of_this_run_nothing_is_told(server: LoopbackServer, token: str) -> None:
    asked = [
        ("/data/site.json", None),
        ("/data/walk-0.json", None),
        ("/walk", {"text": "1"}),
        ("/why", {"ids": [], "token": "("}),
    ]
    assert {ask(server, path, given, token=token)[0] for path, given in [*asked, ("/", None), ("/?token=x", None)]} == {
        403
    }
    assert ask(server, "/page.js", token=token)[0] == 200


@pytest.mark.parametrize("path", ["/?token={}", "/data/site.json", "/page.js", "/nothing"])
def test_no_page_of_another_origin_loads_or_frames_an_answer(server: LoopbackServer, path: str) -> None:
    answer = respond(server, path.format(server.token))
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Cache-Control"] == "no-store"
    assert not answer.read().startswith(b"inspection.receive")


def test_another_run_has_another_token(server: LoopbackServer) -> None:
    with LoopbackServer(arithmetic()) as other:
        assert other.token != server.token and len(other.token) >= 20


def test_a_port_that_is_taken_is_refused(server: LoopbackServer) -> None:
    with pytest.raises(UnsupportedError, match=rf"Give another --port.* Port {server.server_port} cannot be had"):
        LoopbackServer(arithmetic(), port=server.server_port)


def test_unknown_data_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="There is no data 'other'"):
        data_of(arithmetic(), "other", [], is_served=True)
