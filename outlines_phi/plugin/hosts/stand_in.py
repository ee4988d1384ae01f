"""Stand-ins for objects that belong to the application, which they do not keep alive."""

from __future__ import annotations

from typing import Any, final
from weakref import ref


@final
class Borrowed:
    """A stand-in for a model or a tokenizer that does not keep it alive; it answers as that does."""

    __slots__ = ("__weakref__", "_owned")

    def __init__(self, owned: Any) -> None:
        self._owned = ref(owned)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return self._owned().__dict__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owned(), name)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        owned: Any = self._owned()
        return owned(*arguments, **keywords)

    def __hash__(self) -> int:
        return hash(self._owned)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Borrowed) and self._owned == other._owned
