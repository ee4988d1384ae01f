"""Formulas as MathML, which browsers set by themselves: no script and no font is loaded for them."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the formulas of a page."""
    content = INLINE.sub(lambda found: convert(html.unescape(found[1])), content)
    return BLOCK.sub(lambda found: f'<div class="formula">{convert(html.unescape(found[1]), display="block")}</div>', content)
