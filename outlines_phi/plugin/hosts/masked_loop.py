"""Hosts whose own loop writes one text under one logits processor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from itertools import chain
from typing import Any, ClassVar

from ...errors import UnsupportedError
from ..call import Call
from ..mistakes import no_prompt
from ..session import PhiModel
from ..streaming import Pieces
from .loop import refuse_options


class LoopProcessor:
    """A logits processor in a host's loop, in the arrays of its library.

    A loop may go on without a processor that raises, and so without its mask: here the text ends, and :meth:`check` raises the
    error.

    Parameters
    ----------
    process
        What is to run: the logits of the next token, given the ids before it and its logits.
    ended
        Logits that end the text, given any.
    """

    def __init__(self, process: Callable[[Any, Any], Any], ended: Callable[[Any], Any]) -> None:
        self._process, self._ended = process, ended
        self._error: BaseException | None = None

    def __call__(self, ids: Any, logits: Any) -> Any:
        if self._error is None:
            try:
                return self._process(ids, logits)
            except BaseException as error:
                self._error = error
        return self._ended(logits)

    def check(self) -> None:
        """Raise what has been raised."""
        if self._error is not None:
            raise self._error


class MaskedLoop(PhiModel):
    """A host whose calls without ``phi=`` are those of Outlines under our mask; a subclass derives from Outlines' class, too."""

    stock: ClassVar[Any]  # Outlines' class
    library: ClassVar[str]  # As errors name it
    type_adapter: Any

    @abstractmethod
    def _in_loop(self, processor: Any) -> LoopProcessor:
        """Return what runs a processor, ours or of Outlines, in the loop."""

    def _hosted(self, call: Call, given: Any, *, many: bool) -> Any:
        masking = self._masking(call)
        text = (self.stock.generate_batch if many else self.stock.generate)(self, given, masking, **call.keywords)
        if masking is not None:
            masking.check()
        return text

    def _hosted_stream(self, call: Call, prompt: Any) -> Pieces:
        masking = self._masking(call)
        written = self.stock.generate_stream(self, prompt, masking, **call.keywords)
        for piece in chain(written, [""]):  # an error may be that of the last token
            if masking is not None:
                masking.check()
            if piece:
                yield piece

    def _masking(self, call: Call) -> LoopProcessor | None:
        """Return what runs in the loop, once the keywords are those of the loop."""
        refuse_options(call.keywords, f"{self.library}'s own loop")
        plain = call.language is None and call.ban is None  # which needs nothing of ours
        processor = None if plain else call.processor(self.compiled)
        if getattr(processor, "ban", None) is not None:
            raise UnsupportedError(
                f"Give phi='local' with banned phrases, or another estimator: {self.library}'s own loop (phi=None) ends a text "
                "where its max_tokens are written, in the middle of what is banned, too."
            )
        return None if processor is None else self._in_loop(processor)

    def _formatted(self, model_input: Any) -> Any:
        """Return the prompt that Outlines hands to the library."""
        try:
            return self.type_adapter.format_input(model_input)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise no_prompt(model_input, error) from error
