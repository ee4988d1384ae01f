"""Several matchers over one text, as one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from .lazy import Machine
from .matcher import PhraseMatcher

Key: TypeAlias = tuple[int, ...]
"""A state of :class:`SideBySide`: one of each matcher."""


@final
class SideBySide(Machine):
    """Matchers that read the same text; each finds its own phrases.

    Parameters
    ----------
    matchers
        The matchers.
    phrases
        For each, which of ``names`` its own phrases are.
    names
        How to call each phrase in a message.
    """

    def __init__(
        self, matchers: Sequence[PhraseMatcher], phrases: Sequence[Sequence[int]], names: Sequence[str]
    ) -> None:
        self._matchers, self._phrases = tuple(matchers), tuple(phrases)
        self.names = tuple(names)
        self.longest = max(matcher.longest for matcher in matchers)
        classes = np.stack([matcher.byte_class for matcher in matchers])
        _, byte_class = np.unique(classes, axis=1, return_inverse=True)
        self.byte_class = byte_class.reshape(-1).astype(np.uint8)
        self.start = tuple(matcher.start for matcher in matchers)

    def follow(self, keys: Sequence[Key], bytes: NDArray[np.uint8]) -> Sequence[Hashable]:
        states = np.array(keys).T
        after = [matcher.step(own, bytes).tolist() for matcher, own in zip(self._matchers, states, strict=True)]
        return list(zip(*after, strict=True))

    def completed(self, key: Key) -> tuple[int, ...]:
        return self._of_all(key, lambda matcher, state: matcher.completed(state))

    def completed_at_end(self, key: Key) -> tuple[int, ...]:
        return self._of_all(key, lambda matcher, state: matcher.completed_at_end(state))

    def pending(self, key: Key) -> int:
        return max(int(matcher.pending(np.array(state))) for matcher, state in zip(self._matchers, key, strict=True))

    def future(self, key: Key) -> Hashable:
        return tuple(int(matcher.futures(np.array(state))) for matcher, state in zip(self._matchers, key, strict=True))

    def after_prompt(self, key: Key) -> Hashable:
        return tuple(matcher.after_prompt(state) for matcher, state in zip(self._matchers, key, strict=True))

    def _of_all(self, key: Key, completed: Callable[[PhraseMatcher, int], tuple[int, ...]]) -> tuple[int, ...]:
        found = zip(self._matchers, key, self._phrases, strict=True)
        return tuple(sorted(names[i] for matcher, state, names in found for i in completed(matcher, state)))
