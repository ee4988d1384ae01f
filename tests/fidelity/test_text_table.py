"""Tables as plain text and as Markdown."""

from outlines_phi.fidelity.report_text import TextTable

TABLE = TextTable(("name", "p"), [("a|b", "0.5"), ("long name", "12.25"), ("x", "")], "Title", "A remark.")


def test_plain_columns_are_aligned_and_end_without_blanks() -> None:
    assert TABLE.plain() == ["name           p", "a|b          0.5", "long name  12.25", "x"]


def test_markdown_aligns_numbers_and_escapes_what_would_end_a_cell() -> None:
    assert TABLE.markdown() == [
        "| name | p |",
        "|---|---:|",
        "| a\\|b | 0.5 |",
        "| long name | 12.25 |",
        "| x |  |",
    ]


def test_a_table_without_rows_has_no_lines() -> None:
    assert TextTable(("name", "p"), []).plain() == TextTable(("name", "p"), []).markdown() == []
