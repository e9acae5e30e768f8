"""What a model learns: a `Task` describes it, its `Source` holds the data and gives `batch(key, step)`."""

from typing import Any

import flax.struct
from jaxtyping import Array, Float, Int

from flaxformer.struct import Config, static


class Batch(flax.struct.PyTreeNode):
    """Sequences to read and tokens to predict: after inputs[..., :t + 1] comes targets[..., t]."""

    inputs: Int[Array, "*batch T"]
    targets: Int[Array, "*batch T"]
    weights: Float[Array, "*batch T"]
    """How much each target counts in the loss; 0 is not scored."""


class Source(flax.struct.PyTreeNode):
    """The data of a task, on the device; a pytree, so that it is an argument of compiled functions."""

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        """Training batch number `step` of the stream `key`: a pure function, with no iterator to save."""
        raise NotImplementedError

    def evaluation(self) -> Batch:
        """The fixed evaluation set, [batches, B, T]: the same for every model, seed and step."""
        raise NotImplementedError


class Task(Config):
    """Base of every task; the fields that all of them share."""

    batch_size: int = static(16, at_least=1)
    evaluation_batches: int = static(16, at_least=1)

    @property
    def vocabulary(self) -> int:
        """Number of different tokens."""
        raise NotImplementedError

    @property
    def sequence_length(self) -> int:
        """T, the tokens that the model reads in one sequence."""
        raise NotImplementedError

    def load(self) -> Source:
        """Read the data, once, onto the device."""
        raise NotImplementedError

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the data on this machine, beyond the task's own fields."""
        return {}

    def references(self) -> dict[str, float]:
        """Losses (nats) of simple models on the evaluation set, to read a loss against."""
        return {}
