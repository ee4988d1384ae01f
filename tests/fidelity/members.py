"""The members of a small guide, found by walking it."""

from outlines_phi.guides import Guide
from tests.inner import DEAD, DONE


def members(guide: Guide, budget: int) -> set[tuple[int, ...]]:
    """Return every token sequence of at most ``budget`` tokens, end of sequence included, that leads to the end."""
    found: set[tuple[int, ...]] = set()
    level: list[tuple[tuple[int, ...], int]] = [((), guide.start)]
    for _ in range(budget):
        below = [
            ((*ids, token), guide.advance(state, token))
            for ids, state in level
            for token in range(len(guide.vocabulary))
        ]
        found.update(ids for ids, state in below if state == DONE)
        level = [(ids, state) for ids, state in below if state not in (DEAD, DONE)]
    return found
