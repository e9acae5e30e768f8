"""Cost of a training step against length, width, depth, heads, vocabulary and number of trials; and gain of more cores.

Command: flaxformer bench scaling; one axis alone: flaxformer bench scaling axis=width factor=1,2,4,8
Work: a small model with one size multiplied by `factor`; on axis "cores", the same work on that many cores, which
flaxformer uses as one device and flaxformer-mesh as one device per core; on axis "trials", a study of that many runs.
Conclusions: slopes of log cost against log factor, beside the slope of the FLOPs, which is the cost on a machine with
the same speed at every size; and the efficiency of n cores, the rate divided by n times that of one core.
"""

import dataclasses
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from sizes import Size, cores

from flaxformer.bench import Benchmark, Way, Work, rate
from flaxformer.bench.declare import WorkPoint

BASE = Size(length=64, batch=8, width=64, layers=2, heads=2)
CHUNK = 10
"""Our steps a call."""
SCALED = ("length", "width", "layers", "heads", "vocabulary")


def size_of(work: Work) -> Size:
    """The base with one size multiplied; and as many cores as the axis says, where it is that of cores."""
    axis, factor = work["axis"], work["factor"]
    if axis == "cores" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:factor])
    return dataclasses.replace(BASE, **{axis: getattr(BASE, axis) * factor}) if axis in SCALED else BASE


def is_there(point: WorkPoint) -> bool:
    """True if the machine has the cores."""
    return point["axis"] != "cores" or point["factor"] <= cores()


def cost(found: Mapping[str, Any], size: Size) -> dict[str, Any]:
    """Seconds a step, from a rate in steps."""
    flops = size.flops_per_token * size.tokens
    return {**found, "seconds_per_step": 1 / found["steps_per_second"], "flops_per_step": flops}


def one_device(work: Work) -> dict[str, Any]:
    """Training on one device; on axis "trials", a study."""
    size = size_of(work)
    import jax
    from our_runs import run_of, trainer

    if work["axis"] == "trials":
        return trials(work, size)
    return cost(rate(work, trainer(run_of(size), CHUNK), ready=jax.block_until_ready, **counted(work, CHUNK)), size)


def mesh(work: Work) -> dict[str, Any]:
    """Training on a host device a core."""
    size = size_of(work)
    import jax
    from our_runs import run_of, split, trainer

    from flaxformer.devices.sharding import Devices

    call = trainer(run_of(size), CHUNK, Devices(data=split(size.batch)))
    return cost(rate(work, call, ready=jax.block_until_ready, **counted(work, CHUNK)), size)


def trials(work: Work, size: Size) -> dict[str, Any]:
    """A study of so many runs, on all devices; compilation not counted."""
    from ours import timed
    from study_runs import study_of

    steps = round(100 * work["seconds"]) or 1
    found = timed(study_of(size, trials=work["factor"], seeds=1, steps=steps))
    flops = work["factor"] * size.flops_per_token * size.tokens
    return {"seconds_per_step": found["training_seconds"] / steps, "flops_per_step": flops, **found}


def torch(work: Work) -> dict[str, Any]:
    """The same in PyTorch."""
    size = size_of(work)
    import torch_models

    return cost(rate(work, torch_models.trainer(size, torch_models.fused), **counted(work, 1)), size)


def counted(work: Work, steps: int) -> dict[str, Any]:
    """Return the units of one call, their name, and the seconds to measure for."""
    return {"units": steps, "name": "steps_per_second", "seconds": work["seconds"]}


def slope(costs: Mapping[int, float]) -> float:
    """Slope of log cost against log factor, by least squares."""
    return statistics.linear_regression([*map(math.log, costs)], [*map(math.log, costs.values())]).slope


def conclude(medians: Sequence[tuple[WorkPoint, str, Mapping[str, float]]]) -> list[str]:
    """Slopes, and the efficiency of cores."""
    curves: dict[tuple[str, str], dict[int, Mapping[str, float]]] = {}
    for point, way, found in medians:
        if "seconds_per_step" in found:
            curves.setdefault((point["axis"], way), {})[point["factor"]] = found
    said = []
    for (axis, way), curve in curves.items():
        seconds, flops = (
            {factor: found[name] for factor, found in curve.items()} for name in ("seconds_per_step", "flops_per_step")
        )
        if axis == "cores" and 1 in seconds:
            shares = {n: seconds[1] / (n * own) for n, own in seconds.items() if n > 1}
            said += [f"{way}: efficiency of {n} cores {share:.2f}, of 1 at best" for n, share in shares.items()]
        elif axis != "cores" and len(seconds) > 1:
            said.append(f"{way}: cost grows as {axis}^{slope(seconds):.2f}, FLOPs as {axis}^{slope(flops):.2f}")
    return said


benchmark = Benchmark(
    question="What does a training step cost against each size?",
    ways=[
        Way("flaxformer", one_device, role="ours", takes_part=is_there),
        Way(
            "flaxformer-mesh", mesh, role="ours", takes_part=lambda point: point["axis"] == "cores" and is_there(point)
        ),
        Way(
            "torch",
            torch,
            needs=["torch"],
            get="pip install torch",
            takes_part=lambda point: point["axis"] != "trials" and is_there(point),
        ),
    ],
    options={"axis": (*SCALED, "trials", "cores"), "factor": (1, 2, 4), "seconds": (2.0,)},
    quick={"factor": (1, 2), "seconds": (0.1,)},
    choices={"axis": (*SCALED, "trials", "cores")},
    compared="seconds_per_step",
    lower_is_better=True,
    reference="torch",
    columns={"seconds_per_step": "s a step", "peak_memory_bytes": "memory, MB"},
    along="factor",
    conclude=conclude,
    rounds=3,
)
