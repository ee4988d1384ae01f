"""The built site in headless Chromium: `make test-browser` builds it and runs these."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
SITE = ROOT / "site"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

try:
    from playwright.sync_api import Browser, Page, sync_playwright
except ImportError:
    sync_playwright = None  # type: ignore[assignment]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(sync_playwright is None, reason="playwright is not installed: make test-browser has it"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium in the path"),
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: run make docs"),
]

NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
PAGES = [name.replace(".md", ".html") for name in re.findall(r"(\S+\.md)$", NAVIGATION, re.MULTILINE)]
UNREAD = """[...document.querySelectorAll('article p, article li')].some(element => [...element.childNodes].some(
    node => node.nodeType === Node.TEXT_NODE && /(\\n\\s*[-*] \\S)|\\*\\*|\\]\\(|```/.test(node.data)))"""
"""True if Markdown was left as text: a list without an empty line before it, say, which other readers take."""

PHONE = {"width": 375, "height": 700}
DESK = {"width": 1280, "height": 800}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def opened(browser: Browser, size: Any, scheme: Any = "light") -> tuple[Page, list[str]]:
    """A page of a fresh window, and what it complains of, filled as it goes."""
    page, said = browser.new_context(viewport=size, color_scheme=scheme).new_page(), []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    return page, said


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def shade(color: str) -> float:
    """Return the lightness of a colour, from 0 to 255."""
    return sum(map(int, re.findall(r"\d+", color)[:3])) / 3


def test_every_page_is_read_whole_on_a_phone_and_asks_nothing_elsewhere(browser: Browser, address: str) -> None:
    page, said = opened(browser, PHONE)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    wide, unread, complaints = [], [], []
    for name in PAGES:
        page.goto(address + name)
        page.wait_for_timeout(150)  # the search and the tables are made ready after the page has loaded
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            wide.append(name)
        if page.evaluate(UNREAD):
            unread.append(name)
        complaints += [f"{name}: {text}" for text in said]
        said.clear()
    assert len(PAGES) > 40
    assert complaints == []
    assert wide == []
    assert unread == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def test_a_wide_table_scrolls_within_itself(browser: Browser, address: str) -> None:
    page, _ = opened(browser, PHONE)
    page.goto(address + "peers.html")
    page.wait_for_selector(".md-typeset__scrollwrap")
    widths = "table => [table.scrollWidth, table.closest('.md-typeset__scrollwrap').clientWidth]"
    inner, outer = page.locator("table:not([class])").last.evaluate(widths)
    assert inner > outer
    assert page.locator(".md-typeset__scrollwrap").last.evaluate("wrap => getComputedStyle(wrap).overflowX") == "auto"


@pytest.mark.parametrize("name", ["index.html", "performance.html", "reference/generator.html"])
def test_light_and_dark(name: str, browser: Browser, address: str) -> None:
    page, said = opened(browser, DESK, "dark")
    page.goto(address + name)
    assert shade(background(page)) < 80, "the system's choice is the first"
    page.locator("label[for=__palette_0]:visible").click()
    page.wait_for_function("document.body.getAttribute('data-md-color-scheme') === 'default'")
    assert shade(background(page)) > 200
    page.goto(address + "theory.html")
    assert shade(background(page)) > 200, "the choice is kept from page to page"
    assert said == []


def test_the_keyboard_alone(browser: Browser, address: str) -> None:
    page, said = opened(browser, DESK)
    page.goto(address + "estimators.html")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.classList.contains('md-skip')"), (
        "the first stop leads past the navigation"
    )
    page.keyboard.press("Enter")
    assert "#" in page.url
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('a, button, input, label, [tabindex]')")
    styled = page.evaluate("(style => [style.outlineStyle, style.boxShadow])(getComputedStyle(document.activeElement))")
    assert styled != ["none", "none"], "one sees where one is"
    assert said == []


@pytest.mark.parametrize("key", ["/", "s"])
def test_the_search_by_the_keyboard(key: str, browser: Browser, address: str) -> None:
    page, said = opened(browser, DESK)
    page.goto(address + "index.html")
    page.wait_for_load_state("networkidle")
    for _ in range(2):
        page.keyboard.press(key)
        page.wait_for_function("document.activeElement.matches('.md-search__input')")
        page.wait_for_function("document.querySelector('#__search').checked")
        page.keyboard.type("bottleneck ")
        page.wait_for_selector(".md-search-result__item a")
        page.keyboard.press("Escape")
        page.wait_for_function("!document.querySelector('#__search').checked")
        page.wait_for_timeout(600)  # as a hand does: the theme closes what is opened again within the same moment
    page.keyboard.press(key)
    page.wait_for_selector(".md-search-result__item a")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "index.html" not in url)
    assert said == []


def test_formulas_are_set_without_a_script(browser: Browser, address: str) -> None:
    page, _ = opened(browser, PHONE)
    page.goto(address + "theory.html")
    assert page.locator("math").count() > 300
    assert "\\(" not in page.locator("article").inner_text()
    assert page.locator("math").first.bounding_box()["width"] > 0
