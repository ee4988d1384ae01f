"""Pages for the files of the repository that the documentation links to: examples, the changelog, a model card.

A link that leaves ``docs/`` leads on the site to a page that shows the file: Markdown as it is, any other text as code, a folder as
the list of its files. So the sources keep the links that work where they are read in the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
PLACE = "repository"  # The folder of the site
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".sh": "sh", ".lark": "text"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside of ``docs/`` that a page links to, and for those that these link to."""
    waiting = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    made: set[str] = set()
    while waiting:
        source, text = waiting.pop()
        for target in sorted(outside(source, text) - made):
            made.add(target)
            content = shown(target)
            if isinstance(content, bytes):
                files.append(File.generated(config, f"{PLACE}/{target}", content=content))
                continue
            files.append(File.generated(config, page_of(target), content=content))
            waiting.append((target, content if target.endswith(".md") else ""))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page to the pages of the site."""
    here = page.file.src_uri
    in_docs = not here.startswith(f"{PLACE}/")
    source = f"docs/{here}" if in_docs else here.removeprefix(f"{PLACE}/")

    def led(link: re.Match[str]) -> str:
        target, anchor = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1])), link[2] or ""
        there = target.removeprefix("docs/") if target.startswith("docs/") else page_of(target)
        return f"]({posixpath.relpath(there, posixpath.dirname(here) or '.')}{anchor})"

    return LINK.sub(led, markdown) if in_docs or (ROOT / source).is_file() else markdown


def outside(source: str, text: str) -> set[str]:
    """Return the files of the repository, beside those in ``docs/``, that a text at ``source`` links to."""
    targets = {posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1])) for link in LINK.finditer(text)}
    return {target for target in targets if not target.startswith("docs/") and (ROOT / target).exists()}


def page_of(target: str) -> str:
    """Return where the page of a file is, in ``docs/``'s terms; a picture keeps its name."""
    if target.endswith((".md", ".png", ".svg")):
        return f"{PLACE}/{target}"
    return f"{PLACE}/{target}.md"


def shown(target: str) -> str | bytes:
    """Return what the page of a file or a folder says; of a picture, its bytes."""
    path = ROOT / target
    if path.suffix in (".png", ".svg"):
        return path.read_bytes()
    if path.is_dir():
        names = sorted(file.name for file in path.iterdir() if not file.name.startswith((".", "_")))
        return "\n".join([f"# {target}/", "", *(f"- `{name}`" for name in names), ""])
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return f"# {target}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"
