"""The page of output types says what becomes of each keyword, in the words of the code."""

from pathlib import Path

from jsonschema_specifications import REGISTRY

from outlines_phi.guides.json_schema.formats import FORMATS, LEFT_OUT
from outlines_phi.guides.json_schema.reading.keywords import KEYWORDS
from tests.guides.json_schema.reading.keyword_tables import ANNOTATIONS, END, START, summary, write

PAGE = Path(__file__).parents[4] / "docs" / "output-types.md"


def test_the_page_holds_the_tables() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"{START}\n{summary()}\n{END}" in text, (
        "python -m tests.guides.json_schema.reading.keyword_tables docs/output-types.md"
    )


def test_the_tables_name_everything(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{START}\nobsolete\n{END}\nafter\n")
    write(page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "obsolete" not in text
    assert all(f"`{name}`" in text for name in (*KEYWORDS, *FORMATS)) and LEFT_OUT.keys() <= FORMATS.keys()
    assert "| `const` | from 6 |" in text and "| `dependencies` | 4 to 7 |" in text and "| `type` | all |" in text


def test_every_word_of_the_standard_is_in_the_tables() -> None:
    named = set(KEYWORDS) | {name.strip("`()") for names in ANNOTATIONS for name in names.replace(",", " ").split()}
    words: set[str] = set()  # of the schemas of schemas
    for uri in REGISTRY:
        if "draft-03" not in uri and isinstance(contents := REGISTRY.contents(uri), dict):
            words.update(contents.get("properties", {}))
    assert len(words) > 50 and words <= named
