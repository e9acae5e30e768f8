"""Into how many parts a step cuts its batch, where the run leaves it open."""

import math
from collections.abc import Mapping

import jax

from flaxformer.config import ModelConfig
from flaxformer.sharding import Devices
from flaxformer.struct import UserError
from flaxformer.training.run import Run

CACHED = 40e6
"""Bytes of activations, by `kept_bytes`, up to which a batch is computed at a time: more leave a processor's caches."""
FEWEST_TOKENS = 512
"""In a part: products of fewer keep no core busy."""


def micro_batches(run: Run) -> int:
    """Return the number of parts of a batch: the run's; or, on a CPU, so many that one's activations fit the caches.

    On two cores, a step of 32 × 128 tokens through 4 layers of width 128 takes two thirds of the time in 8 parts, and
    one of 16 × 32 tokens through 6 layers of width 64 a tenth more in 2. An accelerator computes a batch whole, and so
    do a model with dropout, whose draws would be others, and one with BatchNorm, which needs the whole batch.
    """
    asked = run.training.micro_batches
    if asked is not None:
        return asked
    if jax.default_backend() != "cpu" or not separable(run):
        return 1
    devices = _devices()
    rows, tokens = run.task.batch_size // devices // getattr(run.task, "buckets", 1), run.tokens_per_step // devices
    kept, parts = kept_bytes(run) / devices, 1
    while kept > parts * CACHED and rows % (2 * parts) == 0 and tokens >= 2 * parts * FEWEST_TOKENS:
        parts *= 2
    return parts


def separable(run: Run) -> bool:
    """True if examples can be computed apart: no dropout draws for a whole batch, no BatchNorm looks at it."""
    stacks = [stack for stack in (run.model, run.model.encoder) if stack is not None]
    return not any(stack.dropout is not None or stack.mixes_batch for stack in stacks)


def kept_bytes(run: Run) -> float:
    """About what a step's forward pass keeps for its backward pass: within a factor of 2 of what XLA allocates.

    For each token, a layer keeps some ten vectors of d_model, two of d_ff and three rows of every head's attention.
    """
    given = run.task.source_length
    own = _kept_by(run.model, run.task.tokens_read(run.model) - given) + _kept_by(run.model.encoder, given)
    return 4.0 * run.task.batch_size * own


def _kept_by(model: ModelConfig | None, length: int) -> int:
    """Numbers that a stack keeps of one sequence."""
    if model is None:
        return 0
    layers = model.layer_configs
    by_kind = {id(own): _kept_by_layer(own.sizes, length) for own in layers}
    return length * (sum(by_kind[id(own)] for own in layers) + 2 * model.sizes["outputs"])


def _kept_by_layer(sizes: Mapping[str, int], length: int) -> int:
    """Numbers that a layer keeps of one token; a component without d_ff or heads is not counted."""
    return 10 * sizes["d_model"] + 2 * sizes.get("d_ff", 0) + 3 * sizes.get("heads", 0) * length


def _devices() -> int:
    """Return the number of parts into which a mesh cuts the batch."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else int(mesh.shape.get("data", 1) * mesh.shape.get("fsdp", 1))


def check_batch(run: Run, devices: Devices) -> None:
    """See that each device has its share of every batch.

    Raises:
      UserError: it has not.
    """
    parts = {
        "mesh data": devices.data,
        "mesh fsdp": devices.fsdp,
        "training.micro_batches": run.training.micro_batches or 1,
        "task.buckets": getattr(run.task, "buckets", 1),
    }
    least, size = math.prod(parts.values()), run.task.batch_size
    if size % least:
        cut = " × ".join(f"{name} {count}" for name, count in parts.items() if count > 1)
        raise UserError(f"task.batch_size is {size}; expected a multiple of {least}, which is {cut}")
