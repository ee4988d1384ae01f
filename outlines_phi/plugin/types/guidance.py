"""Grammars of guidance as output types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from outlines.types.dsl import CFG

from ...errors import OutlinesPhiError, UnsupportedError
from ...guides.guidance.guidance_grammar import GuidanceGrammar, read
from ...guides.guidance.notation import HEADER


@final
@dataclass(frozen=True)
class GuidanceText:
    """The text of a guidance grammar, in llguidance's dialect of Lark."""

    text: str

    @property
    def grammar(self) -> GuidanceGrammar:
        """The grammar; errors as of :class:`GuidanceGrammar`."""
        return read(self.text)

    def value(self, text: str) -> dict[str, str | list[str]]:
        """Return what a member captures, by name."""
        return self.grammar.captures(text)


def is_guidance(text: str) -> bool:
    """Return whether the text of a grammar is of llguidance's dialect, by how it begins."""
    return text.lstrip().startswith(HEADER)


def from_guidance(grammar: Any) -> CFG:
    """Return a grammar of guidance as an output type: ``select``, ``gen``, ``json``, ``one_or_more``, functions of them.

    Its texts are those that guidance itself would let be written, and the value of a draw is the dictionary of its captures (the
    text, where nothing is captured). Only the text of the grammar is read, so guidance need not be installed where that is given.

    Parameters
    ----------
    grammar
        A grammar of guidance, or the text that its ``ll_grammar()`` returns, which begins with ``%llguidance``.

    Returns
    -------
    CFG
        The output type: Outlines' own for a grammar, whose text is that of llguidance's dialect.

    Raises
    ------
    GrammarError, UnsupportedError
        The grammar cannot be read, or has what cannot be honoured (docs/guidance.md says what); with line, column and caret where
        that is in one place.
    EmptyLanguageError
        It derives no text.
    """
    text = grammar
    if not isinstance(grammar, str):
        write = getattr(grammar, "ll_grammar", None)
        if not callable(write) or isinstance(grammar, type):
            raise UnsupportedError(
                f"{_instead(grammar)}. {type(grammar).__name__} {grammar!r:.60} has no ll_grammar()."
            )
        try:
            text = write()
        except OutlinesPhiError:
            raise
        except Exception as error:  # of guidance, whatever it raises
            raise UnsupportedError(f"Give a grammar that guidance can write. It refuses this one: {error}") from error
    if not isinstance(text, str) or not is_guidance(text):
        raise UnsupportedError(
            f"Give a grammar of guidance, or the text of one, which begins with {HEADER}; outlines.types.CFG(text) takes Lark's "
            f"own dialect. {text!r:.60} was given."
        )
    read(text)
    return CFG(text)


def _instead(given: Any) -> str:
    if type(given).__module__.startswith("guidance.models"):
        return "Give the grammar, as in select(['yes', 'no'], name='answer'); outlines_phi.wrap(model) takes a model of guidance"
    if callable(given):
        return "Call the function, as in from_guidance(f()), and let it be stateless: @guidance(stateless=True)"
    return "Give a grammar of guidance, such as select(['yes', 'no'], name='answer')"
