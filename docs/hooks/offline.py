"""Check that the site loads nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

LOADED = re.compile(r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=["']?((?:https?:)?//[^"'\s>]+)""")
LINKED = re.compile(
    r"""<link\b(?![^>]*\brel=["']?(?:canonical|alternate))[^>]*?\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
)
STYLED = re.compile(r"""(?:url\(|@import\s+)["']?((?:https?:)?//[^"'\s)]+)""")


def elsewhere(site: Path) -> list[str]:
    """Return what the pages and the styles of a built site load from other places."""
    found = []
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        text = path.read_text(encoding="utf-8")
        kinds = (LOADED, LINKED) if path.suffix == ".html" else (STYLED,)
        found += [f"{path.relative_to(site)}: {one}" for kind in kinds for one in kind.findall(text)]
    return found


def on_post_build(config: MkDocsConfig) -> None:
    """Fail where the site loads something from elsewhere."""
    if found := elsewhere(Path(config.site_dir)):
        raise PluginError("Keep assets in docs/: the site loads from elsewhere. " + "; ".join(found[:10]))
