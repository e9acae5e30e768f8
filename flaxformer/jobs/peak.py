"""Model FLOPs utilization (MFU): the FLOPs of a run's model, divided by the peak that the device's vendor publishes.

MFU = FLOPs of the model per second / peak (Chowdhery et al. 2022, appendix B). Only the model counts: neither what is
recomputed to save memory, nor the optimizer, which `training.flops` counts.
"""

import functools
import math

import jax

from flaxformer.devices.sharding import Devices
from flaxformer.nn.formulations import using
from flaxformer.system.startup import cpu_cores
from flaxformer.targets.devices import device_of
from flaxformer.tasks.batch import batch_shapes
from flaxformer.training import Run, evaluation_params, start
from flaxformer.training.flops import products_of, standard_form
from flaxformer.training.loss import forward

CORE_RATE = 2e10
"""FLOP/s of products on a core of a CPU: a round number below what cores of servers reach."""
SHARE_OF_PEAK = 0.4
"""MFU that many trainings reach on an accelerator."""


def peak(kind: str, precision: str) -> float | None:
    """FLOP/s of a device of this kind at a run's precision; None where none is published, as for a CPU.

    That of a CPU is not measured instead, since it varies with the clock and with other users of its cores.
    """
    device = device_of(kind)
    return None if device is None else device.peak(precision)


def peak_of(run: Run, devices: Devices | None) -> float | None:
    """FLOP/s of all devices of a run together, those of a mesh or one; None where none is published."""
    device_peak = peak(jax.devices()[0].device_kind, run.training.precision)
    return None if device_peak is None else device_peak * (1 if devices is None else devices.count)


@functools.lru_cache(maxsize=8)  # of a job, the command and the log ask for it
def model_flops(run: Run) -> int:
    """FLOPs of one training step: 3 × the FLOPs of the forward pass, as the backward pass has two products for each.

    Counted in the traced program, for every architecture. A decoder-only model of L layers has 6 N + 12 L d T per token
    for N weights in products; attention counts over all T, masked or not.
    """
    run = standard_form(run)
    batch = batch_shapes(run.task.load())
    params = jax.eval_shape(lambda run: evaluation_params(start(run), run), run.without_init)
    buckets = batch if isinstance(batch, tuple) else (batch,)
    with using("reference"):  # tiles leave out what is masked, and a fused kernel's products are not in the trace
        return 3 * sum(products_of(jax.make_jaxpr(forward)(params, run, bucket).jaxpr) for bucket in buckets)


def steps_per_second(run: Run, devices: Devices | None) -> float:
    """Return a guess of the steps per second of a run on a mesh, or on a device, from its FLOPs alone.

    It is infinite on an accelerator without a published peak.
    """
    published = peak_of(run, devices)
    if jax.devices()[0].platform == "cpu":
        rate = CORE_RATE * cpu_cores()
    else:
        rate = math.inf if published is None else SHARE_OF_PEAK * published
    return rate / max(model_flops(run), 1)
