"""Formulas as MathML, which browsers set by themselves: no script and no font is loaded for them."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
LONG = 40  # characters of a formula that a phone may have no room for
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the formulas of a page."""
    return BLOCK.sub(block, INLINE.sub(inline, content))


def inline(found: re.Match[str]) -> str:
    """Return a formula within a line; browsers do not break it, so that a long one scrolls by itself."""
    formula = html.unescape(found[1])
    mathml = convert(formula)
    return f'<span class="formula">{mathml}</span>' if len(formula) > LONG else mathml


def block(found: re.Match[str]) -> str:
    """Return a formula on a line of its own."""
    return f'<div class="formula">{convert(html.unescape(found[1]), display="block")}</div>'
