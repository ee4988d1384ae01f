"""The compiled output types of a model: each is lifted to its vocabulary once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any, final
from weakref import WeakKeyDictionary

from outlines.backends.outlines_core import OutlinesCoreLogitsProcessor

from ..automaton import ByteAutomaton
from ..errors import UnsupportedError
from ..guides.fsm import FSMGuide
from ..guides.index import from_index, is_byte_level
from ..guides.regex import compile_regex
from ..guides.table import Table
from ..vocabulary import Vocabulary
from .output_types import to_pattern
from .processor import MaskLogitsProcessor

KEPT = 32
"""Patterns, and tables, kept per model."""


@final
class CompiledTypes:
    """What a model may be asked to write, compiled for its vocabulary and kept for later calls.

    A pattern is determinised once. Its byte automaton is lifted once, whether it came from an output type or from the
    logits processor of a stock ``outlines.Generator``: equal automata share a table, and with it the token trees.

    Parameters
    ----------
    vocabulary
        The model's.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._by_pattern: OrderedDict[str, Table] = OrderedDict()
        self._by_content: OrderedDict[bytes, Table] = OrderedDict()
        # A processor cannot be a key that outlives it: ids are used again, and an index is not hashable.
        self._by_processor: WeakKeyDictionary[Any, Table] = WeakKeyDictionary()

    def of_type(self, output_type: Any) -> Table:
        """Return the table of an output type; errors as :func:`outlines_phi.plugin.output_types.to_pattern`."""
        pattern = to_pattern(output_type)
        if pattern not in self._by_pattern:
            self._by_pattern[pattern] = self._lifted(compile_regex(pattern))
        return _touch(self._by_pattern, pattern)

    def of_processor(self, processor: Any) -> Table:
        """Return the table of what a logits processor allows.

        Raises
        ------
        UnsupportedError
            No processor (nothing to condition on), one whose language cannot be read, or one that was made for
            another model.
        """
        match processor:
            case MaskLogitsProcessor():
                if processor.table.vocabulary.fingerprint != self._vocabulary.fingerprint:
                    raise UnsupportedError(
                        "The generator was made for a model with another vocabulary; make one with this model."
                    )
                return processor.table
            case OutlinesCoreLogitsProcessor() if is_byte_level(processor.index):
                if processor not in self._by_processor:
                    self._by_processor[processor] = self._lifted(from_index(processor.index))
                return self._by_processor[processor]
            case OutlinesCoreLogitsProcessor():
                raise UnsupportedError(
                    "phi= was given with an outlines_core index that another model or vocabulary was used to build. "
                    "Build it through this model, outlines.Generator(model, T), or use phi=None."
                )
            case None:
                raise UnsupportedError(
                    "phi= was given without an output type: free text has nothing to correct. Give a type, or phi=None."
                )
        raise UnsupportedError(
            f"phi= cannot read the language of a {type(processor).__name__}. Use backend='outlines_core' (the default "
            "for regex and JSON), or phi=None."
        )

    def clear(self) -> None:
        """Forget everything."""
        self._by_pattern.clear()
        self._by_content.clear()
        self._by_processor.clear()

    def _lifted(self, automaton: ByteAutomaton) -> Table:
        key = _content(automaton)
        if key not in self._by_content:
            self._by_content[key] = Table(FSMGuide.from_automaton(automaton, self._vocabulary))
        return _touch(self._by_content, key)


def _content(automaton: ByteAutomaton) -> bytes:
    digest = hashlib.blake2b(repr((automaton.start, automaton.targets.shape)).encode(), digest_size=16)
    for array in (automaton.targets, automaton.byte_class, automaton.accepting):
        digest.update(array.tobytes())
    return digest.digest()


def _touch(kept: OrderedDict[Any, Table], key: Any) -> Table:
    kept.move_to_end(key)
    while len(kept) > KEPT:
        kept.popitem(last=False)
    return kept[key]
