"""The page in a browser: what it shows, its keys, its addresses, and that it says nothing to the console."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from outlines_phi_workbench.inspection.inspection import Inspection
from outlines_phi_workbench.inspection.loopback_server import LoopbackServer
from outlines_phi_workbench.inspection.node_verdicts import subject_of, verdicts_of
from outlines_phi_workbench.inspection.site import build

from .conftest import encode, guide, inspected
from .test_machine_graph import chain

CHROMIUM = which("chromium") or which("chromium-browser")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="the program chromium is not here"),
    pytest.mark.skipif(find_spec("playwright") is None, reason="the package playwright is not here"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ENTRY = "window.drawnGraph.getElementById('entry').nonempty()"  # True if the states of a rule are drawn

PHONE = {"width": 380, "height": 800}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails the test where it says something to the console, or asks for what is not of this machine."""
    said: list[str] = []
    opened = browser.new_page(viewport={"width": 1300, "height": 850})
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on(
        "request",
        lambda asked: (
            None if asked.url.startswith(("file://", "http://127.0.0.1:", "data:")) else said.append(asked.url)
        ),
    )
    yield opened
    opened.close()
    assert said == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a folder, from which a page may read no JSON."""
    subject = subject_of(guide("list"), None, depth=2, most=500)
    assert subject is not None
    verdicts = verdicts_of(inspected("list").machine, subject)
    folder = tmp_path_factory.mktemp("site")
    build(Inspection(inspected("list"), encode, verdicts=verdicts), folder, ["[1, 2]", "[7"])
    return (folder / "index.html").as_uri()


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(Inspection(inspected("arithmetic"), encode)) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def drawn(page: Any) -> list[str]:
    page.wait_for_function("window.drawnGraph && window.drawnGraph.nodes().length")
    return list(page.evaluate("window.drawnGraph.nodes().map((node) => node.data('label'))"))


def test_a_folder_shows_the_machine_and_a_text(page: Any, site: str) -> None:
    page.goto(site)
    assert {"start", "NUMBER", "lexer"} <= set(drawn(page))
    page.wait_for_selector("#tokens .token")
    assert page.inner_text("#tokens").split() == ["[", "1", ",", "␣", "2", "]", "■"]
    assert "Step 0 of 6" in page.inner_text("#step") and "may end\nno." in page.inner_text("#step")
    assert "T10 what is allowed begins a member" in page.inner_text("#verdicts")
    assert page.is_hidden("#typed") and page.is_hidden("#why")


def test_keys_step_through_the_text(page: Any, site: str) -> None:
    page.goto(site)
    page.wait_for_selector("#tokens .token")
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('#step h2').textContent.startsWith('Step 2')")
    assert "NUMBER" in page.inner_text("#step dl") and "step=2" in page.url
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("document.querySelector('#step h2').textContent.startsWith('Step 1')")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"


def test_an_address_names_a_node_and_a_step(page: Any, site: str) -> None:
    page.goto(site)
    page.wait_for_selector("#tokens .token")
    page.click("text=[7")
    page.wait_for_function("document.querySelectorAll('#tokens .token').length === 3")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("location.hash.includes('step=1')")
    href = page.get_attribute("#step dd a", "href")
    page.click("#step dd a")
    page.wait_for_function("document.querySelector('#crumbs').textContent.includes('›')")
    selected = page.evaluate("window.drawnGraph.$(':selected').map((node) => node.id())")
    address = page.url
    assert href and f"node={selected[0]}" in address
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_function("window.drawnGraph && window.drawnGraph.$(':selected').length")
    assert page.evaluate("window.drawnGraph.$(':selected').map((node) => node.id())") == selected
    assert "Step 1 of 2" in page.inner_text("#step") and "Verified at" in page.inner_text("#selected")


def test_a_click_opens_a_part_and_comes_back(page: Any, site: str) -> None:
    page.goto(site)
    overview = drawn(page)
    page.evaluate("void window.drawnGraph.nodes().filter((node) => node.data('label') === 'start').emit('tap')")
    page.wait_for_function(ENTRY)
    assert drawn(page)[0] == "•" and "start: LSQB" in page.inner_text("#selected")
    before = page.evaluate("window.drawnGraph.nodes().map((node) => node.position())")
    for _ in range(2):  # out of the search, and back to the machine
        page.keyboard.press("Escape")
    page.wait_for_function("window.drawnGraph.getElementById('lexer').nonempty()")
    assert drawn(page) == overview
    page.evaluate("history.back()")
    page.wait_for_function(ENTRY)
    assert page.evaluate("window.drawnGraph.nodes().map((node) => node.position())") == before


def test_the_search_finds_parts_and_states(page: Any, site: str) -> None:
    page.goto(site)
    page.wait_for_selector("#tokens .token")
    page.fill("#query", "numb")
    page.wait_for_selector("#found a")
    assert page.inner_text("#found a >> nth=0") == "terminal NUMBER"
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#crumbs').textContent.includes('NUMBER')")
    page.fill("#query", "nothing is so")
    page.wait_for_function("document.querySelector('#found').textContent === 'Nothing is named so.'")


def test_a_server_walks_through_what_is_typed(page: Any, server: LoopbackServer) -> None:
    page.goto(server.address)
    page.wait_for_selector("#typed-text")
    page.fill("#typed-text", "1+*")
    page.click("#typed button")
    page.wait_for_selector("#tokens .masked")
    page.click("#tokens .masked")
    page.wait_for_selector("#step .refusal")
    assert "terminal STAR" in page.inner_text("#step .refusal")
    page.click("#step .refusal a")
    page.wait_for_function("window.drawnGraph.$(':selected').length")
    assert "sum: sum PLUS •" in page.inner_text("#selected")
    page.fill("#why-token", ")")
    page.click("#why button")
    page.wait_for_selector("#reason .refusal")
    assert "RPAR" in page.inner_text("#reason")
    page.fill("#why-token", "(")
    page.click("#why button")
    page.wait_for_function("document.querySelector('#reason').textContent.includes('is live')")


def test_a_page_of_another_origin_reads_nothing(browser: Any, server: LoopbackServer, tmp_path: Path) -> None:
    ours = server.address.partition("?")[0]
    (tmp_path / "other.html").write_text(
        "<script>const told = []; const inspection = {receive: (key, value) => told.push(value)};</script>"
        + "".join(f'<script src="{ours}data/site.{kind}"></script>' for kind in ("js", "json"))
        + f'<iframe src="{server.address}"></iframe>',
        encoding="utf-8",
    )
    opened = browser.new_page()
    opened.goto((tmp_path / "other.html").as_uri())
    assert opened.evaluate("told") == []
    assert not opened.evaluate(f"fetch('{ours}data/site.json').then((answer) => true, () => false)")
    (framed,) = [frame for frame in opened.frames if frame is not opened.main_frame]
    assert framed.query_selector("#graph") is None
    opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scroll(page: Any, site: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(PHONE)
    page.goto(site + "#step=2")
    page.wait_for_selector("#details table")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 384) == (scheme == "dark")


def test_a_grammar_of_200_rules_is_drawn(page: Any, tmp_path: Path) -> None:
    from outlines_phi.guides.grammar.cfg_guide import CFGGuide
    from outlines_phi.guides.grammar.notation.reader import read_grammar
    from outlines_phi_workbench.inspection.inspected import Inspected

    from .conftest import vocabulary

    made = Inspected.of("chain", CFGGuide.of(read_grammar(chain(200)), vocabulary()))
    build(Inspection(made, encode), tmp_path / "site", ["a0 b1"])
    page.goto((tmp_path / "site" / "index.html").as_uri())
    assert len(drawn(page)) > 200
    page.fill("#query", "r77")
    page.wait_for_selector("#found a")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#crumbs').textContent.includes('r77')")
    page.wait_for_function(ENTRY)


def test_the_theorems_are_a_graph_that_is_searched_and_linked(page: Any, site: str) -> None:
    page.goto(site)
    drawn(page)
    page.click("text=theorems")
    page.wait_for_function("window.drawnGraph.getElementById('5.2').nonempty()")
    page.fill("#query", "completeness")
    page.press("#query", "Enter")
    page.wait_for_function("document.getElementById('selected').textContent.includes('Statement 7.2')")
    assert "part=G7.2" in page.url and "proven in Coq: mask.sound_and_complete" in page.inner_text("#selected")
    assert "T11 " in page.inner_text("#selected") and "BOUNDED" in page.inner_text("#selected")
    for _ in range(2):  # out of the search, and back to the machine
        page.keyboard.press("Escape")
    page.wait_for_function("window.drawnGraph.getElementById('lexer').nonempty()")
