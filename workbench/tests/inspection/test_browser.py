"""The pages in a browser: what they show, their keys, and that they say nothing to the console."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlines_phi_workbench.inspection.pages import Inspection, build
from tests.docs.test_browser import CHROMIUM, DESK, PHONE, background, browser, opened, shade, sync_playwright

from .conftest import encode, inspected

__all__ = ["browser"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="the program chromium is not here"),
    pytest.mark.skipif(sync_playwright is None, reason="the package playwright is not here"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
MARKED = "window.drawnGraph.$('.marked').map((node) => node.id())"


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails the test where it says something to the console, or asks for what is not of this machine."""
    page, told = opened(browser, DESK)
    page.on("console", lambda message: told.append(message.text))
    page.on("request", lambda asked: told.append(asked.url) if asked.url.startswith("http") else None)
    yield page
    page.close()
    assert told == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    build(Inspection(inspected("arithmetic"), encode, ["1+(2*3)", "7"]), made)
    return made


def test_keys_step_through_a_text_and_mark_its_states(page: Any, folder: Path) -> None:
    page.goto((folder / "text-0.html").as_uri())
    page.wait_for_function("window.drawnGraph && window.drawnGraph.nodes().length")
    assert page.is_visible("#step-0") and not page.is_visible("#step-2")
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("location.hash === '#step-2'")
    assert page.is_visible("#step-2") and not page.is_visible("#step-0")
    assert page.evaluate(MARKED) == [page.get_attribute("#step-2", "data-node")]
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("location.hash === '#step-1'")
    assert "may follow" in page.inner_text("#selected")


def test_theorems_and_states_are_drawn_and_said(page: Any, folder: Path) -> None:
    page.goto((folder / "index.html").as_uri())
    page.click("text=theorems")
    page.wait_for_function("window.drawnGraph && window.drawnGraph.getElementById('5.2').nonempty()")
    page.evaluate("void window.drawnGraph.getElementById('G7.2').emit('tap')")
    assert "proven in Coq: mask.sound_and_complete" in page.inner_text("#selected")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scroll(page: Any, folder: Path, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(PHONE)
    page.goto((folder / "text-0.html").as_uri() + "#step-2")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert (shade(background(page)) < 128) == (scheme == "dark")
