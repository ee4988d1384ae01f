"""The lexers of shipped grammars, replayed by the transducer that is proven to be longest match (proofs/theories/lexing.v)."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from outlines_phi.guides.grammar.lexing.lexeme_automaton import LexemeAutomaton
from outlines_phi.guides.grammar.lexing.lexer import Lexer
from outlines_phi.guides.grammar.notation.reader import grammar_text, read_grammar

THEORIES = Path(__file__).parent.parent.parent / "proofs" / "theories"
TEXTS = {"arithmetic": "12+(3*45)-.$", "dyck-3": "([{}])x", "json": '{"a": [1, -2.5, true, null]} '}
COUNT = 60


def is_coq_here() -> bool:
    """Whether there is Coq, with Mathematical Components."""
    if shutil.which("coqc") is None:
        return False
    found = subprocess.run(["coqc", "-where"], capture_output=True, text=True, check=True)
    return (Path(found.stdout.strip()) / "user-contrib" / "mathcomp").is_dir()


pytestmark = pytest.mark.skipif(not is_coq_here(), reason="Coq with Mathematical Components is not here")


def samples(alphabet: str) -> list[bytes]:
    """Texts of a grammar's characters: pieces of a member, and characters in any order."""
    rng = random.Random(0)
    pieces = [alphabet[(at := rng.randrange(len(alphabet))) : at + rng.randrange(1, 12)] for _ in range(COUNT // 2)]
    return [text.encode() for text in [*pieces, *("".join(rng.choices(alphabet, k=6)) for _ in range(COUNT // 2))]]


def lexed(lexer: Lexer, text: bytes) -> tuple[int, ...] | None:
    """The terminals of a whole text, or ``None`` where it is not cut into lexemes."""
    read = lexer.lex(text)
    last = None if read is None else lexer.flush(read[0])
    return None if read is None or last is None else (*read[1], *last)


def replayed(automaton: LexemeAutomaton, texts: list[bytes], folder: Path) -> list[tuple[int, ...] | None]:
    """What the proven transducer makes of texts, over the table of an automaton."""
    listed = lambda numbers: "[:: " + "; ".join(map(str, numbers)) + "]"  # noqa: E731
    rows = listed(listed(row) for row in automaton.targets.tolist())
    words = listed(listed(automaton.byte_class[list(text)].tolist()) for text in texts)
    shutil.copy(THEORIES / "lexing.v", folder)
    (folder / "replay.v").write_text(
        f"""From mathcomp Require Import all_ssreflect.
From Phi Require Import lexing.
Definition table : seq (seq nat) := {rows}.
Definition labels : seq nat := {listed((automaton.label + 1).tolist())}.
Definition positive (n : nat) : option nat := if n is m.+1 then Some n else None.
Definition delta (q c : nat) := positive (nth 0 (nth [::] table q) c).
Definition label (q : nat) := omap predn (positive (nth 0 labels q)).
Definition lexed w := obind (fun read => omap (cat read.2) (ends label read.1)) (reads delta {automaton.start} label None w).
Eval vm_compute in map lexed {words}.
"""
    )
    run = lambda file: subprocess.run(  # noqa: E731
        ["coqc", "-q", "-w", "none", "-R", ".", "Phi", file], cwd=folder, check=True, capture_output=True, text=True
    )
    run("lexing.v")
    found = re.findall(r"Some\s*(\[::[^\]]*\]|\[::\])|(None)", run("replay.v").stdout.partition(": seq")[0])
    return [None if none else tuple(map(int, re.findall(r"\d+", some))) for some, none in found]


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_the_lexer_of_a_grammar_is_the_proven_one(name: str, tmp_path: Path) -> None:
    terminals = read_grammar(grammar_text(name)).terminals
    lexer, automaton = Lexer.of(terminals), LexemeAutomaton.of(terminals)
    # Where terminals are held back, another definition holds (grammar-theory.md, section 2.3).
    assert not lexer.held.any()
    texts = samples(TEXTS[name])
    proven = replayed(automaton, texts, tmp_path)
    assert [lexed(lexer, text) for text in texts] == proven
    assert None in proven and any(word and len(word) > 2 for word in proven)
    # A step that emits nothing more, as of a wrong table, is found out.
    silent = replace(lexer, emits=lexer.emits * 0)
    assert [lexed(silent, text) for text in texts] != proven
