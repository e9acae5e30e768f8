"""NAME: a token mixer of your own, compared with the one of the package.

Check: flaxformer check NAME.py (causality, padding, decoding, gradients …).
Run: flaxformer run NAME.py
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from flaxformer import (
    AdamW,
    AssociativeRecall,
    Attention,
    Axis,
    Claim,
    Context,
    Dense,
    ModelConfig,
    Parameters,
    Run,
    Study,
    TokenMixer,
    Training,
    param,
)


class KIND(TokenMixer):
    """y_t = s_t W with s_t = a s_{t−1} + (1 − a) x_t, and a learned a = σ(decay) per feature.

    A mixer needs `apply` alone; it then decodes by reading the prefix again for each token. With `init_state` and
    `step`, it decodes from a state of constant size.
    """

    reads_mask: ClassVar[bool] = False
    """It is causal by itself; True for a mixer that reads what `context.mask` allows."""

    class Weights(Parameters):
        """Weights, each declared once with its axes (sizes of the model or integer fields of this class) and fan-in."""

        decay: Float[Array, "d_model"] = param(value=2.0, decay=False)
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model", init="branch")

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: DTypeLike) -> Array:
        """Return the state before the first token."""
        return jnp.zeros((*batch, weights.decay.shape[0]), jnp.promote_types(dtype, jnp.float32))

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        """Return the update of each token."""
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(
        self, weights: Weights, x: Float[Array, "*batch T D"], state: Float[Array, "*batch D"], context: Context
    ) -> tuple[Array, Array]:
        """Return the updates of one or several tokens, and the state after them; padding leaves it as it is."""
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        x, a = jnp.where(valid[..., None], x, 0), jnp.broadcast_to(jax.nn.sigmoid(weights.decay), state.shape)

        def token(state: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
            x_t, is_token = inputs
            state = jnp.where(is_token[..., None], a * state + (1 - a) * x_t, state).astype(state.dtype)
            return state, state

        state, means = jax.lax.scan(token, state, (jnp.moveaxis(x, -2, 0), jnp.moveaxis(valid, -1, 0)))
        return jnp.moveaxis(means, 0, -2).astype(x.dtype) @ weights.out, state


study = Study(
    name="NAME",
    question="Does a leaky mean of the tokens learn associative recall?",
    baseline=Run(
        model=ModelConfig(layers=2, d_model=32, attention=Attention(heads=4), feed_forward=Dense(d_ff=64)),
        task=AssociativeRecall(pairs=4, queries=4),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=300, evaluate_every=100),
    ),
    axes=[Axis("model.attention", {"attention": Attention(heads=4), "own": KIND()})],
    seeds=range(5),
    claims=[Claim("attention has the lower loss", higher={"attention": "own"}, than={"attention": "attention"})],
    caveats=["One width ({model.d_model}), one learning rate ({optimizer.learning_rate}), {training.steps} steps."],
)
