"""The fixtures and hooks of the runtime's tests."""

from tests.conftest import (
    copies,
    one_seed,
    one_thread,
    pytest_collection,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_unconfigure,
)

__all__ = [
    "copies",
    "one_seed",
    "one_thread",
    "pytest_collection",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_unconfigure",
]
