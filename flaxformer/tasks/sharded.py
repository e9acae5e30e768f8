"""A source whose batches are cut over a mesh of devices."""

from typing import Any

import flax.struct
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from flaxformer.sharding import BATCH
from flaxformer.tasks.base import Source


class ShardedSource(Source):
    """The same batches as the source's; each device has the examples of its place along data and fsdp."""

    source: Source
    mesh: Mesh = flax.struct.field(pytree_node=False)

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Any:
        return self._cut(self.source.batch(key, step), BATCH)

    def evaluation(self) -> Any:
        return self._cut(self.source.evaluation(), PartitionSpec(None, *BATCH))

    def _cut(self, batch: Any, spec: PartitionSpec) -> Any:
        return jax.lax.with_sharding_constraint(batch, NamedSharding(self.mesh, spec))
