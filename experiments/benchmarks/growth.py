"""Time of a training step, and of the first one with its compilation, against the length and the depth.

Command: flaxformer bench growth; one axis alone: flaxformer bench growth axis=depth size=2,8,32,96
Work: width 64, 2 heads, float32, one device. On axis "length", 2 layers and 4,096 tokens per batch; on axis "depth",
that many layers and a batch of 8 × 64.
Peers: plain JAX, its layers unrolled or scanned, and PyTorch.
Conclusions: the growth from each size to the next, where ours is more than 1.15 times that of every peer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sizes import Size

from flaxformer.bench import Benchmark, Way, Work, rate
from flaxformer.bench.declare import WorkPoint

TOKENS = 4096
LENGTHS, DEPTHS = (64, 256, 1024, 4096), (2, 8, 32, 96)
TOLERANCE = 1.15
"""Ratio of two growths that may be noise."""
PEERS = ("jax", "jax-scanned", "torch")


def size_of(work: Work) -> Size:
    """Return the size of a point."""
    if work["axis"] == "length":
        return Size(length=work["size"], batch=max(1, TOKENS // work["size"]), width=64, layers=2, heads=2)
    return Size(length=64, batch=8, width=64, layers=work["size"], heads=2)


def is_there(point: WorkPoint) -> bool:
    """True if a size is one of its axis."""
    return point["size"] in (LENGTHS if point["axis"] == "length" else DEPTHS) or point["size"] in (1, 16)


def timed(work: Work, call: Callable[[], Any], ready: Callable[[Any], object]) -> dict[str, Any]:
    """Return the seconds of a step, and those from the start of the process to the end of the first."""
    found: Any = rate(work, call, units=1, name="steps_per_second", ready=ready, seconds=work["seconds"])
    return {**found, "seconds_per_step": 1 / found["steps_per_second"]}


def ours(work: Work) -> dict[str, Any]:
    """Training on one device, in the layout that flaxformer chooses."""
    import jax
    from our_runs import run_of, trainer

    return timed(work, trainer(run_of(size_of(work)), 1), jax.block_until_ready)


def plain(scanned: bool) -> Callable[[Work], dict[str, Any]]:
    """Plain JAX."""

    def measure(work: Work) -> dict[str, Any]:
        import jax
        import plain_jax

        return timed(work, plain_jax.trainer(size_of(work), scanned), jax.block_until_ready)

    return measure


def torch(work: Work) -> dict[str, Any]:
    """PyTorch."""
    import torch_models

    return timed(work, torch_models.trainer(size_of(work), torch_models.fused), lambda result: result)


def conclude(medians: Sequence[tuple[WorkPoint, str, Mapping[str, float]]]) -> list[str]:
    """Return where ours grows faster than every peer, for steps and for first steps."""
    said = []
    for axis in dict.fromkeys(point["axis"] for point, _, _ in medians):
        for number, name in (("seconds_per_step", "a step"), ("first_step_seconds", "the first step")):
            curves: dict[str, dict[int, float]] = {}
            for point, way, found in medians:
                if point["axis"] == axis and number in found:
                    curves.setdefault(way, {})[point["size"]] = found[number]
            said += _faster(curves, axis, name)
    return said


def _faster(curves: Mapping[str, Mapping[int, float]], axis: str, name: str) -> list[str]:
    """The sizes to which ours grows faster than every peer, in sentences."""
    own = curves.get("flaxformer", {})
    worse, compared = [], 0
    for small, large in zip(own, list(own)[1:], strict=False):
        growths = [
            curve[large] / curve[small] for way, curve in curves.items() if way in PEERS and {small, large} <= {*curve}
        ]
        if growths:
            compared += 1
            growth = own[large] / own[small]
            if growth > TOLERANCE * max(growths):
                worse.append(f"from {axis} {small} to {large} by {growth:.2f} beside {max(growths):.2f} at most")
    where = "; ".join(worse) or f"at none of {compared} steps of {axis}"
    return [f"{name} grows faster than in every peer: {where}"] if compared else []


benchmark = Benchmark(
    question="What does a training step cost against length and depth?",
    ways=[
        Way("flaxformer", ours, role="ours", takes_part=is_there),
        Way("jax", plain(scanned=False), takes_part=is_there),
        Way("jax-scanned", plain(scanned=True), takes_part=is_there),
        Way("torch", torch, needs=["torch"], get="pip install torch", takes_part=is_there),
    ],
    options={"axis": ("length", "depth"), "size": tuple(sorted({*LENGTHS, *DEPTHS})), "seconds": (1.0,)},
    quick={"size": (1, 16), "seconds": (0.05,)},
    choices={"axis": ("length", "depth")},
    compared="seconds_per_step",
    lower_is_better=True,
    reference="jax",
    columns={"seconds_per_step": "s a step", "first_step_seconds": "first step, s", "peak_memory_bytes": "memory, MB"},
    along="size",
    conclude=conclude,
    rounds=3,
)
