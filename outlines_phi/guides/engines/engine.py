"""Grammar engines of other packages: what is asked of one."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedError
from ...vocabulary.vocabulary import Vocabulary


class Kind(Enum):
    """What a text that an engine compiles is written in: its own dialect of each."""

    REGEX = "regular expression"
    JSON_SCHEMA = "JSON schema"
    GRAMMAR = "grammar"


@final
@dataclass(frozen=True)
class Source:
    """What an engine compiles."""

    kind: Kind
    text: str


class Matcher(ABC):
    """A text that an engine reads token by token; it can go back.

    Whoever holds one only lets it read what it allows. The end of sequence is never read.
    """

    @abstractmethod
    def read(self, token: int) -> None:
        """Go on with ``token``, which is allowed."""

    @abstractmethod
    def back(self, count: int) -> None:
        """Take back the last ``count`` tokens."""

    @abstractmethod
    def allowed(self) -> NDArray[np.bool_]:
        """Return ``bool[V]``: the tokens that the engine lets follow, the end of sequence where the text may end."""

    @abstractmethod
    def ends_after(self, tokens: Sequence[int], more: Sequence[int]) -> list[bool]:
        """Return for each of ``tokens``, which are allowed, whether the text may end after it and ``more``; nothing is read."""


class Engine(ABC):
    """A grammar engine over the bytes of a vocabulary.

    Parameters
    ----------
    vocabulary
        The tokens.

    Raises
    ------
    UnsupportedError
        The package of the engine is not installed.
    """

    package: ClassVar[str]
    """What to import: an extra of the same name."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, self._module = vocabulary, load(self.package)

    @abstractmethod
    def matcher(self, source: Source) -> Matcher:
        """Return a matcher of ``source`` that has read nothing.

        Raises
        ------
        GrammarError
            The engine refuses it; says what the engine says.
        """


def load(package: str) -> Any:
    """Import the package of an engine; it is an extra of the same name.

    Raises
    ------
    UnsupportedError
        It is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UnsupportedError(
            f"backend={package!r} was given, and the package {package} cannot be imported ({error}). Install it: pip install "
            f"'outlines_phi[{package}]', or use backend=None."
        ) from error


def unpack(bits: NDArray[np.uint8], size: int) -> NDArray[np.bool_]:
    """Return ``bool[size]`` of a mask of bits, the lowest first."""
    return np.unpackbits(bits, count=size, bitorder="little").view(np.bool_)
