"""Models of the benchmarks: a causal language model, pre-norm, GELU, no biases, tied embeddings."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Size:
    """Length T, batch B, width D, layers L, heads H; feed-forward 4 D; V tokens. `chunk`: steps per call of our
    program."""

    length: int
    batch: int
    width: int
    layers: int
    heads: int
    chunk: int = 1
    vocabulary: int = 256
    precision: str = "float32"

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.batch * self.length

    @property
    def flops_per_token(self) -> int:
        """6 N + 12 L D T for the N weights in products: forward and backward, attention over all T counted."""
        weights = 12 * self.layers * self.width**2 + self.width * self.vocabulary
        return 6 * weights + 12 * self.layers * self.width * self.length


SIZES = {
    "tiny": Size(length=16, batch=4, width=16, layers=1, heads=2, chunk=2),
    "XS": Size(length=64, batch=16, width=64, layers=2, heads=4, chunk=50),
    "S": Size(length=128, batch=32, width=128, layers=4, heads=4, chunk=5),
    "M": Size(length=256, batch=16, width=384, layers=6, heads=6),  # nanoGPT's character model
    "gpt2": Size(1024, 32, 768, 12, 12, chunk=10, vocabulary=50304, precision="bfloat16"),  # for an accelerator
}


def size_of(point: Mapping[str, Any]) -> Size:
    """Return the size of a point of a benchmark, in its option `precision` if it has one."""
    size = SIZES[point["size"]]
    return dataclasses.replace(size, precision=point["precision"]) if point.get("precision") else size


LEARNING_RATE, BETA2, DECAY, CLIP = 1e-3, 0.99, 0.1, 1.0
"""Of AdamW, everywhere; what they are changes no time."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
