"""A correction inside somebody else's loop."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from outlines.models.transformers import Transformers
from torch import Tensor

from ...errors import EmptyLanguageError, ModelError, UnsupportedError
from ...guides.guide import DEAD, DONE
from ...numerics.checks import check_counts
from ...phi.estimator import LocalPhi, OneStepPhi, Phi, StepPhi
from ...vocabulary.vocabulary import Vocabulary
from ..call import Ban, Correction, Unset, check_closed
from ..processor import Prefix, Step, TableLogitsProcessor
from ..session import PhiModel
from ..types.tables import CompiledTypes
from .custom_generate import LOANS
from .transformers import check_budget, loop_settings

AVAILABLE = frozenset({"guide", "logits"})  # The inputs that a logits processor offers to an estimator
LIBRARIES = ("torch", "numpy")  # The libraries whose tensors are read
MAX_STEP_BYTES = 256 * 2**20  # Bound on the memory of steps kept for weights; those of two calls are kept in any case


@final
class PhiLogitsProcessor(TableLogitsProcessor):
    """``q_h(v|y) = p(v|y) h(yv) / S(y)`` in a loop that the application keeps: Hugging Face's, Outlines', or its own.

    The loop warps what a processor returns. With temperature ``T`` this one returns ``T (log p + log h)``, where ``p`` is
    the distribution of the *tempered* logits and ``h`` is computed under it, so that what the loop divides by ``T`` is exact
    (theory.md, section 1.7). Top-k is applied first: the loop's equal one then changes nothing (but for ties in
    the k-th place, which none at all, ``top_k=0`` in the call, leaves alone). Repetition penalties and bans
    come before custom processors in Hugging Face's loop, so they are a part of ``p``.

    Draws of ``q_h`` are proposals, not draws of ``mu*``: take :meth:`log_w` along. Where a token cannot be completed within the
    length limit, logits are ``-inf``. Where top-k, or what stands before the processor, leaves a row no allowed token, which is a
    draw of weight 0, an :class:`outlines_phi.EmptyLanguageError` is raised: a loop cannot record it.

    Parameters
    ----------
    model
        Whose tokens they are: an Outlines model, a Hugging Face model (with ``tokenizer=``), a tokenizer, or a
        :class:`outlines_phi.Vocabulary`.
    output_type
        The format to write: an output type of Outlines, a guide, or a logits processor whose language can be read; ``None`` for
        free text without banned phrases.
    phi
        An estimator that reads the guide and the logits: ``"local"``, ``"onestep"``, ``"learned"``, or an object.
        Left out, ``"onestep"``; with banned phrases ``"local"``.
    temperature, top_k, top_p, min_p
        The options of the loop. Left out, those that it has by itself: the values of the model's ``generation_config``.
        ``top_k`` may cut (0 is none); the last two may only say that they do not.
    max_new_tokens
        The length limit ``N`` of the loop: nothing that is allowed is longer, so nothing is cut short.
    tensor_library_name
        ``"torch"`` or ``"numpy"``, as for Outlines' processors.
    banned_phrases
        The phrases never to write: a list of phrases, or a :class:`outlines_phi.BannedPhrases` of level ``"mask"``.

    Raises
    ------
    UnsupportedError
        An estimator or a level that needs the model, a truncation after the processor, or nothing to condition on.
    EmptyLanguageError
        Nothing can be written, or nothing within ``max_new_tokens``; says the least that would do.
    """

    def __init__(
        self,
        model: Any,
        output_type: Any,
        *,
        max_new_tokens: int,
        tokenizer: Any = None,
        phi: str | Phi | Unset = Unset.UNSET,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        tensor_library_name: str = "torch",
        banned_phrases: Ban | None = None,
    ) -> None:
        if tensor_library_name not in LIBRARIES:
            raise UnsupportedError(
                f"tensor_library_name={tensor_library_name!r} was given; expected one of {', '.join(LIBRARIES)}."
            )
        correction = Correction().replaced_by(phi, banned_phrases)
        self.ban = correction.ban
        self.phi = step_phi(correction.estimator(usual=OneStepPhi() if self.ban is None else LocalPhi()))
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        hf_model = model.model if isinstance(model, Transformers) else model
        check_counts("PhiLogitsProcessor", ", as in the loop", max_new_tokens=max_new_tokens)
        self.budget = max_new_tokens
        self.settings = loop_settings(given, getattr(hf_model, "generation_config", None), self.budget)
        self._stepped: deque[tuple[Prefix, Step]] = deque()
        super().__init__(compiled_for(model, tokenizer).without(output_type, self.ban), tensor_library_name)
        if self.table.guide.thoughts is not None and not isinstance(self.phi, LocalPhi):
            check_closed(self.table, f"A loop with phi={self.phi.name!r}")
        check_budget(self.table, self.budget)
        self.phi.check(self.table, self.settings)

    @property
    def host_options(self) -> dict[str, Any]:
        """The keywords with which the loop samples from the distribution of this processor.

        ``hf_model.generate(**inputs, logits_processor=[processor], **processor.host_options)``, or a call of
        ``outlines.Generator(model, processor=processor)``. The top-k, if any, is applied by the processor alone.
        """
        return {
            **{
                "do_sample": True,
                "temperature": float(self.settings.temperature),
                "top_k": 0,
                "top_p": 1.0,
                "min_p": None,
            },
            "max_new_tokens": self.budget,
        }

    def reset(self) -> None:
        """Forget the last generation; needed only where a prompt is an earlier prompt with what was written after it."""
        super().reset()
        self._stepped.clear()

    def log_w(self, sequences: Any = None) -> NDArray[np.float64]:
        """Return ``log p(y) - log q(y)`` of each row of the last generation, in nats.

        ``E[w] = Phi`` over sampled rows. A row that the loop cut short is a draw of weight 0, ``-inf``. The weights mean
        nothing where the loop did not sample (``do_sample=False``, beams) or sampled from another distribution than
        :attr:`host_options` says. ``sequences`` are what the loop returned last: ``[B, prompt + generated]`` ids, filled up on the
        right. Left out, the rows of the last call, in their order: for hosts that return texts.
        """
        if sequences is not None:
            found = [self._prefixes.find(row) for row in _rows(sequences)]
            if None in found:
                raise UnsupportedError(
                    "Give log_w(sequences) what the loop returned, prompts included, before the next generation begins: these "
                    "rows have another prompt."
                )
            return np.array([self._completed(*each) for each in found if each is not None])
        if not self._prefixes.last:
            raise UnsupportedError(
                "Run the loop with this processor first, then ask for log_w(): nothing has been generated."
            )
        if not self._prefixes.in_order:
            raise UnsupportedError(
                "Give what the loop returned, log_w(sequences): after a generation with beams or drafts the last call does not "
                "tell which rows were kept."
            )
        # The budget of the loop is that of the processor, so what it did not end before, it ended last.
        return np.array([self._ended(prefix) for prefix in self._prefixes.last])

    def _ended(self, prefix: Prefix) -> float:
        """Return the log weight of a row that ended with the token after ``prefix``."""
        if self.table.guide.open and prefix.step is not None and prefix.length + 1 == self.budget:
            return prefix.log_w + prefix.step.log_s  # whatever it was: h is 1 at an end
        return self._completed(prefix, [self.table.vocabulary.eos_ids[0]])

    def _completed(self, prefix: Prefix, rest: list[int]) -> float:
        """Return the log weight of a row: a prefix that was visited, and at most one token that counts after it."""
        log_w = prefix.log_w
        if prefix.state != DONE:
            if not rest:
                return -math.inf
            ended = self.table.advance(prefix.state, rest[0], self.budget - prefix.length) == DONE
            if prefix.step is None or (len(rest) > 1 and not ended):
                log_w = math.nan
            elif not ended:
                return -math.inf
            else:
                log_w += prefix.step.log_w(rest[0])
        if math.isnan(log_w):
            raise UnsupportedError(
                "Give rows that the last generation returned: the weight of this one is not known, as the loop went past a step "
                "without asking this processor, or the step was too long ago."
            )
        return log_w

    def _process(self, prefixes: Sequence[Prefix], logits: Tensor) -> Tensor:
        if logits.max() == math.inf:
            raise ModelError(
                "Check the model's weights and dtype: the logits hold an infinity, so they give no distribution."
            )
        left = [self.budget - prefix.length for prefix in prefixes]
        # Beams also carry rows that are dead.
        live = [
            i
            for i, (prefix, most) in enumerate(zip(prefixes, left, strict=True))
            if prefix.state not in (DEAD, DONE) and 0 < most and self.table.guide.min_tokens(prefix.state) <= most
        ]
        if len(live) == len(prefixes):
            return self._scores(prefixes, left, logits).to(logits.dtype)
        out = torch.full_like(logits, -math.inf)
        done = [i for i, prefix in enumerate(prefixes) if prefix.state == DONE]
        out[done, self.table.vocabulary.eos_ids[0]] = 0.0  # they are called until the batch ends
        if live:
            out[live] = self._scores([prefixes[i] for i in live], [left[i] for i in live], logits[live]).to(out.dtype)
        return out

    def _scores(self, prefixes: Sequence[Prefix], left: Sequence[int], logits: Tensor) -> Tensor:
        """Return ``T (log p + log h)`` for rows that can go on, and keep what their weights need."""
        log_p = self.settings.log_p(logits, self.table.vocabulary, ())
        scores = self.phi.scores(log_p, self.table, [prefix.state for prefix in prefixes], left)
        top = scores.max(-1, keepdim=True).values
        log_s = ((scores - top).exp().sum(-1, dtype=torch.float64).log() + top[:, 0]).tolist()
        log_h = torch.where(scores > -math.inf, scores - log_p, -math.inf)
        for prefix, i in {prefix: i for i, prefix in enumerate(prefixes)}.items():  # rows may share one
            if not log_s[i] > -math.inf:  # nan where no logit is finite, or none is allowed
                raise EmptyLanguageError(
                    f"Loosen {self.settings.truncation or 'what stands before'}, or draw with outlines_phi.custom_generate or "
                    f"outlines_phi.Generator: after {prefix.length} tokens no allowed one has any probability, a draw of weight 0, "
                    "which this loop cannot record."
                )
            prefix.step = Step(log_s[i], log_h[i])
            self._stepped.append((prefix, prefix.step))
        self._forget_steps(keeping=2 * len(prefixes))
        return scores if self.settings.temperature == 1.0 else self.settings.temperature * scores

    def _forget_steps(self, keeping: int) -> None:
        """Forget the oldest steps beyond the bound of memory, but for the last ``keeping``."""
        most = max(keeping, MAX_STEP_BYTES // self._stepped[-1][1].log_h.nbytes)
        while len(self._stepped) > most:
            oldest, step = self._stepped.popleft()
            if oldest.step is step:
                oldest.step = None


def step_phi(resolved: Phi | None) -> StepPhi:
    """Return an estimator, if a logits processor can follow it."""
    match resolved:
        case StepPhi() if resolved.needs <= AVAILABLE:
            return resolved
        case None:
            raise UnsupportedError(
                "Give phi='local' for plain masking, or 'onestep' to look one step ahead; phi=None was given."
            )
    missing = ", ".join(sorted(resolved.needs - AVAILABLE))
    raise UnsupportedError(
        "Draw with a sampler: hf_model.generate(..., custom_generate=outlines_phi.custom_generate, phi=...) or "
        f"outlines_phi.Generator(model, T, phi=...). phi={resolved.name!r} needs the {missing}, and a logits processor has only "
        f"ids and logits."
    )


def compiled_for(model: Any, tokenizer: Any = None) -> CompiledTypes:
    """Return the compiler of output types for a model's tokens, as for :class:`PhiLogitsProcessor`; kept with a model given."""
    match model:
        case PhiModel():
            return model.compiled
        case Transformers():
            return LOANS.of(model.model, model.hf_tokenizer).compiled
        case Vocabulary():
            return CompiledTypes.of_vocabulary(model)
    if hasattr(model, "generation_config"):
        if tokenizer is None:
            raise UnsupportedError(
                f"Add tokenizer=tokenizer, which knows what tokens write: a {type(model).__name__} was given without it."
            )
        return LOANS.of(model, tokenizer).compiled
    if callable(getattr(model, "convert_ids_to_tokens", None)):
        return CompiledTypes.of_vocabulary(Vocabulary.from_tokenizer(model))
    raise UnsupportedError(
        f"A {type(model).__name__} was given as model; expected an Outlines model made by outlines.from_transformers, a "
        "Hugging Face model with tokenizer=, a tokenizer, or an outlines_phi.Vocabulary."
    )


def _rows(sequences: Any) -> list[list[int]]:
    """Return the rows of token ids that a loop returned."""
    try:
        rows = torch.as_tensor(sequences)
    except (TypeError, ValueError, RuntimeError):
        rows = torch.empty(0)
    if rows.ndim not in (1, 2) or not rows.numel() or rows.is_floating_point():
        raise UnsupportedError(
            f"log_w({sequences!r:.60}) was asked for; expected the token ids that the loop returned, [B, prompt + generated] "
            "and filled up on the right. For texts, as a call of Outlines returns, ask for log_w() without sequences."
        )
    return (rows if rows.ndim == 2 else rows[None]).tolist()
