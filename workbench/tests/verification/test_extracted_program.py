"""The program that is extracted from the proofs: it checks certificates of masks (certificate.v), and replays attempts (pick.v)."""

import copy
import json
import math
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlines_phi import UnsupportedError, Vocabulary
from outlines_phi.guides import CFGGuide, read_grammar
from outlines_phi.guides.grammar.notation.reader import grammar_text
from outlines_phi.guides.guide import DEAD, DONE, Row
from outlines_phi.phi.tree.evaluator import Evaluator
from outlines_phi.phi.tree.tree import BoundsTree, Node
from outlines_phi.sampling.rejection.attempts import Attempt, descend
from outlines_phi_workbench.verification import certificate as subject
from outlines_phi_workbench.verification.certificate import certificate
from tests.languages import LANGUAGES, PROMPT, Language

PROOFS = Path(__file__).parents[3] / "proofs"
THEORIES = ("tree", "thinning", "pick", "transducer", "lexing", "grammar", "certificate", "extraction")

Checker = Callable[..., tuple[int, str]]


def is_coq_here() -> bool:
    """Return True if there are Coq, with Mathematical Components, and OCaml."""
    if shutil.which("coqc") is None or shutil.which("ocamlfind") is None:
        return False
    found = subprocess.run(["coqc", "-where"], capture_output=True, text=True, check=True)
    return (Path(found.stdout.strip()) / "user-contrib" / "mathcomp").is_dir()


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Checker:
    """Extract and compile the program; return what runs it on data, and gives the exit status and what was said."""
    if not is_coq_here():
        pytest.skip("Coq with Mathematical Components, and OCaml, are not here")
    folder = tmp_path_factory.mktemp("checker")
    for theory in THEORIES:
        shutil.copy(PROOFS / "theories" / f"{theory}.v", folder)
        subprocess.run(["coqc", "-q", "-w", "none", "-R", ".", "Phi", f"{theory}.v"], cwd=folder, check=True)
    shutil.copy(PROOFS / "checker" / "main.ml", folder)
    build = ["ocamlfind", "ocamlopt", "-w", "-a", "certificate.mli", "certificate.ml", "main.ml", "-o", "check"]
    subprocess.run(build, cwd=folder, check=True)

    def run(found: Any, *options: str) -> tuple[int, str]:
        path = folder / "data.json"
        path.write_text(found if isinstance(found, str) else json.dumps(found))
        done = subprocess.run([folder / "check", *options, path], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    return run


BYTES = [bytes([byte]) for byte in range(256)]
SHORT = Vocabulary.from_tokens([*BYTES, b"((", b"))", b"1+", b'":', b"[]", b"{}", b"}]", b""], 263)
TEXTS = {
    **{name: grammar_text(name) for name in ("arithmetic", "dyck-2", "json", "lean", "sql", "c")},
    "traps": 'value: NUM | "(" NUM NUM ")"\nstart: value\nNUM: /1+/\n',
    "going back": "start: (NUM | WORD)+\nNUM: /1+(e1+)?/\nWORD: /[a-z]+/\n%ignore /_+/\n",
}


def guide_of(name: str) -> CFGGuide:
    return CFGGuide.of(read_grammar(TEXTS[name]), SHORT)


@cache
def written(name: str, samples: int = 4) -> dict[str, Any]:
    return certificate(guide_of(name), samples=samples)


@pytest.mark.parametrize(
    ("name", "samples"), [*((name, 4) for name in ("arithmetic", "dyck-2", "json", "traps", "going back")), ("lean", 0), ("sql", 0)]
)  # fmt: skip
def test_masks_of_small_grammars_and_lexers_of_large_ones_are_proven(name: str, samples: int, checker: Checker) -> None:
    code, said = checker(written(name, samples))
    assert (code, said[:6]) == (0, "PROVED") and f"{len(written(name, samples)['samples'])} masks of 263" in said, said


def flip(found: dict[str, Any], bit: str) -> None:
    """Change the first bit of a mask that is ``bit``."""
    mask = found["samples"][1]["mask"]
    place = mask.index(bit)
    found["samples"][1]["mask"] = mask[:place] + "10"[int(bit)] + mask[place + 1 :]


def step(found: dict[str, Any]) -> None:
    """Lead a step of the lexer elsewhere."""
    rows = found["lexer"]["targets"]
    state, column = next((s, c) for s, row in enumerate(rows) for c, target in enumerate(row) if target > 1)
    rows[state][column] -= 1


def witness(found: dict[str, Any]) -> None:
    """Complete a text by other bytes."""
    next(outcome for outcome in found["samples"][1]["outcomes"] if isinstance(outcome[2], list))[2][0].append(33)


def rules(found: dict[str, Any]) -> tuple[list[Any], int]:
    return found["grammar"]["rules"], found["grammar"]["start"]


FAULTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a token too few": lambda found: flip(found, "1"),
    "a token too many": lambda found: flip(found, "0"),
    "a step of the lexer": step,
    "a lexer that emits nothing": lambda found: [row.__setitem__(slice(None), [0] * len(row)) for row in found["lexer"]["emits"]],
    "a rule too many": lambda found: rules(found)[0].append([rules(found)[1], [0]]),
    "a rule too few": lambda found: [rule.__setitem__(1, []) for rule in rules(found)[0] if rule[0] == rules(found)[1]],
    "items that are not closed": lambda found: [here.__delitem__(slice(0, 1)) for here in found["places"]["items"]],
    "an arc too few": lambda found: [here.__delitem__(slice(0, 1)) for here in found["places"]["arcs"]],
    "an end": lambda found: found["samples"][0].update(end=[[], []]),
    "a witness": witness,
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_refused(fault: str, checker: Checker) -> None:
    found = copy.deepcopy(written("arithmetic"))
    assert checker(found)[0] == 0
    FAULTS[fault](found)
    code, said = checker(found)
    assert (code, said[:7]) == (1, "REFUSED"), said


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"tokens": [[', '{"samples": 1e5}', '{"tokens": [[1]]} 2'])
def test_what_is_no_certificate_is_refused(text: str, checker: Checker) -> None:
    code, said = checker(text)
    assert code == 2 and said.startswith("Give a certificate"), said


def test_a_wrong_guide_is_refused(checker: Checker) -> None:
    guide = guide_of("traps")
    right = guide.row(guide.start)
    targets = right.targets.copy()
    trap = right.partition.class_of[ord("(")]
    assert targets[trap] == DEAD  # lexer and parser would read it, and nothing completes it
    targets[trap] = targets[targets > DONE][0]
    guide.row = lambda state: Row(right.partition, targets)  # type: ignore[method-assign]
    assert checker(certificate(guide, samples=1))[1].startswith("REFUSED")


def test_what_has_no_certificate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UnsupportedError, match=r"Give a grammar whose lexemes are the longest without exception\. After '/"
    ):
        certificate(guide_of("c"), samples=0)
    few = CFGGuide.of(read_grammar(TEXTS["traps"]), Vocabulary.from_tokens([b"11", b"(", b")", b""], 3))
    with pytest.raises(UnsupportedError, match=r"every byte is a token\. Members with the byte '1'"):
        certificate(few)
    monkeypatch.setattr(subject, "MOST_ITEMS", 100)
    with pytest.raises(UnsupportedError, match=r"Give a smaller grammar\. .* 100 items or arcs"):
        certificate(guide_of("json"), samples=1)


WORDS, LOOP = LANGUAGES[:2]
SCALE = 1 << 48  # Probabilities as whole numbers; what is lost of a float decides no step here
FAILED = -1

Step = tuple[int, int, tuple[int, ...]]  # coin, quantile, masses


class Heard(np.random.Generator):
    """A random generator that keeps the uniforms that it gave."""

    def __init__(self, seed: int) -> None:
        super().__init__(np.random.PCG64(seed))
        self.uniforms: list[float] = []

    def random(self, *arguments: object, **options: object) -> float:  # type: ignore[override]
        assert not arguments and not options
        self.uniforms.append(float(super().random()))
        return self.uniforms[-1]


def steps_of(language: Language, seed: int) -> list[tuple[Step, int]]:
    """Walk attempts on a tree that grows, and return each step with what was chosen: a place among the children, or the rest."""
    tree = BoundsTree(language.table, language.budget)
    evaluator = Evaluator(language.lm, language.settings(), [PROMPT], [tree])
    found: list[tuple[Step, int]] = []
    for number in range(60):
        attempt = Attempt(number, tree.root, Heard(1000 * seed + number))
        while watched(tree, attempt, found) is None:
            evaluator.expand([(tree, attempt.node)])
    return found


def watched(tree: BoundsTree, attempt: Attempt, found: list[tuple[Step, int]]) -> bool | None:
    """Take an attempt down as :func:`descend` does, and write down its steps."""
    choose = tree.choose
    rng = attempt.rng
    assert isinstance(rng, Heard)

    def masses(node: Node, since: int) -> tuple[int, ...]:
        shares = [math.exp(child.log_step + child.log_upper) for child in islice(node.children.values(), since, None)]
        return tuple(round(share * SCALE) for share in [*shares, math.exp(node.log_rest)])

    def chosen(node: Node, log_weight: Callable[[Node], float], rng: Heard, *, since: int) -> Node | None:
        before, listed = masses(node, since), list(islice(node.children.values(), since, None))
        bound, first = math.exp(attempt.log_bound), len(rng.uniforms)
        total = math.exp(node.log_rest) + sum(math.exp(child.log_step + child.log_upper) for child in listed)
        coin = rng.uniforms[-1]
        child = choose(node, log_weight, rng, since=since)
        place = next((place for place, each in enumerate(listed) if each is child), len(listed))
        found.append(((round(coin * bound * SCALE), round(rng.uniforms[first] * total * SCALE), before), place))
        return child

    tree.choose = chosen  # type: ignore[method-assign, assignment]
    try:
        outcome = descend(tree, attempt)
    finally:
        tree.choose = choose  # type: ignore[method-assign]
    if outcome is False and rng.uniforms:
        coin = round(rng.uniforms[-1] * math.exp(attempt.log_bound) * SCALE)
        found.append(((coin, 0, masses(attempt.node, attempt.since)), FAILED))
    return outcome


@pytest.mark.parametrize("language", [WORDS, LOOP], ids=str)
def test_each_step_is_the_proven_one(language: Language, checker: Checker) -> None:
    steps = steps_of(language, seed=1)
    python = [place for _, place in steps]
    assert json.loads(checker([step for step, _ in steps], "--steps")[1]) == python
    assert len(steps) > 100 and FAILED in python and len(set(python)) > 3


def test_a_walk_without_its_coin_is_found_out(checker: Checker) -> None:
    steps = steps_of(LOOP, seed=2)
    without = [(0, quantile, masses) for (_, quantile, masses), _ in steps]
    assert json.loads(checker(without, "--steps")[1]) != [place for _, place in steps]
