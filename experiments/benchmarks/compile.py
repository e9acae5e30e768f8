"""Time from the start of a process to the end of its first training step, against depth.

Command: flaxformer bench compile depth=4,12,48
Work: size S of `sizes.py` at several depths, on one device. Layers are unrolled or scanned, with the persistent cache
of JAX filled by an unmeasured process (-cached) or without a cache. Peers: PyTorch, which compiles nothing, and Flax
NNX. Cost: unrolled layers at depth 48 compile for a minute or more, in every round.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from sizes import SIZES, Size

from flaxformer.bench import Benchmark, Way, Work, first_step


def size_of(work: Work) -> Size:
    """Return the size at a depth."""
    return dataclasses.replace(SIZES[work["size"]], layers=work["depth"])


def ours(layout: Any, cached: bool) -> Callable[[Work], dict[str, Any]]:
    """`flaxformer train` with its layers unrolled or scanned."""

    def measure(work: Work) -> dict[str, Any]:
        import jax
        from our_runs import run_of, trainer

        if cached:
            jax.config.update("jax_enable_compilation_cache", True)
            jax.config.update("jax_compilation_cache_dir", str(work.scratch / "cache"))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        return first_step(work, trainer(run_of(size_of(work)), 1, layout=layout), ready=jax.block_until_ready)

    return measure


def torch(work: Work) -> dict[str, Any]:
    """PyTorch, as it stands."""
    import torch_models

    return first_step(work, torch_models.trainer(size_of(work), torch_models.fused))


def nnx(work: Work) -> dict[str, Any]:
    """Flax NNX, its layers unrolled."""
    import jax
    from nnx_model import trainer

    return first_step(work, trainer(size_of(work)), ready=jax.block_until_ready)


benchmark = Benchmark(
    question="How long until the first training step is done?",
    ways=[
        Way("unrolled", ours("unrolled", cached=False), role="ours"),
        Way("unrolled-cached", ours("unrolled", cached=True), role="ours", rehearsals=1),
        Way("scanned", ours("scanned", cached=False), role="ours"),
        Way("scanned-cached", ours("scanned", cached=True), role="ours", rehearsals=1),
        Way("torch", torch, needs=["torch"], get="pip install torch"),
        Way("nnx", nnx),
    ],
    options={"depth": (4, 12, 48), "size": ("S",)},
    quick={"depth": (1, 2), "size": ("tiny",)},
    choices={"size": tuple(SIZES)},
    compared="first_step_seconds",
    lower_is_better=True,
    reference="torch",
    columns={"first_step_seconds": "first step, s", "peak_memory_bytes": "memory, MB"},
    along="depth",
    rounds=3,
)
