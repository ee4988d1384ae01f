"""An engine in this process, some of whose requests are cancelled: prints what is left of them."""

import gc
import os
from typing import Any

from outlines_phi import SamplingSettings

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}

from vllm import LLM, SamplingParams  # noqa: E402

from outlines_phi.lm import bundled  # noqa: E402
from outlines_phi.plugin.hosts.vllm_server.phi_attempts import PhiAttempts  # noqa: E402
from outlines_phi.plugin.hosts.vllm_server.served_call import ARGUMENT, SHOWN, ServedCall  # noqa: E402

# noqa: E402

MADE: list[Any] = []


def main() -> None:
    begin = PhiAttempts.__init__

    def made(processor: Any, *arguments: Any) -> None:
        begin(processor, *arguments)
        MADE.append(processor)

    PhiAttempts.__init__ = made  # type: ignore[method-assign]
    llm = LLM(
        str(bundled.path()), dtype="float32", enforce_eager=True, max_model_len=256, block_size=32, max_num_seqs=8,
        enable_chunked_prefill=False, logprobs_mode="processed_logits", logits_processors=[PhiAttempts],
    )  # fmt: skip
    call = ServedCall(road="local", language="[a-z ]{60}", settings=SamplingSettings(seed=1))
    for number in range(12):
        params = SamplingParams(
            temperature=1.0, seed=number, logprobs=SHOWN, max_tokens=200, extra_args={ARGUMENT: call.text()}
        )
        llm.llm_engine.add_request(str(number), "Hugo is a ", params)
    for _ in range(5):
        llm.llm_engine.step()
    (processor,) = MADE
    print(f"under way: {len(processor.served.walks)} walks, {len(processor.kept)} rows")
    assert len(processor.served.walks) == 8
    del params
    for number in range(10):
        llm.llm_engine.abort_request([str(number)])
    finished = 0
    while llm.llm_engine.has_unfinished_requests():
        finished += sum(output.finished for output in llm.llm_engine.step())
    assert finished == 2
    llm.generate("x", SamplingParams(max_tokens=1))  # what has left is told with what comes
    gc.collect()
    print(f"left: {len(processor.served.walks)} walks, {len(processor.kept)} rows")


if __name__ == "__main__":
    main()
