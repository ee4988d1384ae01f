"""Inputs of a command: its model, its prompts and its output type, from arguments, files or a pipe."""

import difflib
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import torch
import transformers
from outlines.inputs import Chat
from outlines.types import Regex

from .. import vllm as engine
from ..errors import GrammarError, UnsupportedError
from ..guides.grammar.grammar import Grammar
from ..guides.grammar.notation.reader import NAMES, grammar_text, read_grammar
from ..lm import bundled
from ..plugin.hosts.transformers import PhiTransformers, from_transformers
from ..plugin.hosts.vllm_server.phi_vllm import ServedModel
from ..plugin.session import PhiModel
from ..plugin.types.output_types import to_json
from ..plugin.wrapping import from_vllm_offline, needing, wrap

BUNDLED = "bundled"  # The name of the model that ships with the package

DTYPES = ("float32", "bfloat16", "float16")  # The types that weights may be loaded as

PROBE = 'The quick brown fox: 1,234.5 {"a": [true]}\n\tGr\u00f6\u00dfe \u6f22\u5b57 \U0001f642'
"""A text whose tokens tell tokenizers of equal vocabularies apart."""


OWN_DTYPES = {
    "llamacpp": "a GGUF file has types of its own",
    "vllm-server": "outlines-phi serve loads the weights, and takes it",
}
"""Hosts that take no type of the weights, and why."""

HOSTS = ("transformers", "llamacpp", "mlx", "vllm", "vllm-server")
"""Libraries that a model may run on."""


def load(name: str, device: str | None, dtype: str | None, host: str | None = None) -> PhiModel:
    """Return the model ``name``: what the loader of the host takes, or :data:`BUNDLED`; a GGUF file runs on llama.cpp.

    By default it runs on a GPU where there is one, with weights as they were saved (float32 for the bundled model).
    """
    host = host or ("llamacpp" if name.endswith(".gguf") else "transformers")
    if host == "transformers":
        return _on_transformers(name, device, dtype)
    if device is not None:
        raise UnsupportedError(
            f"Leave out --device, or --host {host}, which chooses it by itself. --device {device} was given."
        )
    if dtype is not None and host in OWN_DTYPES:
        raise UnsupportedError(f"Leave out --dtype: {OWN_DTYPES[host]}. --dtype {dtype} was given.")
    with needing(host):
        return {"llamacpp": _on_llamacpp, "mlx": _on_mlx, "vllm": _on_vllm, "vllm-server": _on_server}[host](
            name, dtype
        )


def _on_llamacpp(name: str, _: str | None) -> PhiModel:
    from llama_cpp import Llama
    from outlines.models.llamacpp import LlamaCpp

    path = Path(name).expanduser()
    if not path.is_file():
        raise UnsupportedError(f"Give a GGUF file, by --model FILE.gguf. --model {name}: there is no such file.")
    with loading(f"--model {name}"):
        llama = Llama(str(path), n_ctx=0, verbose=False)
    return wrap(LlamaCpp(llama, chat_mode="tokenizer.chat_template" in llama.metadata))


def _on_mlx(name: str, dtype: str | None) -> PhiModel:
    import mlx.core as mx
    import mlx_lm
    from outlines.models.mlxlm import MLXLM

    with loading(f"--model {name}"):
        loaded, tokenizer = mlx_lm.load(_source(name))
    if dtype is not None or name == BUNDLED:
        loaded.set_dtype(getattr(mx, dtype or "float32"))
    return wrap(MLXLM(loaded, tokenizer))


def _on_vllm(name: str, dtype: str | None) -> PhiModel:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # what vLLM tells of its start is not for a file of draws
    from vllm import LLM

    with loading(f"--model {name}"):
        llm = LLM(_source(name), dtype=dtype or ("float32" if name == BUNDLED else "auto"), **engine.ENGINE)
    return from_vllm_offline(llm)


def _on_server(name: str, _: str | None) -> PhiModel:
    import openai
    from outlines.models.vllm import VLLM

    if not name.startswith(("http://", "https://")):
        raise UnsupportedError(
            f"Give the address of a server that outlines-phi serve has started, --model http://localhost:8000/v1. --model {name} "
            "was given."
        )
    client = openai.OpenAI(base_url=name, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    try:
        (served, *_) = client.models.list().data
    except (openai.OpenAIError, ValueError) as error:
        raise UnsupportedError(
            f"Start the server with outlines-phi serve, or mend its address. --model {name} names no model: {error}"
        ) from error
    return wrap(VLLM(client, served.id))


def load_tokenizer(name: str) -> Any:
    """Return the tokenizer of ``--tokenizer``; an :class:`UnsupportedError` where it cannot be loaded."""
    _check_folder(name, "--tokenizer")
    with loading(f"--tokenizer {name}"):
        return transformers.AutoTokenizer.from_pretrained(_source(name))


def _source(name: str) -> str:
    """Return the name that loaders of other libraries take: a folder, or a name on the hub."""
    return str(
        Path(bundled.__file__).parent if name == BUNDLED else Path(name).expanduser() if _is_path(name) else name
    )


def _on_transformers(name: str, device: str | None, dtype: str | None) -> PhiTransformers:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # what is wrong with a prompt, its error says
    weights = None if dtype is None else getattr(torch, dtype)
    _check_folder(name, "--model")
    with loading(f"--model {name}"):
        if name == BUNDLED:
            loaded, tokenizer = bundled.load(weights)
        else:
            options = {} if weights is None else {"dtype": weights}
            tokenizer = transformers.AutoTokenizer.from_pretrained(_source(name))
            loaded = transformers.AutoModelForCausalLM.from_pretrained(_source(name), **options).eval()
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        loaded = loaded.to(torch.device(where))
    except torch.cuda.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:  # torch's ways to say that there is no such device
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(f"Give cpu, cuda or cuda:1. --device {where} cannot be used: {reason}") from error
    return from_transformers(loaded, tokenizer)


def _check_folder(name: str, option: str) -> None:
    """Refuse a path that is none, for which loaders would ask the hub."""
    if name != BUNDLED and _is_path(name) and not Path(name).expanduser().is_dir():
        raise UnsupportedError(
            "Give a folder that save_pretrained wrote (with config.json, weights and tokenizer), a name on the Hugging Face hub, "
            f"or {BUNDLED!r}. {option} {name}: there is no such folder."
        )


@contextmanager
def loading(given: str) -> Iterator[None]:
    """Turn an error of loading into the remedy."""
    try:
        yield
    except Exception as error:  # loading runs the code of many libraries, which raise what they like
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(
            "Give a folder that save_pretrained wrote, a name on the Hugging Face hub that this machine can reach, or "
            f"{BUNDLED!r} (--debug shows the whole error). {given} cannot be loaded: {type(error).__name__}: {reason}"
        ) from error


def _is_path(name: str) -> bool:
    return Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1


def identity(name: str, model: Any) -> dict[str, str]:
    """Return the identity of a model's distribution; ``name`` is there to be read, the rest to be compared."""
    if isinstance(model, ServedModel):
        told = dict.fromkeys(("dtype", "vocabulary", "tokenizer"), "as served")
        return {"name": name, "weights": str(model.model_name), **told}
    tokenizer = model.hf_tokenizer or model.tokenizer
    read = json.dumps([tokenizer.encode(PROBE), getattr(tokenizer, "chat_template", None)], default=str)
    return {
        "name": name,
        "weights": model.lm.fingerprint(),
        "dtype": str(getattr(model.model, "dtype", "as saved")).removeprefix("torch."),
        "vocabulary": model.lm.vocabulary.fingerprint,
        "tokenizer": hashlib.blake2b(read.encode(), digest_size=16).hexdigest(),
    }


def check_chats(model: Any, prompts: Sequence[Any]) -> None:
    """Raise UnsupportedError where there are chats, and the model has no template for them."""
    chats = [index for index, prompt in enumerate(prompts) if not isinstance(prompt, str)]
    if chats and not getattr(model.type_adapter, "has_chat_template", True):  # a server's is its own
        raise UnsupportedError(
            "Give plain texts, or an instruction-tuned model: the model's tokenizer has no chat template, and "
            f"Prompt {chats[0]} (counted from 0) is a list of chat messages."
        )


Row = dict[str, Any]  # The fields beside a prompt, by name; the prompt is among them
Prompt = str | list[dict[str, Any]]  # A text, or the messages of a chat: what a line of JSON can hold
PIPE = "-"  # The argument that stands for the standard input
Rows = Sequence[
    tuple[Row, Prompt | UnsupportedError]
]  # The inputs of a command, and of each the prompt, or the reason that it has none
JSONL = (".jsonl", ".ndjson")  # Suffixes of files with one JSON object per line
PARQUET = ".parquet"
COLUMN = "prompt"  # The field of an object, or the column of a Parquet file, that has the prompt

EXPECTED = (
    "Give exactly one of --type module:Class, --schema FILE.json, --regex PATTERN and --grammar FILE (.lark or .gbnf)."
)

FREE = "free text"  # The command's name of a missing output type


def read_prompts(arguments: Sequence[str], file: Path | None, column: str | None = None) -> list[Prompt]:
    """Return the prompts of a command, at least one; see :func:`read_rows`, of which none may be without a prompt."""
    prompts = []
    for _, prompt in read_rows(arguments, file, column):
        if isinstance(prompt, UnsupportedError):
            raise prompt
        prompts.append(prompt)
    return prompts


def read_rows(arguments: Sequence[str], file: Path | None, column: str | None = None) -> Rows:
    """Return the rows of a command's input, and of each the prompt, or why it has none; at least one row.

    That is the arguments (``-`` alone is the standard input, a prompt a line), or a file: with a prompt a line; where the suffix is
    one of :data:`JSONL`, with an object a line; a table where it is :data:`PARQUET`. A prompt is a text or a list of chat messages;
    that of an object or a table is called ``column``, by default :data:`COLUMN`.
    """
    if arguments and file is not None:
        raise UnsupportedError(
            "Give one of the two (-- ends the options, if a prompt begins with a dash): prompts were given as arguments and by "
            f"--file {file}."
        )
    named = file is not None and file.suffix in (*JSONL, PARQUET)
    if column is not None and not named:
        raise UnsupportedError(
            f"Give --file FILE.jsonl or FILE.parquet, or leave it out: --column {column} is of no use for plain texts."
        )
    rows: Iterable[tuple[Row, Prompt | UnsupportedError]]
    if file is None and list(arguments) != [PIPE]:
        rows, source = [({COLUMN: text}, text) for text in arguments], "none were given"
    elif file is None or str(file) == PIPE:
        source = "the standard input"
        rows = _texts(_decoded(sys.stdin.buffer.read(), source), source)
    else:
        source, column = f"--file {file}", COLUMN if column is None else column
        if file.suffix == PARQUET:
            rows = _table(file, source, column)
        else:
            text = read_text(file, source, "a file of prompts")
            rows = _objects(text, str(file), column) if named else _texts(text, str(file))
    read = list(rows)
    if not read:
        empty = " is empty" * (source != "none were given")
        raise UnsupportedError(
            "Give prompts as arguments, by --file FILE (one per line; .jsonl: objects with a prompt; .parquet: a column), or "
            f"through a pipe with - as the only argument. There are no prompts: {source}{empty}."
        )
    return read


def model_input(prompt: Prompt) -> str | Chat:
    """Return a prompt as Outlines takes it."""
    return prompt if isinstance(prompt, str) else Chat([dict(message) for message in prompt])


def _lines(text: str) -> list[str]:
    """Return the lines of a text; empty ones at its end are not meant."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _texts(text: str, source: str) -> Iterator[tuple[Row, Prompt]]:
    for number, line in enumerate(_lines(text), 1):
        if not line.strip():
            raise UnsupportedError(
                'Remove the line, or write prompts as JSONL ({"prompt": ""}) where an empty one is meant: '
                f"Line {number} of {source} is empty."
            )
        yield {COLUMN: line}, line


def _objects(text: str, source: str, column: str) -> Iterator[tuple[Row, Prompt | UnsupportedError]]:
    for number, line in enumerate(_lines(text), 1):
        place = f"Line {number} of {source}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # Python reads no integer of thousands of digits
            yield (
                {},
                UnsupportedError(
                    f'Write an object such as {{"{column}": "..."}}: {place} cannot be read as JSON, {error}.'
                ),
            )
            continue
        row = record if isinstance(record, dict) else {}
        yield row, read_prompt(row.get(column), column, f"{place} has no prompt that can be read: {line!r:.80}.")


def read_prompt(value: Any, column: str, fault: str) -> Prompt | UnsupportedError:
    """Return the prompt that a value is, or the error that names ``column``, and then the ``fault``."""
    match value:
        case str():
            return value
        case [_, *_] if all(
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
            for message in value
        ):
            # A column of messages has every key that one of them has.
            return [{key: each for key, each in message.items() if each is not None} for message in value]
    return UnsupportedError(
        f'Write {{"{column}": "..."}}, or a chat: {{"{column}": [{{"role": "user", "content": "..."}}]}}. {fault}'
    )


def _table(file: Path, source: str, column: str) -> Iterator[tuple[Row, Prompt | UnsupportedError]]:
    with needing("parquet", source):
        parquet = importlib.import_module("pyarrow.parquet")
    try:
        table = parquet.read_table(file)
    except (OSError, ValueError) as error:  # those of pyarrow are among them
        reason = " ".join(str(error).split())
        raise UnsupportedError(f"Give a Parquet file: {source} cannot be read, {reason}.") from error
    if column not in table.column_names:
        raise UnsupportedError(
            f"Give the name of the prompts' column (--column), one of {', '.join(table.column_names)}: {source} has no column "
            f"{column}."
        )
    for number, row in enumerate(table.to_pylist()):
        yield row, read_prompt(row[column], column, f"Row {number} of {source} has no prompt: {row[column]!r:.80}.")


def read_text(path: Path, given: str, expected: str) -> str:
    """Return the text of a file; ``given`` is what messages call it, and ``expected`` what was to be given."""
    try:
        return _decoded(path.read_bytes(), given)
    except OSError as error:
        raise UnsupportedError(f"Give {expected}: {given} cannot be read, {error.strerror}.") from error


def _decoded(content: bytes, given: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnsupportedError(f"Save it as UTF-8: {given} is not UTF-8, {error.reason} in line {line}.") from error


def read_output_type(
    named: str | None, schema: Path | None, regex: str | None, grammar: str | None = None, *, free: bool = False
) -> tuple[str, Any]:
    """Return the command's name of an output type, and the type; ``None`` where there is none and there may be (``free``).

    The type is whatever Outlines takes as ``module:Class`` (the working folder is on the path), a file with a JSON schema, a
    regular expression, a file with a grammar, in Lark's dialect or GBNF, or the name of one that comes with the package.
    """
    given = {"--type": named, "--schema": schema, "--regex": regex, "--grammar": grammar}
    chosen = [f"{option} {value}" for option, value in given.items() if value is not None]
    if free and not chosen:
        return FREE, None
    if len(chosen) != 1:
        options = " and ".join(each.split(" ")[0] for each in chosen)
        raise UnsupportedError(
            f"{EXPECTED} {options} were given." if chosen else f"{EXPECTED} No output type was given."
        )
    (name,) = chosen
    if schema is not None:
        with _pointing(name):
            return name, to_json(read_text(schema, name, "a JSON file"), None)
    if grammar is not None:
        return name, read_grammar_of(grammar, name)
    return name, _imported(str(named)) if regex is None else Regex(regex)


@contextmanager
def _pointing(given: str) -> Iterator[None]:
    """Name the option that was given in errors that point into its file."""
    try:
        yield
    except GrammarError as error:
        said = str(error) if error.position is None else str(error).split("\n")[0]
        raise GrammarError(f"{given}: {said}", error.source, error.position) from error
    except RecursionError as error:
        raise UnsupportedError(f"Give one of fewer levels: {given} is nested too deeply to be read.") from error


def read_grammar_of(grammar: str, given: str) -> Grammar:
    """Return the grammar of a file, in GBNF if it ends so, or one that is shipped; ``given`` is what messages call it."""
    path = Path(grammar)
    if path.suffix not in (".lark", ".gbnf") and not path.exists():
        return read_grammar(grammar_text(grammar))
    read_text(path, given, f"a file in Lark's dialect, a file .gbnf, or one of {', '.join(NAMES)} and dyck-n")
    with _pointing(given):
        return read_grammar(path)


def _imported(named: str) -> Any:
    module_name, _, path = named.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise UnsupportedError(
            "Give module:Class, such as schemas:Person for the class Person of schemas.py in the working folder, builtins:int, or "
            f"outlines.types:email; --type {named} was given."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        found = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module that is imported runs, and may raise anything, SystemExit too
        raise UnsupportedError(
            f"--type {named}: the module {module_name} cannot be imported: {type(error).__name__}: {error}. Modules are looked "
            f"for in the working folder and among the installed ones."
        ) from error
    try:
        return reduce(getattr, path.split("."), found)
    except AttributeError as error:
        near = difflib.get_close_matches(str(error.name), dir(error.obj), n=3)
        hint = f" Is {' or '.join(near)} meant?" if near else ""
        raise UnsupportedError(f"--type {named}: {error.obj!r:.80} has no {error.name}.{hint}") from error
