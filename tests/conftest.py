"""Fixtures shared by all tests."""

import gc
import logging
import os
import resource
import sys
from collections.abc import Callable, Iterator
from logging.handlers import BufferingHandler
from typing import Any

import pytest

# Tests never touch the user's cache folder.
os.environ.setdefault("OUTLINES_PHI_CACHE", "")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny models run many times slower when shared cores fight over threads."""
    import torch  # not in the process that hands tests out

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_seed() -> None:
    """Calls without a seed draw theirs from torch's generator, which is in one state at the beginning of each test."""
    import torch

    torch.default_generator.manual_seed(5)


@pytest.fixture(autouse=True, scope="session")
def copies() -> Iterator[None]:
    """The bundled model is read once and copied, which takes a tenth of the time."""
    from outlines_phi.lm import bundled
    from tests.loaded import copied_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundled, "load", copied_model)
        yield


@pytest.fixture(autouse=True, scope="session")
def peak() -> list[int]:
    """The most memory that the process had when its garbage was last collected, in kilobytes."""
    return [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]


@pytest.fixture(autouse=True, scope="module")
def tidy(peak: list[int]) -> Iterator[None]:
    """Collect where a module has raised the peak by a quarter of a gigabyte: trees are cycles, which thresholds leave for long."""
    yield
    if (now := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) > peak[0] + 2**18:
        gc.collect()
        peak[0] = now


@pytest.fixture(scope="session")
def elsewhere() -> Any:
    """The bundled model, wrapped; tests that count or compare kept things make their own."""
    import outlines_phi
    from outlines_phi.lm import bundled

    return outlines_phi.from_transformers(*bundled.load())


@pytest.fixture(scope="session")
def model(elsewhere: Any) -> Any:
    """The same, in files where no other host is the subject."""
    return elsewhere


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the program with arguments; returns its exit code, standard output and messages."""

    def called(*arguments: str) -> tuple[int, str, str]:
        import outlines_phi.cli
        from tests.refusals import refused

        monkeypatch.setattr(sys, "argv", ["outlines-phi", *arguments])
        ended = refused(None, outlines_phi.cli.main, error=SystemExit)
        return int(ended.value.code or 0), *capsys.readouterr()

    return called


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[logging.LogRecord]:
    """Return the records that this package logs."""
    handler = BufferingHandler(1_000)
    monkeypatch.setattr(logging.getLogger("outlines_phi"), "handlers", [handler])
    return handler.buffer


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees that only walks grow: small finite languages are not expanded whole before the first of them."""
    from tests.inner import preexpand

    monkeypatch.setattr(preexpand, "SHORT", 0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Pause the collector: none of the imports and tests is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test whose parameters take turns, the combinations whose places have an odd sum are of the full run alone."""
    places: dict[tuple[str, ...], dict[tuple[int, ...], int]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("in_turn") is not None:
            total = 0
            for mark in item.iter_markers("parametrize"):
                names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
                known = places.setdefault((item.nodeid.partition("[")[0], *names), {})
                total += known.setdefault(tuple(id(item.callspec.params[name.strip()]) for name in names), len(known))
            if total % 2:
                item.add_marker(pytest.mark.full)


def pytest_collection_finish() -> None:
    """Freeze the imports of torch and transformers, which collections of garbage then skip: a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_unconfigure() -> None:
    """Unfreeze, so that extension modules find nothing of theirs left at the end."""
    gc.unfreeze()
