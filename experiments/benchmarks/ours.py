"""The flaxformer ways of the benchmarks: the run of a size, trained as by `flaxformer train`."""

import time
from typing import Any

import jax
from device_limits import device_memory, of_peak
from our_runs import run_of, trainer
from sizes import Size

from flaxformer import Study
from flaxformer.bench import Work, rate
from flaxformer.devices.sharding import Devices
from flaxformer.runner.execute import Compiled, Execution, Finished, execute
from flaxformer.study.program_groups import groups
from flaxformer.system.startup import one_cpu_device_per_core


def train(work: Work, size: Size, devices: Devices | None = None) -> dict[str, Any]:
    """Tokens and FLOPs a second of training, in chunks of steps."""
    found: Any = rate(
        work,
        trainer(run_of(size), size.chunk, devices),
        units=size.chunk * size.tokens,
        name="tokens_per_second",
        ready=jax.block_until_ready,
        seconds=work["seconds"],
    )
    devices_used = 1 if devices is None else devices.count
    flops: Any = found["tokens_per_second"] * size.flops_per_token
    limits = of_peak(flops / devices_used, size.precision) | device_memory()
    return {**found, "devices": devices_used, "flops_per_second": flops, **limits}


def timed(study: Study, members: int | None = None) -> dict[str, float]:
    """Seconds that the study engine trains and compiles, on all devices; the slowest device's compilation counts.

    Raises:
      RuntimeError: a run failed.
    """
    one_cpu_device_per_core()
    planned, rows, compiling = groups(study.trials()), [], []
    began = time.perf_counter()
    for event in execute(planned, Execution(group_size=members)):
        if isinstance(event, Finished):
            rows.append(event.row)
        elif isinstance(event, Compiled):
            compiling.append(event.seconds)
    seconds = time.perf_counter() - began
    if failed := [row["error"] for row in rows if row["status"] == "failed"]:
        raise RuntimeError(failed[0])
    return {"training_seconds": seconds - max(compiling), "compile_seconds": max(compiling), "runs": len(rows)}


def matmul(work: Work, size: Size, n: int) -> dict[str, Any]:
    """FLOP/s of the product of two n × n matrices by XLA, in the precision of the size."""
    import jax.numpy as jnp

    dtype = jnp.dtype(size.precision)
    left, right = (jax.random.normal(jax.random.key(i), (n, n), dtype) for i in range(2))
    product = jax.jit(jnp.matmul)
    found: Any = rate(
        work,
        lambda: product(left, right),
        units=2 * n**3,
        name="flops_per_second",
        ready=jax.block_until_ready,
        seconds=work["seconds"],
    )
    return {**found, **of_peak(found["flops_per_second"], size.precision)}
