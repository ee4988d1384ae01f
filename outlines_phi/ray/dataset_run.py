"""Draws for the rows of a dataset of Ray Data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..cli.actors import NUMBER, ColumnDrawer, Pool, check_names, ray_data, table_of
from ..cli.batches import Task
from ..cli.inputs import COLUMN, JSONL, PARQUET, load, read_rows
from ..errors import UnsupportedError
from ..numerics.checks import check_counts
from ..phi.estimator import Phi
from ..plugin.call import Ban, Call, CallOptions, Correction, Unset
from ..plugin.choices import COUNTED, MEANT_BY_DRAWS, refuse_unknown
from ..plugin.types.output_types import to_language


def generate(
    dataset: Any,
    output_type: Any = None,
    *,
    model: str | Path | Callable[[], Any],
    host: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    prompt: str = COLUMN,
    key: str | None = None,
    phi: str | Phi | Unset = Unset.UNSET,
    banned_phrases: Ban | Unset | None = Unset.UNSET,
    n: int = 1,
    seed: int | None = None,
    token_ids: bool = False,
    batch_size: int = 16,
    actors: int = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    **keywords: Any,
) -> Any:
    """Return a dataset of Ray Data with the draws of every row of another one, made by actors that hold a model each.

    There is a row per draw, or one with ``error`` and ``message`` where a prompt cannot be drawn, which fails alone. Its columns
    are those of the input, and those of a line of ``outlines-phi generate``: ``text``, ``value`` (JSON), ``log_p``, ``log_w``,
    ``guarantee`` and the others. Nothing is drawn before the dataset is read. What an actor had under way when it died is drawn
    by another; a draw depends on the seed and the key of its row alone, not on its batch or its actor.

    Parameters
    ----------
    dataset
        A ``ray.data.Dataset``, or the path of a file of JSON lines or of Parquet, whose rows are numbered, as ``prompt_index``.
    output_type
        The format, as :func:`outlines_phi.Generator` takes it; it is pickled. ``None`` for free text without banned phrases.
    model
        The model of every actor: a name or a path, as the command line takes them, or a function that makes a model of Outlines.
    host, device, dtype
        Of a model by its name: as ``--host``, ``--device`` and ``--dtype`` of the command line.
    prompt
        The column of the prompts: texts, or lists of messages with ``role`` and ``content``.
    key
        A column whose values tell rows apart: with the seed they name the random streams. Rows of one key have the same streams.
    phi, banned_phrases, keywords
        As in ``Generator(...).sample``.
    n, seed
        Draws per row, and where all random streams come from; without a seed they are fresh ones.
    token_ids
        True if ``token_ids`` is filled.
    batch_size
        Rows that share model calls.
    actors, num_cpus, num_gpus
        The number of actors, and the share that Ray reserves for each. Leave a CPU to the tasks that read a dataset.

    Raises
    ------
    UnsupportedError
        An option that is not offered; a column that is not there; a seed for a dataset without a key. What only the model knows is
        raised by the actors.
    """
    check_counts("ray.generate()", n=n, batch_size=batch_size, actors=actors)
    if isinstance(dataset, str | Path):
        dataset, key = _numbered(Path(dataset), prompt), key or NUMBER
    call = Call.of(Correction().replaced_by(phi, banned_phrases), output_type, keywords)
    refuse_unknown(keywords, [name for name in COUNTED if name not in ("seed", "progress")], MEANT_BY_DRAWS)
    CallOptions.read({**keywords, "seed": seed}, None)
    if call.phi is None:
        raise UnsupportedError(
            "Give an output type or banned phrases, and a phi= other than None: nothing is corrected here."
        )
    if output_type is not None:
        to_language(output_type)
    columns = dataset.columns()
    for option, column in {"prompt": prompt, "key": key}.items():
        if column is not None and column not in columns:
            raise UnsupportedError(
                f"Give {option}= one of the columns {', '.join(columns)}: {option}={column!r} is not among them."
            )
    check_names([name for name in columns if name != NUMBER], "the dataset")
    if seed is not None and key is None:
        raise UnsupportedError(
            f"Give key=, a column that tells rows apart, or leave out seed=: the rows of a dataset have no numbers. seed={seed} "
            "was given."
        )
    if callable(model):
        if given := [
            name for name, value in {"host": host, "device": device, "dtype": dtype}.items() if value is not None
        ]:
            raise UnsupportedError(f"Leave out {', '.join(given)}, which the function model={model!r:.80} decides.")
        made: Callable[[], Any] = model
    else:
        made = partial(load, str(model), device, dtype, host)
    task = Task(load=made, model=str(model), output_type=output_type, type_name="", call=call, n=n, seed=seed)
    pool = Pool(actors=actors, cpus=num_cpus, gpus=num_gpus)
    return pool.map(dataset, ColumnDrawer, batch_size, task=task, prompt=prompt, key=key, token_ids=token_ids)


def _numbered(path: Path, prompt: str) -> Any:
    """Return the rows of a file as a dataset, with their numbers."""
    if path.suffix not in (*JSONL, PARQUET):
        raise UnsupportedError(f"Give a file {', '.join(JSONL)} or {PARQUET}, or a dataset: {path} was given.")
    return ray_data().from_arrow(table_of(read_rows([], path, prompt), path))
