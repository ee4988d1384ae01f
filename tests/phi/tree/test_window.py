"""The ends of windows, against plain Python, and the options of a look-ahead."""

import math

import numpy as np
import pytest

from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.guide import DONE
from outlines_phi.phi.tree.tree import BoundsTree, Node
from outlines_phi.phi.tree.window import Ending, PhraseWindows, Release, Renewal
from outlines_phi.sampling.phi_options import WINDOW, Effort, LookaheadPhi
from tests.guides.banning import assert_same
from tests.languages import LANGUAGES
from tests.sampling.banning import VOCABULARY, Banned, Ends, Ids, released, renewed

CASE = Banned((b"abab", b"bca", b"cc"), 6, seed=1, scale=2.5)


def ended(ending: Ending, budget: int) -> set[Ids]:
    """All token sequences without a phrase that are one window, or a text, in the trees of the package."""
    windows = PhraseWindows(CASE.table, ending)
    tree = windows.tree(CASE.table.start, budget)
    found, level = set(), [tree.root]
    while level:
        node = level.pop()
        tree.expand(node, np.log(CASE.p(node.tokens())))
        assert node.distribution is not None
        for token, target in zip(
            node.distribution.moves.tokens.tolist(), node.distribution.moves.targets.tolist(), strict=True
        ):
            if target == DONE:
                found.add((*node.tokens(), token))
            else:
                level.append(tree.child(node, token, target))
    return found


def expected(ends: Ends, budget: int) -> set[Ids]:
    """The same by plain Python."""
    found: set[Ids] = set()
    level: list[Ids] = [()]
    while level:
        ids = level.pop()
        for longer in ((*ids, token) for token in range(len(VOCABULARY))):
            if not CASE.bad(longer):
                over = len(longer) == budget or longer[-1] == 0
                (found.add if over or CASE.ended(ends, (), longer) else level.append)(longer)
    return found


@pytest.mark.parametrize("length", [1, 2, 16])
def test_windows_end_where_nothing_waits(length: int) -> None:
    assert_same(ended(Renewal(length), 6), expected(renewed(length), 6))


def test_windows_end_where_few_walks_come() -> None:
    """Without the clause some would be longer."""

    def patient(written: tuple[bytes, ...], waits: int, survival: float) -> bool:
        return renewed(16)(written, waits, 1.0)

    windows = expected(renewed(16), 6)
    assert_same(ended(Renewal(16), 6), windows)
    assert windows ^ expected(patient, 6)


def test_windows_end_where_their_first_token_is_released() -> None:
    windows = expected(released, 6)
    assert_same(ended(Release(), 6), windows)
    assert windows ^ expected(renewed(16), 6)


@pytest.mark.parametrize(("pending", "tokens"), [(0, 4), (1, 3), (2, 2), (3, 1), (4, 1), (5, 1), (6, 0)])
def test_what_precedes_the_waiting_bytes_is_final(pending: int, tokens: int) -> None:
    assert Release().released([1, 3, 1, 1], pending) == tokens
    assert Renewal(2).released([1, 3, 1, 1], pending) == 4


def test_a_tree_says_itself_what_is_live() -> None:
    """The hook that windows use, and its default."""
    seen: list[Node] = []

    def moves(node: Node) -> object:
        seen.append(node)
        return CASE.table.moves(node.state, node.remaining)

    for tree in (BoundsTree(CASE.table, 3), BoundsTree(CASE.table, 3, moves=moves)):  # type: ignore[arg-type]
        tree.expand(tree.root, np.log(np.full(len(VOCABULARY), 1 / len(VOCABULARY))))
        tree.propagate([tree.root])
        assert math.exp(tree.root.log_upper) == pytest.approx(1.0)
    assert seen == [tree.root]


def test_a_guide_without_phrases_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="FSMGuide, which bans no phrases.*banned_phrases="):
        PhraseWindows(LANGUAGES[0].table, Renewal(4))


def test_options_say_where_windows_end() -> None:
    def ending(**options: object) -> Ending:
        return LookaheadPhi(**options).windows(CASE.table).ending  # type: ignore[arg-type, attr-defined]

    assert ending() == Renewal(WINDOW) and ending(window=3) == Renewal(3) and ending(release="early") == Release()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": 1}, "weights=1 .* True or False"),
        ({"window": 0}, "window=0 .* at least 1"),
        ({"width": 0}, "width=0 .* at least 1"),
        ({"release": "late"}, "release='late' .* 'window' or 'early'"),
        ({"effort": 3}, r"effort=3.* Effort\("),
        ({"release": "early", "weights": True}, "release='window' for weights"),
        ({"release": "early", "window": 4}, "has no effect|window= has no effect"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        LookaheadPhi(**options)  # type: ignore[arg-type]
    assert LookaheadPhi(effort=Effort(attempts=2)).effort.attempts == 2
