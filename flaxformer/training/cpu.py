"""Training on a CPU: micro-batches that fit its caches, its cores as devices, and few calls that wait on a mesh.

The first two change a result in the last bits alone. Accelerators use none of them.
"""

import itertools
import math
from collections.abc import Mapping
from typing import TypeVar

import jax
from jax.sharding import Mesh

from flaxformer.config import ModelConfig
from flaxformer.devices.sharding import Devices
from flaxformer.training.run import Run

CACHE_BYTES = 40e6
"""Bytes of activations, by `activation_bytes`, up to which a micro-batch fits a processor's caches."""
MIN_TOKENS = 512
"""Tokens of a micro-batch; with fewer, its products do not keep the cores busy."""
MIN_BYTES_TO_SHARE = 1e7
"""Bytes of activations, by `activation_bytes`, from which on a step is divided among a CPU's cores as devices."""
T = TypeVar("T")
MOST_CALLS = 16
"""Calls in flight on a CPU mesh. From about 32 on, the queue of a device is full, and all-reduces of several calls can
wait for each other without end; XLA then ends the process."""
_CALLS = itertools.count(1)  # of the whole process, since programs of several runs share the devices


def cached_micro_batches(run: Run) -> int:
    """Return the number of micro-batches, a power of two, whose activations fit the caches.

    On two cores, a step of 32 × 128 tokens through 4 layers of width 128 takes two thirds of the time in 8 parts, and
    one of 16 × 32 tokens through 6 layers of width 64 a tenth more in 2.
    """
    devices = _batch_shards()
    rows, tokens = run.task.batch_size // devices // run.buckets, run.tokens_per_step // devices
    activations, count = activation_bytes(run) / devices, 1
    while activations > count * CACHE_BYTES and rows % (2 * count) == 0 and tokens >= 2 * count * MIN_TOKENS:
        count *= 2
    return count


def core_devices(run: Run, cores: int) -> Devices | None:
    """Return as many of these cores, each a device, as divide the batch; None for one device, or for a small run.

    Each core computes its own examples in its own caches, which is up to a quarter faster than sharing every product
    (`experiments/benchmarks/README.md`).
    """
    rows = run.task.batch_size // run.buckets // (run.training.micro_batches or 1)
    count = math.gcd(cores, rows, *(evaluation.rows for evaluation in run.evaluations))
    return Devices(data=count) if count > 1 and activation_bytes(run) >= MIN_BYTES_TO_SHARE else None


def activation_bytes(run: Run) -> float:
    """Estimate what a step's forward pass keeps for its backward pass: within a factor of 2 of what XLA allocates.

    A layer keeps, per token, about ten vectors of d_model, two of d_ff and three rows of every head's attention.
    """
    source_length = run.task.source_length
    decoder = _activations(run.model, run.task.tokens_read(run.model) - source_length)
    return 4.0 * run.task.batch_size * (decoder + _activations(run.model.encoder, source_length))


def _activations(model: ModelConfig | None, length: int) -> int:
    """Numbers that a stack keeps of one sequence."""
    if model is None:
        return 0
    layers = model.layer_configs
    by_layer = {id(layer): _layer_activations(layer.sizes, length) for layer in layers}
    return length * (sum(by_layer[id(layer)] for layer in layers) + 2 * model.sizes["outputs"])


def _layer_activations(sizes: Mapping[str, int], length: int) -> int:
    """Numbers that a layer keeps of one token; a component without d_ff or heads is not counted."""
    return 10 * sizes["d_model"] + 2 * sizes.get("d_ff", 0) + 3 * sizes.get("heads", 0) * length


def _batch_shards() -> int:
    """The number of parts into which the present mesh divides a batch."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else int(mesh.shape.get("data", 1) * mesh.shape.get("fsdp", 1))


def wait_every_few_calls(results: T, mesh: Mesh | None) -> T:
    """Return the results of a call; on a CPU mesh, wait for those of every 16th call of this process."""
    if mesh is not None and mesh.devices.flat[0].platform == "cpu" and next(_CALLS) % MOST_CALLS == 0:
        jax.block_until_ready(results)
    return results
