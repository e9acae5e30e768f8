"""Loss terms: what is added to the loss of the head in training, and never to the validation loss."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.struct import Config, leaf
from flaxformer.tasks.base import Batch


class LossTerm(Config):
    """Base of the loss terms: `weight` times `value`."""

    is_abstract: ClassVar[bool] = True
    weight: float = leaf(1e-4)

    def value(self, params: Any, outcome: Any, batch: Batch) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The term as (sum, count), so that any split into micro-batches gives the same gradient.

        Args:
          params: the weights.
          outcome: the model's result: `output`, and `aux` with what its components gave.
          batch: what was read, and the targets with their weights.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `value`")


class ZLoss(LossTerm):
    """Mean of (log Σ_v e^z_v)² over scored targets, which keeps logits small (Chowdhery et al. 2022, section 5)."""

    def value(self, params: Any, outcome: Any, batch: Batch) -> tuple[Float[Array, ""], Float[Array, ""]]:
        weights = batch.weights
        return (jnp.square(jax.nn.logsumexp(outcome.output, axis=-1)) * weights).sum(), weights.sum()
