"""Actors of Ray Data, each with a model of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

from ...errors import OutlinesPhiError, UnsupportedError
from ...numerics.checks import counted
from ..loaded_model import needing


def ray_data() -> Any:
    """Return the module ``ray.data``."""
    with needing("ray", "Drawing on Ray"):
        return import_module("ray.data")


@final
@dataclass(frozen=True, kw_only=True)
class Pool:
    """How many actors there are, and what Ray reserves for each: ``gpus`` by default one where the cluster has any."""

    actors: int = 1
    cpus: float = 1
    gpus: float | None = None

    def started(self) -> Pool:
        """Start Ray on this machine, if it is not running and no address of a cluster is set; return the pool with its GPUs.

        Raises :class:`UnsupportedError` where a cluster of this machine alone has no room for the actors, which would wait for it.
        """
        ray_data()
        ray = import_module("ray")
        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        # Ray Data tells of its plans; a command tells of its prompts.
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        there = ray.cluster_resources()
        gpus = float("GPU" in there) if self.gpus is None else self.gpus
        pool = Pool(actors=self.actors, cpus=self.cpus, gpus=gpus)
        if len(ray.nodes()) == 1:
            pool._check_room(there)
        return pool

    def _check_room(self, there: dict[str, float]) -> None:
        for kind, each in (("CPU", self.cpus), ("GPU", self.gpus or 0)):
            if each * self.actors > there.get(kind, 0):
                raise UnsupportedError(
                    f"Give fewer --actors, or start Ray on more machines: {counted(self.actors, 'actor')} of {each:g} {kind} each "
                    f"do not fit, Ray has {there.get(kind, 0):g} here."
                )

    @property
    def _resources(self) -> dict[str, float]:
        return {"num_cpus": self.cpus, "num_gpus": self.gpus or 0}

    def once(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns in a process of its own, which has what an actor has, and ends with it."""
        ray = import_module("ray")
        try:
            return ray.get(ray.remote(max_calls=1, **self._resources)(function).remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, OutlinesPhiError):
                raise error.cause from None
            raise

    def map(self, dataset: Any, drawer: type, batch_size: int, **arguments: Any) -> Any:
        """Return a dataset whose batches went through actors of a class, which is made with ``arguments``.

        Ray starts an actor that died again, and gives its batches to another one.
        """
        return dataset.map_batches(
            drawer,
            fn_constructor_kwargs=arguments,
            batch_size=batch_size,
            batch_format="pyarrow",
            compute=ray_data().ActorPoolStrategy(size=self.actors, max_tasks_in_flight_per_actor=2),
            **self._resources,
        )
