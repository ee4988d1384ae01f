"""The transfers of a step: one each way, and nobody is told of an answer that fails its check."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outlines_phi.numerics import transfers
from outlines_phi.numerics.transfers import AnswerCheck, Exchange, Rows

MATRIX = torch.arange(12.0).reshape(4, 3)


@pytest.fixture
def travelled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The transfers so far: which way, and of how many arrays."""
    made: list[tuple[str, int]] = []
    send, read = transfers.send, transfers.read

    def sending(device: torch.device, *arrays: Any) -> list[Tensor]:
        made.append(("to", len(arrays)))
        return send(device, *arrays)

    def reading(*tensors: Tensor) -> list[Any]:
        made.append(("from", len(tensors)))
        return read(*tensors)

    monkeypatch.setattr(transfers, "send", sending)
    monkeypatch.setattr(transfers, "read", reading)
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
    rows = Exchange(Rows.all(MATRIX)).rows([1, 2])
    assert rows().data_ptr() == MATRIX[1].data_ptr() and not travelled


def test_nobody_is_told_of_an_answer_that_fails_its_check() -> None:
    step, told = Exchange(checked([0, 1], holds=False)), list[Any]()
    step.tell(told.append, torch.tensor([1]))
    with pytest.raises(ArithmeticError, match="spoiled"):
        step.read()
    assert not told
