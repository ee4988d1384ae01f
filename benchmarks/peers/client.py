"""genlm-control as a process of its own, that answers in JSON."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outlines_phi.lm import bundled

RUNNER = Path(__file__).parent / "runner.py"

Population = list[tuple[str, float]]
"""The texts of one run's particles, with the log of their weights; particles of weight 0 are left out."""


class Cost(NamedTuple):
    """The cost on the model, and in all: ``seconds`` of wall time, ``processor`` seconds where they were measured."""

    calls: float
    tokens: float
    sequences: float
    seconds: float
    processor: float = 0.0


class Answer(NamedTuple):
    """The runs of a request, and what the first so many of them cost together (or, cold, each of them alone)."""

    runs: list[Population]
    costs: dict[int, Cost]
    compile: float = 0.0
    """Processor seconds that the condition took to build; 0 where it was there."""


class Table(NamedTuple):
    """A model within a budget: its tokens, and what may follow every prefix, with its probability; the end is one more token."""

    tokens: list[bytes]
    rows: list[tuple[list[int], list[int], list[float]]]
    budget: int


class BannedAnswer(NamedTuple):
    """The particles of each run, as token ids of a table, and what each run cost: its tokens are distinct prefixes."""

    runs: list[list[tuple[tuple[int, ...], float]]]
    costs: list[Cost]


class GenLM:
    """genlm-control in its own environment, on the bundled model.

    Parameters
    ----------
    python
        The interpreter of that environment.
    tokens
        The bytes of each token of the bundled model.

    Attributes
    ----------
    versions
        Of genlm-control and of what it stands on.
    """

    def __init__(self, python: str, tokens: tuple[bytes, ...]) -> None:
        command = [python, "-W", "ignore", str(RUNNER), str(bundled.path())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._tokens = tokens
        self.versions: dict[str, str] = self._read()

    def run(
        self,
        prompt: list[int],
        pattern: str,
        budget: int,
        particles: int,
        checkpoints: list[int],
        seed: int,
        *,
        cold: bool,
    ) -> Answer:
        """Return the runs up to the last checkpoint; ``cold`` ones each begin with empty caches."""
        request = {"prompt": prompt, "pattern": pattern, "budget": budget, "particles": particles}
        answer = self._ask(request | {"checkpoints": checkpoints, "seed": seed, "cold": cold})
        runs = [[(self._text(ids), log_w) for ids, log_w in run] for run in answer["runs"]]
        return Answer(runs, {number: Cost(*meters) for number, *meters in answer["meters"]}, answer["compile"])

    def banned(
        self, table: Table, phrases: Sequence[bytes], particles: int, runs: int, seed: int, *, critic: bool
    ) -> BannedAnswer:
        """Return runs without ``phrases`` under a model that is a table, each from empty caches.

        The ban is the condition of adaptive rejection, or, as ``critic``, a weight on what is drawn from the model alone.
        """
        request = {"table": table.rows, "tokens": [token.hex() for token in table.tokens], "budget": table.budget}
        request |= {"phrases": [phrase.hex() for phrase in phrases], "particles": particles, "runs": runs}
        answer = self._ask(request | {"seed": seed, "critic": critic})
        populations = [[(tuple(ids), log_w) for ids, log_w in run] for run in answer["runs"]]
        return BannedAnswer(populations, [Cost(*meters) for _, *meters in answer["meters"]])

    def close(self) -> None:
        """End the process."""
        self._process.communicate()  # closes its input, which ends it

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{RUNNER.name} ended with code {self._process.wait()}; see what it wrote above.")
        return json.loads(line)

    def _text(self, ids: list[int]) -> str:
        return b"".join(self._tokens[token] for token in ids).decode()
