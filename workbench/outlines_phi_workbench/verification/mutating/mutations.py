"""Engines made wrong on purpose, whole guides each, and the check that finds each out: T17 and T18 of grammar-theory.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import cast

import numpy as np
from numpy.typing import NDArray

from outlines_phi.errors import OutlinesPhiError
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.lexing.spanner import Spanner
from outlines_phi.guides.guide import Guide
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.vocabulary.vocabulary import Vocabulary

from .. import grammar_checks, guide_checks
from ..exploration import Collapse
from ..oracle import PatternOracle
from ..subject import Check, CheckFinding, GrammarParts, Subject, check
from .engine_mutants import ENGINE
from .mutants import LIFTED, ROWS, Met, Mutation

DEPTH = 3  # The depth to which a wrong guide is followed
NODES, ENGINES = 1_000, 100  # In how many nodes at most, one with wrong rows, and one with wrong tables

BY_WORDS: tuple[Check, ...] = (
    guide_checks.allowed_survives,
    guide_checks.sound,
    guide_checks.complete,
    guide_checks.ends_are_exact,
    guide_checks.prefixes_are_exact,
    guide_checks.productive,
)
"""The checks of a wrong guide, on words of one token first, then of two, and so on."""

AT_LAST: tuple[Check, ...] = (
    guide_checks.independent_of_the_cut,
    guide_checks.collapse_is_lossless,
    grammar_checks.lexer_is_longest_match,
    grammar_checks.tokens_are_their_bytes,
    grammar_checks.classes_are_exact,
    grammar_checks.parser_is_earley,
)
"""The checks that follow."""

BROKEN, HARMLESS, NOWHERE = "an error", "no mistake here", "no place for it"
"""In the place of a check: tables that contradict each other, what changes nothing that was visited, and what cannot be made."""


@check("T17", "wrong guides are found out")
def mistakes_are_found(subject: Subject) -> CheckFinding:
    """Masks that are made wrong on purpose are found out by these checks."""
    return found_out(near(subject, NODES), ROWS)


@check("T18", "wrong engines are found out", of_tables=True)
def wrong_engines_are_found(subject: Subject) -> CheckFinding:
    """Guides whose lexer, token classes, parser, automaton or distances are made wrong on purpose are found out by these checks."""
    right = over_few(subject)
    assert right.exploration.nodes  # an error of the right guide is none of a mutant
    return found_out(right, LIFTED if subject.machine is None else ENGINE)


def found_out(right: Subject, mutations: Iterable[Mutation]) -> CheckFinding:
    """Check that all mutants of the guide that is right are found out; the remark says by which checks."""
    met, found, cases = Met(right), dict[str, list[str]](), 0
    for mutation in mutations:
        try:
            mutant = mutation.make(met, Random(mutation.name))
            said = NOWHERE if mutant is None else finder_of(right, mutant)
        except (OutlinesPhiError, ArithmeticError, AssertionError, LookupError, RecursionError, ValueError):
            said = BROKEN
        cases += said != NOWHERE
        if said is None:
            return CheckFinding.bounded(right.depth or DEPTH, cases, f"a guide that {mutation.name} was not found out")
        found.setdefault(said, []).append(mutation.name)
    remark = "; ".join(f"{said}: {', '.join(names)}" for said, names in sorted(found.items()))
    return CheckFinding.bounded(right.depth or DEPTH, cases, None, remark)


def finder_of(right: Subject, mutant: Guide) -> str | None:
    """Return the first check that finds ``mutant`` out, or :data:`HARMLESS`; ``None`` where it is not found out."""
    machine = GrammarParts(mutant, right.parts.oracle) if isinstance(mutant, CFGGuide) else right.machine
    wrong = replace(right, guide=mutant, machine=machine)
    shorter = [replace(wrong, depth=depth) for depth in range(1, wrong.depth or DEPTH)]
    asked = [(finder, each) for each in (*shorter, wrong) for finder in BY_WORDS] + [(each, wrong) for each in AT_LAST]
    for finder, subject in asked:
        is_of_it = isinstance(mutant, CFGGuide) or not finder.of_grammars
        if is_of_it and finder.find(subject).witness is not None:
            return finder.id
    return None if _differs(right, wrong) else HARMLESS


def _differs(right: Subject, wrong: Subject) -> bool:
    """Return True if a row or a distance that was visited differs."""
    for node in wrong.exploration.inner:
        state = right.guide.start
        for token in node.word:
            state = right.guide.advance(state, token)
        if right.guide.min_tokens(state) != wrong.guide.min_tokens(node.state) or not np.array_equal(
            _after(right.guide, state, right), _after(wrong.guide, node.state, right)
        ):
            return True
    return False


def _after(guide: Guide, state: int, right: Subject) -> NDArray[np.int64]:
    """Return ``int64[R + 1]``: the distance after each of the tokens that stand for all, and after the end."""
    tokens = np.append(right.collapse.tokens, guide.vocabulary.eos_ids[0])
    return guide.distances_after(state)[guide.partition_of(state).class_of[tokens]]


def near(subject: Subject, nodes: int) -> Subject:
    """Return the subject of a verification on few words."""
    depth = DEPTH if subject.depth is None else min(subject.depth, DEPTH)
    return replace(subject, depth=depth, most=nodes, tokenizer=None, fault=None, progress=None)


def over_few(subject: Subject) -> Subject:
    """Return the right guide over the tokens that stand for all, which is quickly made; a mutant of it is as quickly made."""
    texts = subject.collapse.texts
    vocabulary = Vocabulary.from_tokens([*texts, b""], len(texts))
    collapse = Collapse(np.arange(len(texts)), texts, np.append(np.arange(len(texts)), -1))
    few = replace(near(subject, ENGINES), collapse=collapse)
    if subject.machine is None:
        oracle = cast("PatternOracle", subject.oracle)
        return replace(few, guide=FSMGuide.from_automaton(compile_regex(oracle.pattern), vocabulary))
    guide = subject.machine.guide
    guide = CFGGuide(Spanner(guide.lexer, vocabulary), guide.parser)
    return replace(few, guide=guide, machine=GrammarParts(guide, subject.machine.oracle))
