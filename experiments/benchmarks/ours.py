"""The flaxformer ways of the benchmarks: the run of a size, trained as by `flaxformer train`."""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
from device_limits import device_memory, of_peak
from sizes import BETA2, CLIP, DECAY, LEARNING_RATE, Size, cores

from flaxformer.bench import Work, rate
from flaxformer.config import Attention, Dense, LanguageModel, LayerNorm, LearnedPositions, ModelConfig
from flaxformer.model.layout import Layout
from flaxformer.runner.execute import Compiled, Execution, Finished, execute
from flaxformer.sharding import Devices
from flaxformer.startup.cpu_devices import one_cpu_device_per_core
from flaxformer.study import Study
from flaxformer.study.plan import groups
from flaxformer.tasks import StandardLibrary
from flaxformer.training import AdamW, Run, Training
from flaxformer.training.compiled_run import CompiledRun
from flaxformer.training.device_group import DeviceGroup


def run_of(size: Size, steps: int = 200, **training: Any) -> Run:
    """The training run of a size, on the text of the standard library."""
    return Run(
        model=ModelConfig(
            layers=size.layers,
            d_model=size.width,
            attention=Attention(heads=size.heads, bias=False, out_bias=False),
            vocabulary=size.vocabulary,
            feed_forward=Dense(activation="gelu", bias=False),
            norm_kind=LayerNorm(affine="gain"),
            positions=LearnedPositions(max_length=size.length),
            head=LanguageModel(tied=True, bias=False),
        ),
        task=StandardLibrary(length=size.length, batch_size=size.batch),
        optimizer=AdamW(learning_rate=LEARNING_RATE, beta2=BETA2, weight_decay=DECAY, clip=CLIP),
        training=Training(steps=steps, precision=size.precision, **training),
    )


def split(batch: int) -> int:
    """Host devices, one a core, or all accelerators: as many as the batch can be cut into. Before JAX has started."""
    jax.config.update("jax_num_cpu_devices", cores())
    return math.gcd(jax.local_device_count(), batch)


def trainer(run: Run, chunk: int, devices: Devices | None = None, layout: Layout = "auto") -> Callable[[], Any]:
    """A function that trains `chunk` steps each time it is called; what it returns has to be waited for."""
    compiled = CompiledRun(run, DeviceGroup.of(devices), layout)
    source, _ = next(compiled.chunks(run, 0, chunk, chunk))
    state = compiled.start(run)

    def call() -> Any:
        nonlocal state
        state, metrics = compiled.advance(state, run, chunk, source)
        return state, metrics

    return call


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
