"""Draws for applications that call ``generate`` of transformers, or of stock Outlines, and keep doing so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from outlines.processors import OutlinesLogitsProcessor
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.utils.generic import ModelOutput

from ...errors import UnsupportedError, VocabularyError
from ...guides.guide import Guide
from ...guides.table import Table
from ...lm.transformers.forward import CACHES
from ...lm.transformers.transformers_model import TransformersModel
from ...phi.constraint import Predicate, TextConstraint
from ...phi.estimator import Phi
from ...phi.tree.evaluator import TreeStore
from ...sampling.ancestral import SMC
from ...sampling.draws import Draws
from ...vocabulary.vocabulary import Vocabulary
from ..call import Ban, Call, CallOptions, Correction, Unset, dead_end, read_stops
from ..choices import DEFAULTS, USED, Told, refuse_misfits
from ..drafts import Borrowed, Drafts
from ..processor import TableLogitsProcessor
from ..wrapping import OwnModel


def during(session: OwnModel, options: CallOptions, vocabulary: Any) -> OwnModel:
    """Return the session for one call; the tokenizer, where it is given as ``vocabulary``, is not kept alive after it."""
    call = object.__new__(OwnModel)
    vars(call).update(vars(session))
    call.hf_tokenizer = None if isinstance(vocabulary, Vocabulary) else vocabulary
    if options.tokenization == "canonical" or options.constraint is not None:
        call._trees = TreeStore(session._trees.max_bytes)  # which would keep the constraint, and so the tokenizer
    return call


@final
class Loans:
    """Everything kept for models that belong to the application, by model and vocabulary; all of it weakly.

    A tokenizer that is loaded afresh for every call costs its reading, and nothing stays of it.
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Any, dict[str, OwnModel]] = WeakKeyDictionary()
        self._read: WeakKeyDictionary[Any, WeakKeyDictionary[Any, OwnModel]] = WeakKeyDictionary()

    def of(self, model: Any, tokenizer: Any) -> OwnModel:
        """Return the session of a model with its tokenizer, or with a :class:`Vocabulary` that is made already."""
        read = self._read.setdefault(model, WeakKeyDictionary())
        if tokenizer not in read:
            made = isinstance(tokenizer, Vocabulary)
            lm = (TransformersModel if made else TransformersModel.with_tokenizer)(Borrowed(model), tokenizer)
            read[tokenizer] = self._of(model, lm)
        return read[tokenizer]

    def without_tokenizer(self, model: Any, eos_ids: Sequence[int]) -> OwnModel:
        """Return the session of a model whose tokens are known by their ids alone: enough for an index of outlines_core."""
        if not eos_ids:
            raise VocabularyError(
                "Set model.generation_config.eos_token_id, or give vocabulary=tokenizer: no end-of-sequence id is known, so a text "
                "could never end."
            )
        size = getattr(model.get_output_embeddings(), "out_features", model.config.vocab_size)
        vocabulary = Vocabulary((b"",) * size, tuple(eos_ids), np.ones(size, dtype=bool))
        return self._of(model, TransformersModel(Borrowed(model), vocabulary))

    def _of(self, model: Any, lm: TransformersModel) -> OwnModel:
        kept = self._kept.setdefault(model, {})
        if lm.vocabulary.fingerprint not in kept:
            made = kept[lm.vocabulary.fingerprint] = OwnModel(lm, None)
            _ = made.compiled, made.drafts  # shared by every copy
        return kept[lm.vocabulary.fingerprint]


LOANS = Loans()  # Those of this process


KEYWORDS = (*(name for name in USED if name not in ("banned_phrases", "ends", "open_at")), "num_beams")
"""The arguments of :func:`custom_generate` that are keywords of a call."""


@final
@dataclass
class PhiGenerateOutput(ModelOutput):
    """The result of ``generate`` with ``return_dict_in_generate=True``: the sequences, and estimates of their distribution."""

    sequences: Tensor | None = None
    log_p: Tensor | None = None  # ``[B]`` float64, in nats: ``log p(y)`` of what was generated in each row
    # Its importance weight ``log p(y) - log q(y)``, for exact draws the constant estimate of ``log Phi``; the draws of each
    # distinct prompt, in the order of their first rows. Both are ``None`` with ``do_sample=False``.
    log_w: Tensor | None = None
    draws: tuple[Draws, ...] | None = None


def custom_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Sequence[Any] = (),
    stopping_criteria: Iterable[Any] = (),
    generation_config: GenerationConfig | None = None,
    *,
    output_type: Any = None,
    vocabulary: Any = None,
    phi: str | Phi | Unset = Unset.UNSET,
    seed: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    do_sample: bool | None = None,
    num_beams: int | None = None,
    num_return_sequences: int | None = None,
    max_length: int | None = None,
    tokenization: str | None = None,
    constraint: Predicate | TextConstraint | None = None,
    sampler: SMC | None = None,
    banned_phrases: Ban | None = None,
    draft: Drafts | None = None,
    draft_length: int | None = None,
    progress: Told = None,
    stop: Any = None,
    stop_strings: Any = None,
    tokens: bool | None = None,
    top: int | None = None,
    **prepared: Any,
) -> Tensor | PhiGenerateOutput:
    """Generate under a correction, as ``hf_model.generate(..., custom_generate=outlines_phi.custom_generate)``.

    What is to be written is either ``output_type`` (with ``vocabulary``) or the language of an Outlines logits processor
    among ``logits_processor``, as it is in stock Outlines:
    ``model(prompt, T, custom_generate=outlines_phi.custom_generate, phi="exact")``.

    The keywords mean what they mean everywhere in this package, see :func:`outlines_phi.Generator` and
    :class:`outlines_phi.SamplingSettings`. Rows with equal prompts share one token tree, and what is compiled and learned is kept
    while the model lives. Every other keyword is refused, but for ``streamer`` and ``assistant_model``, which transformers keeps.

    Parameters
    ----------
    output_type
        The format to write: an output type of Outlines, a guide, or a table.
    vocabulary
        The tokenizer (or :class:`outlines_phi.Vocabulary`); transformers does not hand ``tokenizer=`` on. Banned phrases and the
        canonical tokenization need it, and forced drafts are tokenized by it.
    phi
        ``"auto"``, ``"exact"`` or another estimator. Left out, it is ``"auto"``, or ``"local"`` under ``sampler``.
    seed, temperature, ..., top
        As for every call with ``phi=``: ``do_sample=False`` is the most probable member, with a certificate. ``max_length`` is
        refused, since it counts the prompt: give ``max_new_tokens``. Rows end with the token that completes a stop string.

    Returns
    -------
    Tensor | PhiGenerateOutput
        ``[B * num_return_sequences, prompt + generated]`` ids, each row ended by the end of sequence and filled up with
        the padding id; with ``return_dict_in_generate=True``, those and their weights.

    Raises
    ------
    UnsupportedError
        Something that cannot be used under a correction, or nothing to condition on.
    """
    given = {name: value for name, value in locals().items() if name in KEYWORDS}
    config = GenerationConfig() if generation_config is None else generation_config
    given["max_new_tokens"] = config.max_new_tokens
    given["max_length"] = length_of(max_length, config, model, input_ids.shape[1])
    keywords = said_beyond(config, model.generation_config) | {name: v for name, v in given.items() if v is not None}
    processor = next((each for each in logits_processor if isinstance(each, OutlinesLogitsProcessor)), None)
    correction = Correction().replaced_by(phi, banned_phrases)
    call = Call.of(correction, processor if output_type is None else output_type, keywords)
    free = call.language is None and call.ban is None and not read_stops(keywords)
    if call.phi is None or free:
        raise UnsupportedError(
            "Give output_type= and vocabulary=tokenizer, or leave custom_generate out for plain masking: phi=None or "
            "output_type=None was given, and free text has nothing to correct."
        )
    if not config.return_dict_in_generate:
        refuse_misfits("a call that returns texts", keywords)
    options = call.options(config, weighted=bool(config.return_dict_in_generate))
    check_loop(logits_processor, stopping_criteria, config)
    if output_type is not None and processor is not None:
        raise UnsupportedError(
            f"Give output_type= or a {type(processor).__name__}, not both: each says what may be written."
        )
    session = during(_session(model, config, call.language, vocabulary), options, vocabulary)
    table = call.table(session.compiled)
    prompts = prompts_of(input_ids, **prepared)
    pad = config.pad_token_id if config.pad_token_id is not None else table.vocabulary.eos_ids[0]
    if not prompts:
        raise UnsupportedError("Give input_ids of a row or more. There is none to go on from.")
    copies, draws = Counter(prompts), None
    if call.searched:
        found: Sequence[Any] = session.rank(list(copies), table, replace(options, n=1), options.n, **call.limits)
        if (least := min(map(len, found))) < options.n:
            raise UnsupportedError(
                f"Ask for at most num_return_sequences={least}, not {options.n}: with do_sample=False, only so many members of the "
                "language have any probability."
            )
    else:
        many = replace(options, n=options.n * max(copies.values()))
        draws = tuple(session.draw(list(copies), table, call.phi, many))
        if failures := sum(each.failures for each in draws):
            raise dead_end(options, str(failures))
        found = list(map(iter, draws))
    of = dict(zip(copies, found, strict=True))
    rows = [
        (ids, each) for ids, prompt in zip(input_ids, prompts, strict=True) for each in islice(of[prompt], options.n)
    ]
    written = [torch.cat([ids, ids.new_tensor(item.token_ids)]) for ids, item in rows]
    sequences = pad_sequence(written, batch_first=True, padding_value=pad)
    if not config.return_dict_in_generate:
        return sequences
    log_p = torch.tensor([item.log_p for _, item in rows], dtype=torch.float64)
    log_w = None if draws is None else torch.tensor([item.log_w for _, item in rows], dtype=torch.float64)
    return PhiGenerateOutput(sequences=sequences, log_p=log_p, log_w=log_w, draws=draws)


def _session(model: Any, config: GenerationConfig, language: Any, vocabulary: Any) -> OwnModel:
    if vocabulary is not None:
        return LOANS.of(model, vocabulary)
    match language:
        case Table() | Guide():
            return LOANS.of(model, language.vocabulary)
        case TableLogitsProcessor():
            return LOANS.of(model, language.table.vocabulary)
        case OutlinesLogitsProcessor():
            ends = config.eos_token_id
            return LOANS.without_tokenizer(model, [ends] if isinstance(ends, int) else list(ends or ()))
    given = "output_type=, banned_phrases= or stop strings"
    raise UnsupportedError(
        f"Give vocabulary=tokenizer beside {given}: it knows what tokens write, and transformers does not hand tokenizer= on to "
        "custom_generate."
    )


WARPERS: dict[type, tuple[str, str]] = {
    RepetitionPenaltyLogitsProcessor: ("penalty", "repetition_penalty"),
    TemperatureLogitsWarper: ("temperature", "temperature"),
    TopKLogitsWarper: ("top_k", "top_k"),
    TopPLogitsWarper: ("top_p", "top_p"),
    MinPLogitsWarper: ("min_p", "min_p"),
    TopHLogitsWarper: ("top_h", "top_h"),
    TypicalLogitsWarper: ("mass", "typical_p"),
    EpsilonLogitsWarper: ("epsilon", "epsilon_cutoff"),
    EtaLogitsWarper: ("epsilon", "eta_cutoff"),
}
"""The processors that transformers makes of its options: where each keeps the option, and the option's name."""

LAWLESS = (LogitNormalization, InfNanRemoveLogitsProcessor)
"""Those that change no distribution: NaN in the logits is a ModelError here."""

UNTOUCHED = ("use_cache", "logits_to_keep")  # Options that transformers hands on and that change no distribution

WRITTEN = (
    "max_length",
    "max_new_tokens",
    "num_return_sequences",
    "pad_token_id",
    "return_dict_in_generate",
    "transformers_version",
)
"""Fields of a generation config that are read one by one, and those that transformers writes itself."""


def said_beyond(config: GenerationConfig, own: GenerationConfig) -> dict[str, Any]:
    """Return the fields of a call's generation config that differ from the model's own and the defaults of transformers."""
    given = {}
    for name, value in vars(config).items():
        usual = getattr(own, name, None)
        if name in WRITTEN or name.startswith("_") or value == (DEFAULTS.get(name) if usual is None else usual):
            continue
        given[name] = value
    return given


def length_of(given: int | None, config: GenerationConfig, model: Any, prompt_length: int) -> int | None:
    """Return the ``max_length`` of the call, by keyword or in its generation config; ``None`` where it has none."""
    if given is not None or config.max_new_tokens is not None or config.max_length is None:
        return given
    usual = DEFAULTS["max_length"] + prompt_length
    context = getattr(model.config, "max_position_embeddings", None) or usual
    own = model.generation_config.max_length
    return None if config.max_length in (own, usual, min(usual, context)) else config.max_length


def check_loop(processors: Sequence[Any], criteria: Iterable[Any], config: GenerationConfig) -> None:
    """Refuse logits processors and stopping criteria but those that transformers makes of its options, and more than one processor
    that says what may be written.
    """
    languages = [processor for processor in processors if isinstance(processor, OutlinesLogitsProcessor)]
    for processor in processors:
        attribute, option = WARPERS.get(type(processor), (None, None))
        of_option = attribute and float(getattr(processor, attribute)) == getattr(config, str(option), None)
        if processor not in languages and not of_option and not isinstance(processor, LAWLESS):
            raise UnsupportedError(
                f"Leave the logits processor {type(processor).__name__} out, or keep transformers' own loop with "
                "outlines_phi.PhiLogitsProcessor, where what stands before it is a part of the model's distribution. A correction "
                "does not count it as a part of that."
            )
    if len(languages) > 1:
        raise UnsupportedError(f"{len(languages)} processors that say what may be written were given; expected one.")
    for criterion in criteria:
        lengths = isinstance(criterion, MaxLengthCriteria) and criterion.max_length == config.max_length
        if not lengths and not isinstance(criterion, EosTokenCriteria):
            raise UnsupportedError(
                "Say where a text ends in its output type or by stop_strings=, and how long it may be with max_new_tokens. The "
                f"stopping criterion {type(criterion).__name__} would cut draws short, and what is left of them would have no "
                "distribution."
            )


def prompts_of(
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    **prepared: Any,
) -> list[tuple[int, ...]]:
    """Return the ids of every row, padding left out."""
    unknown = sorted(n for n, value in prepared.items() if n not in (*UNTOUCHED, *CACHES) and value is not None)
    if unknown:
        raise UnsupportedError(f"Leave {', '.join(unknown)} out; phi= has no use for it.")
    for name in CACHES:
        if prepared.get(name) is not None and _filled(prepared[name]):
            raise UnsupportedError(
                f"Leave out {name} with a prompt in it; draws of one prompt share a cache of their own."
            )
    mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    usual = (mask.long().cumsum(-1) - 1)[mask]
    if position_ids is not None and not torch.equal(
        position_ids.broadcast_to(mask.shape)[mask].to(usual.device), usual
    ):
        raise UnsupportedError("Leave out position_ids that do not count the tokens of a row.")
    return [tuple(ids[kept].tolist()) for ids, kept in zip(input_ids, mask, strict=True)]


def _filled(cache: Any) -> bool:
    try:
        return bool(cache.get_seq_length())
    except ValueError:  # No layer has columns to count: each holds a state
        return bool(cache.has_previous_state())
