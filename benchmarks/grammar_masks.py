"""Grammars over 131k tokens: from the text to the first mask, and a step, against llguidance and xgrammar in one run.

    python -m benchmarks.grammar_masks

A step advances by one token and makes the mask of the whole vocabulary, in the form in which each engine gives it: a row that is
added to logits here, a bit per token there. Steps are measured along documents that were not seen before, after others that were.
A step of ours is cold where its state has not been met. Each engine runs in processes of its own.
"""

import json
import random
import re
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.compile import forget_peak, peak_megabytes
from benchmarks.documents import DOCUMENTS, many_rules, spelled
from benchmarks.report import Report
from benchmarks.schema_engines import llguidance_tokenizer, xgrammar_tokenizer
from benchmarks.schemas import tekken_vocabulary
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.notation.reader import grammar_text, read_grammar
from outlines_phi.guides.guide import DEAD, UNREACHABLE
from outlines_phi.guides.table import Table
from outlines_phi.vocabulary.trie import Trie
from outlines_phi.vocabulary.vocabulary import Vocabulary

MANY = 200
"""Rules of the largest grammar, which has no documents."""

MICRO = 1e6


class Engine(ABC):
    """A maker of masks."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @abstractmethod
    def compile(self, name: str, text: str) -> None:
        """Read a grammar and make the first mask."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a text."""

    @abstractmethod
    def step(self, token: int | None) -> None:
        """Advance by ``token``, none at the start of a text, and make the mask."""

    def rows(self) -> int | None:
        """The number of states that have been met, where that is known."""
        return None


class Ours(Engine):
    """outlines_phi."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self.device = torch.device("cpu")
        Trie.of(vocabulary)

    def compile(self, name: str, text: str) -> None:
        self.table = Table(CFGGuide.of(read_grammar(text), self.vocabulary))
        self.met: set[int] = set()
        self.begin()
        self.step(None)

    def begin(self) -> None:
        self.state = self.table.start

    def step(self, token: int | None) -> None:
        if token is not None:
            self.state = self.table.advance(self.state, token, UNREACHABLE - 1)
            assert self.state != DEAD
        self.met.add(self.state)
        self.table.bias(self.state, None, self.device)

    def rows(self) -> int | None:
        return len(self.met)


class LLGuidance(Engine):
    """llguidance, which reads the same grammars, but for templates: those are written out."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        import llguidance.numpy

        self.package, self.tokenizer = llguidance, llguidance_tokenizer(vocabulary)
        self.mask = llguidance.numpy.allocate_token_bitmask(1, len(vocabulary))

    def compile(self, name: str, text: str) -> None:
        text = re.sub(r"(?m)^_list\{item\}:.*\n\s*\|.*\n", "", text)
        text = re.sub(r"_list\{([^}]*)\}", r'(\1 ("," \1)*)', text)
        self.first = self.package.LLMatcher(self.tokenizer, text)
        assert not self.first.is_error(), self.first.get_error()
        self.begin()
        self.step(None)

    def begin(self) -> None:
        self.matcher = self.first.deep_copy()

    def step(self, token: int | None) -> None:
        if token is not None:
            assert self.matcher.consume_token(token)
        self.package.numpy.fill_next_token_bitmask(self.matcher, self.mask, 0)


class XGrammar(Engine):
    """xgrammar, whose dialect is another one: its own JSON grammar."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        import xgrammar

        self.package, self.compiler = xgrammar, xgrammar.GrammarCompiler(xgrammar_tokenizer(vocabulary))
        self.mask = xgrammar.allocate_token_bitmask(1, len(vocabulary))

    def compile(self, name: str, text: str) -> None:
        if name != "json":
            raise NotImplementedError(name)
        self.compiled = self.compiler.compile_builtin_json_grammar()
        self.begin()
        self.step(None)

    def begin(self) -> None:
        self.matcher = self.package.GrammarMatcher(self.compiled)

    def step(self, token: int | None) -> None:
        if token is not None:
            assert self.matcher.accept_token(token)
        self.matcher.fill_next_token_bitmask(self.mask)


ENGINES = {"ours": Ours, "llguidance": LLGuidance, "xgrammar": XGrammar}


def text_of(name: str) -> str:
    """Return the text of a grammar."""
    return many_rules(MANY) if name == "200 rules" else grammar_text(name)


def documents(name: str, count: int, seed: int, vocabulary: Vocabulary) -> list[list[int]]:
    """Return the tokens of ``count`` documents."""
    if name not in DOCUMENTS:
        return []
    rng = random.Random(seed)
    return [spelled(DOCUMENTS[name](rng), vocabulary) for _ in range(count)]


def walk(engine: Engine, texts: Sequence[Sequence[int]]) -> list[tuple[float, bool]]:
    """Return the seconds of each step along ``texts``, and whether its state was new, as far as that is known."""
    steps = []
    for text in texts:
        engine.begin()
        for token in (None, *text):
            before = engine.rows()
            start = time.perf_counter()
            engine.step(token)
            steps.append((time.perf_counter() - start, engine.rows() != before))
    return steps


def measure(name: str, engine_name: str, count: int) -> dict[str, Any]:
    """Measure one engine and one grammar, in this process."""
    vocabulary = tekken_vocabulary()
    engine = ENGINES[engine_name](vocabulary)
    if engine_name == "ours":
        read_grammar('start: "a"')  # lark's own tables are loaded once in a process
    forget_peak()
    before = peak_megabytes()
    start = time.perf_counter()
    engine.compile(name, text_of(name))
    ready = time.perf_counter() - start
    walk(engine, documents(name, count, 1, vocabulary))
    steps = walk(engine, documents(name, count, 2, vocabulary))
    seconds, new = np.array([time for time, _ in steps]), np.array([is_new for _, is_new in steps], dtype=bool)
    known = engine.rows() is not None and len(seconds) > 0
    return {
        "ready": ready,
        "grown": peak_megabytes() - before,
        "steps": len(steps),
        "median": MICRO * float(np.median(seconds)) if len(seconds) else None,
        "p99": MICRO * float(np.quantile(seconds, 0.99)) if len(seconds) else None,
        "hits": float(1 - new.mean()) if known else None,
        "cold": MICRO * float(np.median(seconds[new])) if known and new.any() else None,
        "cold p99": MICRO * float(np.quantile(seconds[new], 0.99)) if known and new.any() else None,
        "rows": engine.rows() if known else None,
    }


def main(
    count: Annotated[int, typer.Option(help="Documents to warm up on, and as many to measure.")] = 20,
    repeats: Annotated[int, typer.Option(help="Fresh processes per engine and grammar.")] = 3,
    names: Annotated[str, typer.Option(help="Grammars, by commas.")] = "json,arithmetic,sql,c,200 rules",
    only: Annotated[
        str, typer.Option(hidden=True, help="Measure this engine here, with one grammar, and print JSON.")
    ] = "",
) -> None:
    """Measure and write ``benchmarks/results/grammar_masks.json``."""
    if only:
        print(json.dumps(measure(names, only, count)))
        return
    report = Report(
        "grammar_masks",
        "Grammars over 131k tokens: seconds to the first mask, and microseconds of a step on unseen documents",
        [
            "grammar",
            "engine",
            "ready, s",
            "memory grown, MB",
            "step",
            "p99",
            "states met before",
            "cold step",
            "cold p99",
            "states",
        ],
    )
    for name in names.split(","):
        for engine in ENGINES:
            command = [
                sys.executable,
                "-m",
                "benchmarks.grammar_masks",
                "--names",
                name,
                "--only",
                engine,
                "--count",
                str(count),
            ]
            runs = [subprocess.run(command, capture_output=True, text=True) for _ in range(repeats)]
            if any(run.returncode for run in runs):
                print(f"{engine} does not take {name}: {runs[0].stderr.strip().splitlines()[-1]}")
                continue
            found = [json.loads(run.stdout) for run in runs]

            def median(what: str, found: list[dict[str, Any]] = found) -> float | str:
                values = [run[what] for run in found if run[what] is not None]
                return statistics.median(values) if values else ""

            share = median("hits")
            report.add(
                name,
                engine,
                median("ready"),
                max(run["grown"] for run in found),
                median("median"),
                median("p99"),
                f"{share:.1%}" if share != "" else "",
                median("cold"),
                median("cold p99"),
                median("rows"),
            )
    report.write(vocabulary=len(tekken_vocabulary()), documents=count, repeats=repeats)


if __name__ == "__main__":
    typer.run(main)
