"""The bundled model, as stock Outlines and as this package have it."""

import asyncio
import inspect
import warnings
from collections.abc import Iterator

import outlines
import pytest
import torch

from outlines_phi import Draws, PhiTransformers, from_transformers
from tests.inner import CompiledTypes, bundled


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(
        pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters})
    )
    return True


@pytest.fixture(scope="session", autouse=True)
def _eager() -> Iterator[None]:
    # The mask kernel of stock Outlines is compiled at its first use, which takes longer than all tests of this folder.
    torch.compiler.set_stance("force_eager")
    with warnings.catch_warnings():
        # What torch's compiler imports warns about torch's own use of torch.jit.
        warnings.simplefilter("ignore", DeprecationWarning)
        import outlines_core.kernels.torch  # noqa: F401
    yield
    torch.compiler.set_stance("default")


@pytest.fixture
def fresh() -> PhiTransformers:
    """A model with compiled types of its own, where those of a vocabulary are for all models."""
    made = from_transformers(*bundled.load())
    made.compiled = CompiledTypes(made.lm.vocabulary)
    return made


@pytest.fixture(scope="session")
def stock() -> outlines.models.Transformers:
    return outlines.from_transformers(*bundled.load())


@pytest.fixture
def drawn(model: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> list[Draws]:
    """Return the draws of this package's samplers during the test, in order."""
    record: list[Draws] = []
    draw = model.draw

    def recording(*arguments: object) -> list[Draws]:
        record.extend(results := draw(*arguments))
        return results

    monkeypatch.setattr(model, "draw", recording)
    return record
