"""Loss terms: additions to the training loss of the head; the validation loss is without them."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.components.component import is_more_derived
from flaxformer.core.struct import Config, leaf
from flaxformer.model.output import ModelOutput
from flaxformer.model.weights import Transformer
from flaxformer.tasks.batch import Batch


class LossTerm(Config):
    """Base of the loss terms: `weight` times `value`."""

    is_abstract: ClassVar[bool] = True
    weight: float = leaf(1e-4)

    def value(
        self, params: Transformer, outcome: ModelOutput, batch: Batch
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The term as (sum, count), so that any split into micro-batches gives the same gradient.

        Args:
          params: the weights.
          outcome: the result of the forward pass: `output`, and `aux` of the model's components.
          batch: the inputs, and the targets with their weights.
        """
        return self.of_outputs(outcome.output, batch.targets, batch.weights)

    def of_outputs(
        self, output: Float[Array, "*batch outputs"], targets: Array, weights: Float[Array, "*batch"]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The term as (sum, count) over targets, each read with its own output alone; `value` by default calls it.

        A term that defines this function in place of `value` does not need the outputs of all tokens at once.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `value`")

    @property
    def can_split(self) -> bool:
        """True if the term can be computed from some of the tokens at a time, by `of_outputs`."""
        return type(self).of_outputs is not LossTerm.of_outputs and not is_more_derived(
            type(self), "value", "of_outputs"
        )


class ZLoss(LossTerm):
    """Mean of (log Σ_v e^z_v)² over scored targets, which keeps logits small (Chowdhery et al. 2022, section 5)."""

    def of_outputs(
        self, output: Float[Array, "*batch outputs"], targets: Array, weights: Float[Array, "*batch"]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return (jnp.square(jax.nn.logsumexp(output, axis=-1)) * weights).sum(), weights.sum()
