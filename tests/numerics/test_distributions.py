"""Draws in blocks, and tokens drawn ahead with the sum of all others, against arithmetic in double precision."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch.overrides import TorchFunctionMode

from outlines_phi.numerics import distributions
from outlines_phi.numerics.distributions import Distributions, add_rows, draw_ahead
from outlines_phi.numerics.transfers import Rows

GENERATOR = torch.Generator().manual_seed(0)


def rows(size: int, scale: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    log_p = (scale * torch.randn(3, size, generator=GENERATOR, dtype=torch.float64)).log_softmax(-1)
    log_p[:, ::7] = -math.inf
    return log_p.to(dtype)


@pytest.mark.parametrize("size", [5, 256, 1000])
def test_ordered_draws_are_without_replacement(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair ``(a, b)`` of distinct tokens comes with ``p(a) p(b) / (1 - p(a))`` once both are there."""
    monkeypatch.setattr(distributions, "BLOCK", 4)
    n, log_p = 20_000, rows(size, 3.0)[0]
    uniforms = torch.rand(n, 3, generator=GENERATOR, dtype=torch.float64)
    tokens = draw_ahead(log_p.expand(n, -1), uniforms)[:, :3].long().numpy()
    p = log_p.double().softmax(-1).numpy()
    first = np.bincount(tokens[:, 0], minlength=size)
    assert not first[p == 0].any()
    assert _p_value(first, p) > 1e-4
    likeliest = int(p.argmax())
    given = tokens[tokens[:, 0] == likeliest]
    distinct = np.where(given[:, 1] != likeliest, given[:, 1], given[:, 2])
    after = np.bincount(distinct[distinct != likeliest], minlength=size)
    rest = np.where(np.arange(size) == likeliest, 0.0, p)
    assert _p_value(after, rest / rest.sum()) > 1e-4
    assert _p_value(after, p) < 1e-4 or p[likeliest] < 0.05  # control: not the distribution with it


def _p_value(counts: np.ndarray, p: np.ndarray) -> float:
    likely = np.argsort(-p)[:8]
    seen = np.array([*counts[likely], counts.sum() - counts[likely].sum()])
    expected = np.array([*p[likely], max(0.0, 1 - p[likely].sum())]) * counts.sum()
    kept = expected > 0
    return float(chisquare(seen[kept], expected[kept] * seen[kept].sum() / expected[kept].sum()).pvalue)


@pytest.mark.parametrize("top", [0.5, 1 - 1e-6, 1 - 1e-12])
def test_what_is_left_is_exact_however_little_it_is(top: float) -> None:
    """The sum of all tokens that were not drawn has a relative error of 1e-6, where one token holds nearly everything, too."""
    log_p = rows(1000, 1.0, torch.float64)
    log_p[:, 10] = -math.inf
    log_p = log_p.log_softmax(-1) + math.log1p(-top)
    log_p[:, 10] = math.log(top)
    found = draw_ahead(log_p.float(), torch.full((3, 4), 0.3, dtype=torch.float64))
    for row, exact in zip(found, log_p.float().double(), strict=True):
        tokens = sorted(set(row[:4].long().tolist()))
        left = exact.exp().sum() - exact[tokens].exp().sum() if top == 0.5 else _without(exact, tokens)
        assert row[-1].exp() == pytest.approx(float(left), rel=1e-6)
        assert torch.equal(row[4:8], exact[row[:4].long()])


def _without(log_p: torch.Tensor, tokens: list[int]) -> float:
    return float(log_p.index_fill(0, torch.tensor(tokens), -math.inf).exp().sum())


def test_a_row_that_allows_nothing_has_nothing() -> None:
    nothing = torch.full((2, 300), -math.inf)
    nothing[1, 7] = -3.0
    found = draw_ahead(nothing, torch.tensor([[0.0, 0.9], [0.0, 0.9]], dtype=torch.float64))
    assert (found[0, 2:] == -math.inf).all()
    assert found[1].tolist() == [7, 7, -3.0, -3.0, -math.inf]


@pytest.mark.parametrize("size", [5, 256, 1000])
def test_draws_of_few_rows_at_a_time_are_the_same(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = rows(size, 3.0)
    uniforms = torch.rand(3, generator=GENERATOR, dtype=torch.float64)
    together = Distributions.of(scores)
    monkeypatch.setattr(distributions, "CACHED", 1)
    apart = Distributions.of(scores)
    assert torch.equal(together.draw(torch.arange(3), uniforms), apart.draw(torch.arange(3), uniforms))
    assert torch.allclose(together.log_s, scores.double().logsumexp(-1), atol=1e-6)


def test_neighbours_that_get_the_same_row_are_one_operation() -> None:
    one, two = torch.randn(2, 10)
    rows = [one, one, two, one, one, one]
    x = torch.randn(6, 10)
    expected = x + torch.stack(rows)

    class Additions(TorchFunctionMode):
        count = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.count += getattr(func, "__name__", "") == "add"
            return func(*args, **(kwargs or {}))

    with Additions() as additions:
        assert torch.equal(add_rows(x, rows, out=torch.empty_like(x)), expected) and not torch.equal(x, expected)
    assert additions.count == 3
    assert torch.equal(add_rows(x, rows, out=x), expected) and torch.equal(x, expected)
    assert add_rows(x[:0], [], out=x[:0]).shape == (0, 10)


def test_rows_are_copied_where_they_lie_apart() -> None:
    matrix = torch.randn(6, 10)
    some = Rows(matrix, [4, 0, 1, 2])
    assert len(some) == 4 and torch.equal(some.whole(), matrix[[4, 0, 1, 2]])
    assert some.take([1, 2]).data_ptr() == matrix.data_ptr() and torch.equal(some[1:].take([2, 0]), matrix[[2, 0]])
    assert some.take([]).shape == (0, 10)
    joined = Rows.joined([some, Rows.all(matrix[5:])], [np.array([0, 1, 4, 3]), np.array([2])])
    assert torch.equal(joined.whole(), matrix[[4, 0, 5, 2, 1]])
    assert Rows.joined([some], [np.arange(4)]) is some
