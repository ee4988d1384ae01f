"""A double of the few calls of Ray that are made: batches go through actors in this process, and come back in another order."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class RayTaskError(Exception):
    """The error that a task raised."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__("a long text with a traceback")
        self.cause = cause


@dataclass(frozen=True)
class Dataset:
    """Tables, and what is to be done with their batches."""

    tables: list[Any]
    work: Callable[[], Iterator[Any]] | None = None

    def columns(self) -> list[str]:
        return list(self.tables[0].column_names)

    def map_batches(
        self,
        drawer: type,
        *,
        fn_constructor_kwargs: dict[str, Any],
        batch_size: int,
        batch_format: str,
        compute: SimpleNamespace,
        num_cpus: float,
        num_gpus: float,
    ) -> Dataset:
        assert batch_format == "pyarrow"
        sent = pickle.dumps(fn_constructor_kwargs)

        def work() -> Iterator[Any]:
            import pyarrow

            actors = [drawer(**pickle.loads(sent)) for _ in range(compute.size)]
            for number, table in reversed(list(enumerate(self.tables))):
                for first in range(0, len(table), batch_size):
                    made = actors[number % compute.size](table.slice(first, batch_size))
                    yield made if isinstance(made, pyarrow.Table) else pyarrow.table(made)

        return replace(self, work=work)

    def iter_batches(self, *, batch_size: int | None, batch_format: str) -> Iterator[Any]:
        assert batch_size is None and batch_format == "pyarrow" and self.work is not None
        return self.work()


@dataclass
class RayDouble:
    """A double of Ray: a machine with some resources, and a record of the requests to it."""

    resources: dict[str, float] = field(default_factory=lambda: {"CPU": 4.0})
    started: bool = False
    reserved: list[dict[str, Any]] = field(default_factory=list)  # the requests of tasks
    context: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(enable_progress_bars=True))

    def remote(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        self.reserved.append(options)
        return lambda function: SimpleNamespace(remote=lambda *given: (function, pickle.dumps(given)))

    def get(self, task: tuple[Callable[..., Any], bytes]) -> Any:
        function, given = task
        try:
            return function(*pickle.loads(given))
        except Exception as error:
            raise RayTaskError(error) from None

    def init(self, **options: Any) -> None:
        self.started = True

    def installed(self, monkeypatch: pytest.MonkeyPatch) -> RayDouble:
        ray, data = ModuleType("ray"), ModuleType("ray.data")
        vars(ray).update(
            data=data,
            init=self.init,
            is_initialized=lambda: self.started,
            cluster_resources=lambda: self.resources,
            nodes=lambda: [{}],
            remote=self.remote,
            get=self.get,
            exceptions=SimpleNamespace(RayTaskError=RayTaskError),
        )
        vars(data).update(
            from_arrow=lambda tables: Dataset(tables if isinstance(tables, list) else [tables]),
            ActorPoolStrategy=lambda size, max_tasks_in_flight_per_actor: SimpleNamespace(size=size),
            DataContext=SimpleNamespace(get_current=lambda: self.context),
        )
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray.data", data)
        return self
