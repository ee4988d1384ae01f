"""The draws and masks of earlier versions stay as they are: ``python -m tests.golden.make`` shows differences, and renews them."""

from __future__ import annotations

import pytest

from tests.golden.make import TABLES, automaton_row, changes, kept, mask_row, text_row
from tests.golden.masks import FORMATS, MASKS, digest
from tests.golden.texts import POLICIES, ROWS


@pytest.mark.parametrize("table", TABLES)
def test_nothing_has_changed(table: str) -> None:
    changed = changes(kept(table), TABLES[table]())
    assert not changed, "\n".join(changed)


def test_a_change_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power controls: a token more, a branch less, masking in place of exact draws; equal languages have one automaton."""
    mask = next(mask for mask in MASKS if mask.format == "answer")
    allowed = mask.allowed()
    assert digest(allowed[1:]) != digest(allowed) == digest(allowed.copy())

    monkeypatch.setitem(FORMATS, mask.format, FORMATS["regex: prefix"])
    before = [row for row in kept("masks") if row["name"].startswith("answer,")]
    assert len(changes(before, [mask_row(mask) for mask in MASKS if mask.format == "answer"])) >= 2

    exact = [row for row in ROWS if row.policy == "exact" and row.door not in ("probabilities", "mode")]
    monkeypatch.setitem(POLICIES, "exact", POLICIES["local"])
    drawn = [row for row in kept("texts") if row["name"] in {row.name for row in exact}]
    assert len(changes(drawn, list(map(text_row, exact)))) == len(exact)

    same, other = ("(ab|ba|c){1,3}x?", "(c|ab|ba)((ba|ab|c)(c|ab|ba)?)?x?"), "(ab|ba|c){1,2}x?"
    of = [{**automaton_row(pattern), "name": ""} for pattern in (*same, other)]
    assert not changes(of[:1], of[1:2]) and changes(of[:1], of[2:])
