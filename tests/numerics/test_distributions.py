"""Draws in blocks and ahead, quantiles, transfers of a step, and a cache, against what they are defined by."""

import math
from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from outlines_phi import Vocabulary
from outlines_phi.numerics import cache as cache_module
from outlines_phi.numerics.cache import Cache, forget_parts, kept, kept_of_states, memory_of
from outlines_phi.numerics.distributions import add_rows, draw_ahead
from outlines_phi.numerics.weights import STRETCH, columns_at
from tests.inner import AnswerCheck, Distributions, Exchange, Rows, at_quantiles, distributions, draw
from tests.languages import p_value

GENERATOR = torch.Generator().manual_seed(0)


def law(p: np.ndarray) -> dict[int, float]:
    return dict(enumerate(p.tolist()))


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
    assert not (p[tokens[:, 0]] == 0).any()
    assert p_value(tokens[:, 0].tolist(), law(p)) > 1e-4
    likeliest = int(p.argmax())
    given = tokens[tokens[:, 0] == likeliest]
    distinct = np.where(given[:, 1] != likeliest, given[:, 1], given[:, 2])
    after = distinct[distinct != likeliest].tolist()
    rest = np.where(np.arange(size) == likeliest, 0.0, p)
    assert p_value(after, law(rest / rest.sum())) > 1e-4
    assert p_value(after, law(p)) < 1e-4 or p[likeliest] < 0.05  # control: not the distribution with it


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


UNIFORMS = np.array([0.0, 0.2, 0.5, 0.7499, 0.75, 1 - 2**-53])
WEIGHTS = np.array([0.0, 1.0, 0.0, 2.0, 1.0, 0.0])
PLACES = [1, 1, 3, 3, 4, 4]


def test_quantiles_of_weights_and_of_rows_agree() -> None:
    assert at_quantiles(WEIGHTS, UNIFORMS).tolist() == PLACES
    rows = torch.from_numpy(np.stack([WEIGHTS, 1e-300 * WEIGHTS])).cumsum(-1)
    assert columns_at(rows, torch.from_numpy(UNIFORMS).expand(2, -1)).tolist() == [PLACES, PLACES]


class Fixed(np.random.Generator):
    """A stream that has one uniform only."""

    uniform = 1 - 2**-53

    def random(self) -> float:  # type: ignore[override]
        return self.uniform


def test_a_quantile_of_the_whole_mass_is_the_last_index_with_any() -> None:
    weights = np.full(10, 0.1, dtype=np.float32)
    weights[-3:] = 0
    assert draw(weights, Fixed(np.random.PCG64(0))) == 6


def test_frequencies_are_the_weights() -> None:
    rng = np.random.default_rng(0)
    counts = np.bincount([draw(WEIGHTS, rng) for _ in range(4000)], minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    assert np.abs(counts / 4000 - WEIGHTS / 4).max() < 0.035  # four standard deviations


@pytest.mark.parametrize("uniform", [0.0, 1e-9, 0.3, 0.6, 0.999999, 1 - 2**-53])
def test_many_weights_are_read_as_few_are(uniform: float) -> None:
    stream = Fixed(np.random.PCG64(0))
    stream.uniform = uniform
    weights = np.random.default_rng(1).exponential(size=2 * STRETCH**2 + 7).astype(np.float32)
    weights[: 3 * STRETCH] = weights[5000:9000] = weights[-2 * STRETCH :] = 0.0
    found = draw(weights, stream)
    assert found == at_quantiles(weights, uniform) and weights[found] > 0


MATRIX = torch.arange(12.0).reshape(4, 3)


@pytest.fixture
def travelled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The transfers so far: which way, and of how many arrays."""
    made: list[tuple[str, int]] = []
    send, read = distributions.send, distributions.read

    def sending(device: torch.device, *arrays: Any) -> list[Tensor]:
        made.append(("to", len(arrays)))
        return send(device, *arrays)

    def reading(*tensors: Tensor) -> list[Any]:
        made.append(("from", len(tensors)))
        return read(*tensors)

    monkeypatch.setattr(distributions, "send", sending)
    monkeypatch.setattr(distributions, "read", reading)
    return made


def checked(places: Sequence[int], *, holds: bool) -> Rows:
    return Rows(MATRIX, places, AnswerCheck(torch.full((4,), holds), places, lambda: ArithmeticError("spoiled")))


def test_what_is_asked_for_travels_as_one(travelled: list[tuple[str, int]]) -> None:
    step = Exchange(checked([3, 1, 0], holds=True))
    rows, sent = step.rows([0, 2]), step.send(np.array([5]), np.array([0.5]))
    assert not travelled
    assert [x.tolist() for x in sent()] == [[5], [0.5]] and torch.equal(rows(), MATRIX[[3, 0]])
    assert torch.equal(rows(slice(1, 2)), MATRIX[[0]]) and travelled == [("to", 3)]
    assert step.send(np.array([7]))()[0].tolist() == [7] and travelled == [("to", 3), ("to", 1)]

    told: list[Any] = []
    step.tell(lambda a, b: told.append((a.tolist(), b.tolist())), torch.tensor([1]), torch.tensor([2]))
    step.tell(lambda c: told.append(c.tolist()), torch.tensor([3]))
    assert [x.tolist() for x in step.read(torch.tensor([4]))] == [[4]]
    assert told == [([1], [2]), [3]] and travelled[2:] == [("from", 5)]  # the check among them
    step.read(torch.tensor([6]))
    assert len(told) == 2 and travelled[3:] == [("from", 1)]


def test_rows_that_follow_one_another_need_nothing(travelled: list[tuple[str, int]]) -> None:
    assert Exchange(Rows.all(MATRIX)).rows([1, 2])().data_ptr() == MATRIX[1].data_ptr() and not travelled


def test_nobody_is_told_of_an_answer_that_fails_its_check() -> None:
    step, told = Exchange(checked([0, 1], holds=False)), list[Any]()
    step.tell(told.append, torch.tensor([1]))
    with pytest.raises(ArithmeticError, match="spoiled"):
        step.read()
    assert not told


def test_entries_are_made_once_and_the_least_recently_used_goes_first() -> None:
    cache: Cache[str, list[int]] = Cache(2)
    first, _, again, _ = (cache.of(key, list) for key in "abac")
    assert again is first
    assert "a" in cache and "b" not in cache and cache.size == 2


def test_sizes_are_bounded_but_for_the_least_number_of_entries() -> None:
    cache: Cache[int, bytes] = Cache(10, least=2)
    for key, size in enumerate((4, 5, 100, 3)):
        cache.of(key, lambda size=size: bytes(size), len)
    assert [key for key in range(4) if key in cache] == [2, 3] and cache.size == 103
    cache.put(2, b"", 0)
    assert cache.size == 3
    cache.clear()
    assert len(cache) == cache.size == 0


def test_memory_is_that_of_all_that_is_held_once() -> None:
    shared = np.zeros(1000)
    held = {"a": [shared, shared], "b": (shared[:10], "x" * 500)}
    assert 8000 + 80 + 500 < memory_of(held) < 8000 + 80 + 500 + 1000
    assert memory_of([Vocabulary.from_tokens(["", "a" * 500], 0)]) < 100 and memory_of(np.ndarray) == 0


def test_parts_are_made_once_and_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "kept_parts", Cache(5_000, least=1))
    made: list[int] = []

    @kept
    def part(size: int, *, odd: bool = False) -> bytes:
        made.append(size)
        return bytes(size)

    assert part(1000) is part(1000) and made == [1000]
    part(1000, odd=True)
    for size in range(2000, 2010):
        part(size)
    assert len(cache_module.kept_parts) < 3 and cache_module.kept_parts.size <= 5_000
    part(1000)
    assert made.count(1000) == 3
    forget_parts()
    assert len(cache_module.kept_parts) == 0


def test_what_is_kept_of_states_is_bounded_and_keeps_nobody_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "kept_rows", Cache(5_000, least=1))
    row = kept_of_states(lambda owner, size: np.zeros(size))
    first, *others = (type("Format", (), {})() for _ in range(10))
    assert row(first, 100) is row(first, 100) is not row(others[0], 100)
    gone = ref(first)
    del first
    assert gone() is None and all(len(row(owner, 100)) for owner in others) and cache_module.kept_rows.size <= 5_000
