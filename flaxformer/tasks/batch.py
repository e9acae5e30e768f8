"""Batches of inputs and targets, and the `Source` that makes them from a key and a step."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flaxformer.core.pytree import Node
from flaxformer.core.struct import Config
from flaxformer.model.call import ArrayIndex, ForwardInputs
from flaxformer.nn.masks import Segments


class Batch(Node):
    """Inputs and targets of a model; fields that a task does not have are None.

    Inputs are tokens [*batch, T], vectors [*batch, T, width] or images [*batch, height, width, channels]. For a
    language model, targets[..., t] is the token that follows inputs[..., :t + 1].
    """

    inputs: Array
    targets: Array
    weights: Float[Array, "..."]
    """Weight of each target in the loss; a target with weight 0 is not scored."""
    valid: Bool[Array, "*batch T"] | None = None
    """False at padding."""
    prefix: Int[Array, "*batch"] | None = None
    """Number of tokens at the start that are not predicted: a prefix-LM attends to them in both directions."""
    source: Array | None = None
    """Input of an encoder."""
    source_valid: Bool[Array, "*batch S"] | None = None
    segments: Int[Array, "*batch T"] | None = None
    """Index of each token's document, if several are packed: tokens attend only to their own document."""
    positions: Int[Array, "*batch T"] | None = None
    """Position of each token; None stands for 0, 1, 2, …, without padding."""
    padding_is_behind: bool = flax.struct.field(pytree_node=False, default=False)
    """True if padding, also that of the source, stands behind all tokens of a sequence: its positions are then the
    indices of the array, which is faster for a model and changes no number of a token."""

    @property
    def arguments(self) -> ForwardInputs:
        """Arguments of `apply` beside the inputs."""
        arguments: ForwardInputs = {
            "valid": self.valid,
            "prefix": self.prefix,
            "source": self.source,
            "source_valid": self.source_valid,
        }
        if self.segments is not None:
            arguments["mask"] = Segments(self.segments, self.segments)
        if self.padding_is_behind:
            arguments["positions"] = ArrayIndex()
            arguments["source_positions"] = None if self.source is None else ArrayIndex()
        if self.positions is not None:
            arguments["positions"] = self.positions
        return arguments


AnyBatch = Batch | tuple[Batch, ...]
"""Data of a training step: a batch, or its parts, each padded to its own length."""


def concat_parts(batch: AnyBatch) -> Batch:
    """Concatenate the parts of a batch to one batch [B, T], in order, padded to the longest part.

    The padding is neither valid nor scored. A batch without parts is returned unchanged.
    """
    if isinstance(batch, Batch):
        return batch

    def concat(*parts: Array) -> Array:
        longest = np.max([x.shape[1:] for x in parts], axis=0)
        return jnp.concatenate([jnp.pad(x, [(0, 0), *((0, n) for n in longest - x.shape[1:])]) for x in parts])

    return jax.tree.map(concat, *batch)


class Source(Node):
    """Base of the data of a task; a pytree, so that it can be an argument of compiled functions."""

    def batch(self, key: Array, step: int | Int[Array, ""]) -> AnyBatch:
        """Return a training batch, as a pure function of the random key and the step: there is no iterator to save."""
        raise NotImplementedError(f"{type(self).__name__} does not define `batch`")

    def evaluation(self) -> Batch:
        """Return the fixed evaluation set [batches, B, T], which is the same for every model, seed and step."""
        raise NotImplementedError(f"{type(self).__name__} does not define `evaluation`")

    def test(self) -> Batch | None:
        """Return the fixed test set, of the shape of the evaluation set and without its examples; None without one.

        The evaluation set is for validation: for choices, such as that of a learning rate. A run is evaluated on the
        test set once, at its end.
        """
        return None

    def training_examples(self) -> Sequence[Batch] | None:
        """Return all training examples, as one or more tables [examples, …]; None if there is no such table."""
        return None

    @property
    def on_host(self) -> bool:
        """True if batches are arrays of the host, which compiled functions cannot ask for (`tasks.host`)."""
        return False

    @property
    def is_stacked(self) -> bool:
        """True if all arrays have a leading axis for the runs of a stack, each of which has data of its own."""
        return False

    def with_numbers(self, task: Config) -> "Source":
        """Return the source with the leaves of its task, such as the weights of a mixture, in place of its own.

        Runs of a group, whose tasks differ in leaves only, share one source; each sets its own leaves.
        """
        return self


def first_batch(source: Source) -> AnyBatch:
    """Return the batch of step 0 with the key 0, by a compiled function if the data are on the device."""

    def first(source: Source) -> AnyBatch:
        return source.batch(jax.random.key(0), 0)

    return first(source) if source.on_host else jax.jit(first)(source)


def batch_shapes(source: Source) -> AnyBatch:
    """Return the shapes and dtypes of a batch of the source; only a batch of data that stay on the host is gathered."""
    if source.on_host:
        return jax.eval_shape(lambda batch: batch, first_batch(source))
    return jax.eval_shape(first_batch, source)


BatchOrNone = TypeVar("BatchOrNone", Batch, Batch | None)


def held_out(source: Source, read: Callable[[Source], BatchOrNone]) -> BatchOrNone:
    """Return the evaluation or the test set of a source, by a compiled function if the data are on the device.

    Args:
      read: function that asks a source for it.
    """
    return read(source) if source.on_host else jax.jit(read)(source)
