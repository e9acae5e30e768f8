"""Division of a batch: into micro-batches, computed one after another, and over the devices of a mesh."""

import math

from flaxformer.core.canonical import classes_in
from flaxformer.devices.sharding import Devices
from flaxformer.nn.formulations import Formulation, with_formulations
from flaxformer.system.errors import UserError
from flaxformer.training.cpu import cached_micro_batches
from flaxformer.training.run import Run


def micro_batches(run: Run) -> int:
    """Return the number of micro-batches of a batch: `Training.micro_batches`, or a default."""
    return default_micro_batches(run) if run.training.micro_batches is None else run.training.micro_batches


def separable(run: Run) -> bool:
    """True if examples can be computed apart: no component needs the whole batch, as BatchNorm does."""
    stacks = [stack for stack in (run.model, run.model.encoder) if stack is not None]
    return not any(stack.mixes_batch for stack in stacks)


def why_inseparable(run: Run, *_: object) -> str | None:
    """Return why a batch is not divided by default; None if a division changes the last bits of a result alone.

    A component that is exempt from the law "devices" has a result or a loss that depends on the division, such as the
    balance of experts. Its batch is divided only where `Training.micro_batches` or a mesh says so.
    """
    if not separable(run):
        return "a component needs the whole batch"
    for kind in classes_in(run.model):
        if "devices" in getattr(kind, "exempt_from", {}):
            return f"{kind.__name__} depends on the division of a batch"
    return None


def _why_whole(run: Run) -> str | None:
    """Return why a batch is computed whole on a CPU; None if it is divided."""
    if run.training.batch_stages:
        return "its updates have several sizes"
    return None if cached_micro_batches(run) > 1 else "the batch suits the caches whole"


@with_formulations(
    "batch",
    {
        "micro-batches": Formulation(
            cached_micro_batches,
            gain="activations stay in the caches: 1.5 × at S in 8 parts (bench training)",
            platforms=("cpu",),
            unsupported_reason=why_inseparable,
            unsuitable_reason=_why_whole,
        )
    },
)
def default_micro_batches(run: Run) -> int:
    """Return 1: the batch is computed whole."""
    return 1


def check_batch(run: Run, devices: Devices) -> None:
    """Check that the devices, micro-batches and buckets divide the batch evenly.

    Raises:
      UserError: the batch size is not a multiple of their product.
    """
    divisors = {
        "mesh data": devices.data,
        "mesh fsdp": devices.fsdp,
        "training.micro_batches": run.training.micro_batches or 1,
        "task.buckets": run.buckets,
    }
    least = math.prod(divisors.values())
    names = ["task.batch_size", *(f"training.batch_stages.{i}.size" for i in range(len(run.training.batch_stages)))]
    for name, size in zip(names, run.batch_sizes, strict=True):
        if size % least:
            factors = " × ".join(f"{divisor} {count}" for divisor, count in divisors.items() if count > 1)
            raise UserError(f"{name} is {size}; expected a multiple of {least}, which is {factors}")
    size, least = run.task.evaluation_shape[1], devices.batch
    if run.task.evaluation_batch_size is not None and size % least:
        raise UserError(
            f"task.evaluation_batch_size is {size}; expected a multiple of {least}, the devices of the mesh along data "
            "and fsdp"
        )
    for evaluation in run.evaluations:
        if evaluation.rows % least:
            raise UserError(
                f"evaluation '{evaluation.name}' has {evaluation.rows} examples per batch; expected a multiple of "
                f"{least}, the devices of the mesh along data and fsdp"
            )
