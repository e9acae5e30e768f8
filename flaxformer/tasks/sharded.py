"""Source whose batches are sharded over a mesh of devices."""

from collections.abc import Sequence
from typing import TypeVar

import flax.struct
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from flaxformer.core.struct import Config
from flaxformer.devices.sharding import BATCH
from flaxformer.tasks.batch import AnyBatch, Batch, Source

BatchT = TypeVar("BatchT", bound=AnyBatch)


class ShardedSource(Source):
    """Batches of another source, whose examples are sharded over the mesh axes data and fsdp."""

    source: Source
    mesh: Mesh = flax.struct.field(pytree_node=False)

    @property
    def is_stacked(self) -> bool:
        return self.source.is_stacked

    def batch(self, key: Array, step: int | Int[Array, ""]) -> AnyBatch:
        return self._shard(self.source.batch(key, step), BATCH)

    def evaluation(self) -> Batch:
        return self._shard(self.source.evaluation(), PartitionSpec(None, *BATCH))

    def test(self) -> Batch | None:
        test_set = self.source.test()
        return None if test_set is None else self._shard(test_set, PartitionSpec(None, *BATCH))

    def training_examples(self) -> Sequence[Batch] | None:
        return self.source.training_examples()

    def with_numbers(self, task: Config) -> "ShardedSource":
        return self.replace(source=self.source.with_numbers(task))

    def _shard(self, batch: BatchT, spec: PartitionSpec) -> BatchT:
        return jax.lax.with_sharding_constraint(batch, NamedSharding(self.mesh, spec))
