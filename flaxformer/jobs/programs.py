"""The compiled functions of a job, on one device or over a mesh of them: the same functions, the same numbers."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from flaxformer.model.layout import Layout
from flaxformer.sharding import BATCH, Devices, device_put_global, replicated, shardings_of
from flaxformer.tasks.base import Source
from flaxformer.tasks.host import HostSource, prefetch
from flaxformer.tasks.sharded import ShardedSource
from flaxformer.training import Run, TrainState, evaluate, evaluation_params, start, train_chunk
from flaxformer.training.micro_batches import check_batch


class Programs:
    """`start`, `advance`, `evaluate` and `weights` of a run, where its numbers lie.

    Args:
      run: what is trained.
      layout: of its layers.
      devices: the mesh; None for JAX's default device.

    Raises:
      UserError: there are not so many devices, or the batch cannot be cut into as many parts.
    """

    def __init__(self, run: Run, layout: Layout, devices: Devices | None = None) -> None:
        self.run, self.layout = run, layout
        self.mesh = None if devices is None else devices.mesh()
        cut: dict[str, Any] = {"state": {}, "both": {}, "whole": {}}
        if devices is not None and self.mesh is not None:
            check_batch(run, devices)
            whole = replicated(self.mesh)
            state = shardings_of(jax.eval_shape(lambda run: start(run, layout), run), self.mesh)
            cut = {name: {"out_shardings": out} for name, out in zip(cut, (state, (state, whole), whole), strict=True)}
        self._start = jax.jit(start, static_argnums=1, **cut["state"])
        self._advance = jax.jit(train_chunk, static_argnums=3, donate_argnums=0, **cut["both"])
        self._evaluate = jax.jit(_evaluate, **cut["whole"])
        self._weights = jax.jit(evaluation_params, **cut["whole"])

    def _mesh_context(self) -> contextlib.AbstractContextManager[Any]:
        """Within, the mesh is known to what is compiled."""
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def start(self) -> TrainState:
        """The state before the first step."""
        with self._mesh_context():
            return self._start(self.run, self.layout)

    def shard_source(self, source: Source) -> Source:
        """The data, whole on every device, whose batches are cut; or on the host."""
        if self.mesh is None or isinstance(source, HostSource):
            return source
        return ShardedSource(device_put_global(source, replicated(self.mesh)), self.mesh)

    def chunks(self, source: Source, key: Array, first: int, last: int, steps: int) -> Iterator[tuple[Source, int]]:
        """Yield the data from one step to another, in chunks of at most `steps`, each with how many it has."""
        if not isinstance(source, HostSource):
            yield from ((source, min(steps, last - at)) for at in range(first, last, steps))
        elif self.mesh is None:
            yield from prefetch(source, key, first, last, steps)
        else:
            cut = NamedSharding(self.mesh, PartitionSpec(None, *BATCH))
            for chunk, count in prefetch(
                source, key, first, last, steps, lambda batches: device_put_global(batches, cut)
            ):
                yield ShardedSource(chunk, self.mesh), count

    def advance(self, state: TrainState, source: Source, steps: int) -> tuple[TrainState, dict[str, Any]]:
        """The state some steps later, and each step's metrics; the former state is used up."""
        with self._mesh_context():
            return self._advance(state, self.run, source, steps)

    def evaluate(self, state: TrainState, source: Source) -> dict[str, float]:
        """The metrics of the evaluation set."""
        with self._mesh_context():
            found = jax.device_get(self._evaluate(state, self.run, source))
        return {name: float(value) for name, value in found.items()}

    def weights(self, state: TrainState) -> Any:
        """The weights to sample from, whole on a device of this process."""
        with self._mesh_context():
            weights = self._weights(state, self.run)
        return weights if self.mesh is None else jax.tree.map(lambda leaf: leaf.addressable_data(0), weights)


def _evaluate(state: TrainState, run: Run, source: Source) -> dict[str, Any]:
    return evaluate(evaluation_params(state, run), run, source)
