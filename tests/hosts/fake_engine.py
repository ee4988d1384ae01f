"""An engine that drives a logits processor as that of vLLM does, and a client of the server around it; with vLLM or without."""

import enum
import importlib.util
import math
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outlines_phi import Vocabulary
from outlines_phi.guides.guide import DONE
from outlines_phi.sampling.rejection.attempts import Attempt

MODULES = ("lm.vllm.engine", "plugin.hosts.vllm_server.phi_attempts", "vllm")
"""The modules that are imported anew where vLLM is not here."""


def stand_ins() -> dict[str, types.ModuleType]:
    """Modules with as much of vLLM as the processor is written against."""
    inner = (
        "distributed.parallel_state",
        "tokenizers",
        "v1.sample.logits_processor",
        "v1.worker.gpu.sample.logits_processor",
    )
    paths = [f"vllm.{name}".split(".") for name in inner]
    names = {".".join(path[:size]) for path in paths for size in range(1, len(path) + 1)}
    made = {name: types.ModuleType(name) for name in names}

    class SamplingParams:
        def __init__(self, **given: Any) -> None:
            neutral: dict[str, Any] = {
                "n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
                "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0, "ignore_eos": False, "stop": None,
                "bad_words": None, "logit_bias": None, "allowed_token_ids": None, "structured_outputs": None,
                "prompt_logprobs": None, "seed": None, "logprobs": None, "max_tokens": None, "extra_args": None,
                "stop_token_ids": None, "thinking_token_budget": None, "repetition_detection": None,
                "trace_decode_token_ids": None,
            }  # fmt: skip
            self.__dict__.update({**neutral, **given})

    class Direction(enum.Enum):
        UNIDIRECTIONAL = enum.auto()
        SWAP = enum.auto()

    @dataclass(frozen=True)
    class Update:
        batch_size: int
        removed: Sequence[int]
        added: Sequence[Any]
        moved: Sequence[Any]

    made["vllm"].__dict__.update(SamplingParams=SamplingParams, __version__="0.32.0")
    made["vllm.distributed.parallel_state"].__dict__.update(get_tp_group=None)
    made["vllm.tokenizers"].__dict__.update(cached_tokenizer_from_config=None)
    made["vllm.v1.sample.logits_processor"].__dict__.update(
        BatchUpdate=Update, MoveDirectionality=Direction, LogitsProcessor=type("LogitsProcessor", (), {})
    )
    made["vllm.v1.worker.gpu.sample.logits_processor"].__dict__.update(
        LogitsContext=SimpleNamespace, LogitsProcessor=type("SlotProcessor", (), {})
    )
    return made


@contextmanager
def vllm_or_stand_ins() -> Iterator[SimpleNamespace]:
    """Yield the processor's class and what an engine needs of vLLM; stand-ins are gone afterwards."""
    standing_in = {} if importlib.util.find_spec("vllm") else stand_ins()
    ours = [f"outlines_phi.{name}" for name in MODULES] if standing_in else []
    sys.modules.update(standing_in)
    try:
        vllm = importlib.import_module("vllm")
        update = importlib.import_module("vllm.v1.sample.logits_processor")
        yield SimpleNamespace(
            PhiAttempts=importlib.import_module("outlines_phi.vllm").PhiAttempts,
            engine=importlib.import_module("outlines_phi.lm.vllm.engine"),
            SamplingParams=vllm.SamplingParams,
            BatchUpdate=update.BatchUpdate,
            MoveDirectionality=update.MoveDirectionality,
        )
    finally:
        for name in (*standing_in, *ours):
            sys.modules.pop(name, None)


def configuration(vocabulary_size: int, eos: int, context: int, **changes: Any) -> SimpleNamespace:
    """As much of the configuration of an engine as is read; ``changes`` by the names of fields."""
    fields: dict[str, Any] = {
        "speculative_config": None, "enable_chunked_prefill": False, "enable_batch_sharded_sampling": False,
        "max_num_seqs": 64, "model": "m", "is_diffusion": False,
        "long_prefill_token_threshold": 0, "runner_type": "generate", "is_encoder_decoder": False,
        "logprobs_mode": "processed_logits", "max_logprobs": 20, "max_model_len": context,
        "lora_config": None, "is_multimodal_model": False, "enable_prompt_embeds": False,
        "additional_config": {}, **changes,
    }  # fmt: skip
    model = SimpleNamespace(
        **fields,
        try_get_generation_config=dict,
        hf_text_config=SimpleNamespace(eos_token_id=eos),
        get_vocab_size=lambda: vocabulary_size,
    )
    parts = ("scheduler_config", "parallel_config")
    return SimpleNamespace(**fields, model_config=model, **{part: SimpleNamespace(**fields) for part in parts})


@dataclass(eq=False)
class Asked:
    """One request: the child of one of the protocol."""

    params: Any
    prompt: list[int]
    outputs: list[int] = field(default_factory=list)
    shown: list[Any] = field(default_factory=list)
    finish: str | None = None
    cancelled: bool = False


class FakeEngine:
    """An engine with ``room`` rows over ``logits`` of sequences, which preempts and moves requests at random.

    ``partial``: How often the row of an unfinished prompt is computed, and what is sampled from it thrown away.
    """

    def __init__(
        self,
        vllm: SimpleNamespace,
        processor: Any,
        logits: Callable[[list[tuple[int, ...]]], Tensor],
        ends: Sequence[int],
        context: int,
        *,
        room: int = 8,
        preempted: float = 0.0,
        partial: int = 0,
        seed: int = 0,
    ) -> None:
        self.vllm, self.processor, self.logits, self.ends, self.context = vllm, processor, logits, ends, context
        self.room, self.preempted, self.partial = room, preempted, partial
        self.rng = np.random.default_rng(seed)
        self.sampling = torch.Generator().manual_seed(seed)
        self.waiting: list[Asked] = []
        self.rows: list[Asked] = []
        self.steps = self.moves = self.returns = 0

    def step(self) -> None:
        """One step of the engine: what is finished goes, what waits comes, rows are moved, and each writes a token."""
        self.steps += 1
        rows: dict[int, Asked] = dict(enumerate(self.rows))
        removed = [row for row, asked in rows.items() if asked.finish or asked.cancelled]
        for row in list(rows):
            if row not in removed and self.rng.random() < self.preempted:
                removed.append(row)
                self.waiting.insert(0, rows[row])
        for row in removed:
            del rows[row]
        self.waiting = [asked for asked in self.waiting if not asked.cancelled]
        added = []
        while self.waiting and len(rows) < self.room:
            asked, row = self.waiting.pop(0), min(set(range(self.room)) - set(rows))
            self.returns += bool(asked.outputs)
            asked.outputs = list(asked.outputs)  # as one that comes back has
            rows[row] = asked
            added.append((row, asked.params, asked.prompt, asked.outputs))
        moved = list(self._moved(rows))
        self.rows = [rows[row] for row in range(len(rows))]
        update = self.vllm.BatchUpdate(len(rows), removed, added, moved) if removed or added or moved else None
        self.processor.update_state(update)
        if self.rows:
            self._apply()

    def _moved(self, rows: dict[int, Asked]) -> Iterator[tuple[int, int, Any]]:
        direction = self.vllm.MoveDirectionality
        while rows and max(rows) >= len(rows):
            source, target = max(rows), min(set(range(len(rows))) - set(rows))
            rows[target] = rows.pop(source)
            yield source, target, direction.UNIDIRECTIONAL
        if len(rows) > 1 and self.rng.random() < 0.3:
            one, other = self.rng.choice(len(rows), 2, replace=False).tolist()
            rows[one], rows[other] = rows[other], rows[one]
            self.moves += 1
            yield one, other, direction.SWAP

    def _apply(self) -> None:
        contexts = [(*asked.prompt, *asked.outputs) for asked in self.rows]
        unfinished = [asked for asked in self.rows if self.partial and not asked.outputs]
        if unfinished:
            self.partial -= 1
            contexts = [(*asked.prompt, *asked.outputs)[: 1 if asked in unfinished else None] for asked in self.rows]
        self._sample(self.processor.apply(self.logits(contexts).float()), unfinished)

    def _sample(self, processed: Tensor, unfinished: Sequence[Asked]) -> None:
        """Let each request write a token, but those whose prompts are not read to the end."""
        assert torch.isfinite(processed.amax(-1)).all()
        tokens = torch.multinomial(processed.softmax(-1), 1, generator=self.sampling)[:, 0].tolist()
        for asked, row, token in zip(self.rows, processed, tokens, strict=True):
            if asked in unfinished:
                continue
            asked.outputs.append(token)
            top = row.topk(asked.params.logprobs or 1)
            entries = [(token, float(row[token])), *zip(top.indices.tolist(), top.values.tolist(), strict=True)]
            asked.shown.append(
                SimpleNamespace(
                    token=f"token_id:{token}",
                    logprob=max(float(row[token]), -9999.0),
                    top_logprobs=[
                        SimpleNamespace(token=f"token_id:{each}", logprob=max(x, -9999.0))
                        for each, x in dict(entries).items()
                    ],
                )
            )
            if token in self.ends:
                asked.finish = "stop"
            elif len(asked.outputs) >= (asked.params.max_tokens or self.context - len(asked.prompt)):
                asked.finish = "length"


class SlotEngine(FakeEngine):
    """The same with the V2 model runner: a request has a slot until it leaves, rows come in any order, prompts are read in parts.

    Nobody is told who leaves, and parameters are copies, as in a worker of another process.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.requests = self.processor.requests
        self.free = list(range(len(self.requests.prompt_len.np)))
        self.slots: dict[int, tuple[Asked, bool]] = {}

    def step(self) -> None:
        self.steps += 1
        for slot, (asked, _) in list(self.slots.items()):
            preempted = not asked.finish and not asked.cancelled and self.rng.random() < self.preempted
            if preempted:
                self.waiting.insert(0, asked)
            if preempted or asked.finish or asked.cancelled:
                del self.slots[slot]
                self.free.append(slot)
        self.waiting = [asked for asked in self.waiting if not asked.cancelled]
        came = set[int]()
        while self.waiting and len(self.slots) < self.room:
            asked, slot = self.waiting.pop(0), self.free.pop()
            self.returns += bool(asked.outputs)
            self.slots[slot] = asked, self.processor.add_request(slot, copy(asked.params))
            tokens = [*asked.prompt, *asked.outputs]
            self.requests.prompt_len.np[slot], self.requests.prefill_len.np[slot] = len(asked.prompt), len(tokens)
            self.requests.all_token_ids.gpu[slot, : len(tokens)] = torch.tensor(tokens)
            came.add(slot)
        self.processor.apply_staged_writes()
        if self.slots:
            self._apply_to(self.rng.permutation(list(self.slots)), came)

    def _apply_to(self, order: Any, came: set[int]) -> None:
        self.rows = [self.slots[slot][0] for slot in order.tolist()]
        contexts = [(*asked.prompt, *asked.outputs) for asked in self.rows]
        for row, slot in enumerate(order.tolist()):
            if slot in came and len(contexts[row]) > 1 and self.rng.random() < 0.3:
                contexts[row] = contexts[row][:-1]
                self.moves += 1
        context = SimpleNamespace(
            idx_mapping_np=order,
            seq_lens_upper_bound_np=np.array([len(each) for each in contexts]),
            input_ids=torch.tensor([each[-1] for each in contexts]),
        )
        logits = self.logits(contexts).float()
        if any(ours for _, ours in self.slots.values()):
            logits = self.processor.apply(logits, context)
        whole = [(*asked.prompt, *asked.outputs) for asked in self.rows]
        self._sample(logits, [asked for asked, a, b in zip(self.rows, contexts, whole, strict=True) if a != b])


def slots(room: int, context: int) -> SimpleNamespace:
    """Return the state of the requests of V2, in ``room`` slots."""
    return SimpleNamespace(
        prompt_len=SimpleNamespace(np=np.zeros(room, np.int32)),
        prefill_len=SimpleNamespace(np=np.zeros(room, np.int32)),
        all_token_ids=SimpleNamespace(gpu=torch.zeros(room, context, dtype=torch.int32)),
    )


class BadRequest(Exception):
    """The error that the server answers with status 400."""

    status_code = 400


class FakeClient:
    """A client of the OpenAI protocol, ``client.chat.completions.create``, over an engine.

    ``encode`` and ``decode`` are those of its tokenizer. ``requests`` are the keywords of all requests that were made.
    """

    def __init__(
        self,
        engine: FakeEngine | None,
        encode: Callable[[str], list[int]],
        decode: Callable[[list[int]], str],
        validate: Callable[[Any], None] = lambda params: None,
    ) -> None:
        self.engine, self.encode, self.decode, self.validate = engine, encode, decode, validate
        self.requests: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def create(self, *, messages: list[Any], **given: Any) -> Any:
        self.requests.append({"messages": messages, **given})
        with self.lock:
            return self._response("".join(message["content"] for message in messages), **given)

    def children(self, prompt: str, **given: Any) -> list[Asked]:
        """Return the requests of the engine that one of the protocol comes down to."""
        assert self.engine is not None
        extra = given.get("extra_body", {})
        ids = self.encode(prompt)
        if len(ids) >= self.engine.context:
            raise BadRequest("This model's maximum context length is exceeded.")
        names = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
        settings = {name: given[name] for name in names if name in given}
        settings |= {name: extra[name] for name in ("top_k", "min_p", "repetition_penalty") if name in extra}
        children = []
        for child in range(given.get("n", 1)):
            params = self.engine.vllm.SamplingParams(
                **settings,
                seed=None if given.get("seed") is None else given["seed"] + child,
                max_tokens=given.get("max_tokens", self.engine.context - len(ids)),
                logprobs=given.get("top_logprobs") if given.get("logprobs") else None,
                extra_args=dict(extra["vllm_xargs"]) if "vllm_xargs" in extra else None,
            )
            try:
                self.validate(params)
            except ValueError as error:
                raise BadRequest(str(error)) from error
            children.append(Asked(params, ids))
        return children

    def _response(self, prompt: str, **given: Any) -> Any:
        assert self.engine is not None
        children = self.children(prompt, **given)
        self.engine.waiting += children
        while not all(child.finish for child in children):
            self.engine.step()
        return SimpleNamespace(
            usage=SimpleNamespace(prompt_tokens=len(children[0].prompt)),
            choices=[
                SimpleNamespace(
                    finish_reason=child.finish,
                    logprobs=SimpleNamespace(content=child.shown) if child.params.logprobs else None,
                    message=SimpleNamespace(content=self.decode(child.outputs), refusal=None),
                )
                for child in children
            ],
        )


def without_coin(tree: Any, attempt: Attempt) -> bool | None:
    """A walk that goes by the bounds of now and forgets what it was chosen by."""
    while attempt.node.state != DONE:
        if attempt.node.free is None:
            return None
        if attempt.node.log_upper == -math.inf:
            return False
        attempt.node = tree.choose(attempt.node, lambda child: child.log_upper, attempt.rng)
    return True


def client_of(
    vllm: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    lm: Any,
    vocabulary: Vocabulary,
    encode: Callable[[str], list[int]],
    context: int = 64,
    configured: Mapping[str, Any] | None = None,
    runner: str = "V1",
    **options: Any,
) -> FakeClient:
    """Return a client of a server of a language model; ``options`` are those of the engine, ``configured`` of its configuration."""
    monkeypatch.setattr(sys.modules[vllm.PhiAttempts.__module__], "vocabulary_of", lambda model: vocabulary)
    config = configuration(len(vocabulary), vocabulary.eos_ids[0], context, **(configured or {}))
    given = (torch.device("cpu"), False) if runner == "V1" else (slots(options.get("room", 8), context),)
    processor = vllm.PhiAttempts(config, *given)

    def logits(contexts: list[tuple[int, ...]]) -> torch.Tensor:
        return lm.trees(contexts).roots().logits.clone()

    def decode(ids: list[int]) -> str:
        return vocabulary.decode(ids).decode(errors="replace")

    make = FakeEngine if runner == "V1" else SlotEngine
    engine = make(vllm, processor, logits, vocabulary.eos_ids, context, **options)
    return FakeClient(engine, encode, decode, vllm.PhiAttempts.validate_params)
