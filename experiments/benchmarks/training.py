"""Training speed of one causal language model: ours, peers on the same work, and the peak of a matrix product.

Command: flaxformer bench training size=XS,S,M; on an accelerator size=gpt2
Sizes: `sizes.py`; M is nanoGPT's character model. float32 (gpt2: bfloat16), AdamW, clipping, no dropout, all cores.
Peers: pip install torch transformers x-transformers; git clone https://github.com/karpathy/nanoGPT, and nanogpt=PATH.
Cost: per round, one process of 10 to 30 s per way.
"""

from collections.abc import Callable
from typing import Any

from sizes import SIZES, size_of

from flaxformer.bench import Benchmark, Limit, Way, Work
from flaxformer.bench.declare import WorkPoint

MATRIX = {"float32": 2048, "bfloat16": 8192}
"""Size n of the n × n matrix product whose FLOP/s is the peak."""


def as_it_is(work: Work) -> dict[str, Any]:
    """`flaxformer train` without a word about devices: on a CPU, over a host device a core where that pays."""
    from our_runs import run_of, split
    from ours import train

    from flaxformer.training.device_group import default_devices

    size = size_of(work.point)
    split(size.batch)
    return train(work, size, default_devices(run_of(size)))


def one_device(work: Work) -> dict[str, Any]:
    """`flaxformer train --mesh data=1`: one device, which on a CPU has all cores."""
    from ours import train

    return train(work, size_of(work.point))


def in_torch(name: str) -> Callable[[Work], dict[str, Any]]:
    """One of the models of torch_models.py."""

    def measure(work: Work) -> dict[str, Any]:
        import torch_models

        return torch_models.train(work, size_of(work.point), getattr(torch_models, name))

    return measure


def nanogpt(work: Work) -> dict[str, Any]:
    """nanoGPT's model, from the user's copy."""
    import torch_models

    return torch_models.train(work, size_of(work.point), torch_models.nanogpt(work["nanogpt"]))


def nnx(work: Work) -> dict[str, Any]:
    """The model of nnx_model.py."""
    from nnx_model import train

    return train(work, size_of(work.point))


def xla_matmul(work: Work) -> dict[str, Any]:
    """The peak, by XLA."""
    from ours import matmul

    size = size_of(work.point)
    return matmul(work, size, MATRIX[size.precision])


def torch_matmul(work: Work) -> dict[str, Any]:
    """The peak, by PyTorch."""
    from torch_models import matmul

    size = size_of(work.point)
    return matmul(work, size, MATRIX[size.precision])


def is_accelerator(point: WorkPoint) -> bool:
    """True for the points of the accelerator benchmark."""
    return bool(point.get("accelerator"))


TORCH: Any = {"needs": ["torch"], "get": "pip install torch"}
benchmark = Benchmark(
    question="How many tokens a second does a language model train on?",
    ways=[
        Way("matmul-xla", xla_matmul, role="limit"),
        Way("matmul-torch", torch_matmul, role="limit", **TORCH),
        Way("flaxformer", as_it_is, role="ours"),
        Way("flaxformer-1", one_device, role="ours"),
        Way("torch", in_torch("fused"), **TORCH),
        Way("torch-compiled", in_torch("compiled"), **TORCH),
        Way(
            "torch-graphs",
            in_torch("compiled_graphs"),
            takes_part=lambda point: bool(point.get("accelerator")),
            **TORCH,
        ),
        Way("torch-encoder", in_torch("encoder"), **TORCH),
        Way(
            "nanogpt",
            nanogpt,
            needs=["torch"],
            path="nanogpt",
            get="git clone https://github.com/karpathy/nanoGPT; pip install torch",
        ),
        Way("x-transformers", in_torch("x_transformers"), needs=["x_transformers"], get="pip install x-transformers"),
        Way(
            "hugging-face",
            in_torch("hugging_face"),
            needs=["torch", "transformers"],
            get="pip install torch transformers",
        ),
        Way("nnx", nnx),
    ],
    options={"size": ("S",), "seconds": (6.0,), "nanogpt": ("",)},
    quick={"size": ("XS",), "seconds": (0.3,)},
    choices={"size": tuple(SIZES)},
    compared="tokens_per_second",
    reference="torch",
    limit=Limit("flops_per_second", "matmul-xla", "of XLA's matmul"),
    columns={
        "tokens_per_second": "tokens/s",
        "flops_per_second": "GFLOP/s",
        "of_peak": "of the peak",
        "first_step_seconds": "first step, s",
        "peak_memory_bytes": "memory, MB",
        "device_memory_bytes": "of the device, MB",
    },
)
