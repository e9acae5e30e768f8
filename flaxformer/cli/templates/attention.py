"""NAME: a variant of attention of your own, compared with the one of the package.

Check: flaxformer check NAME.py (causality, padding, decoding, gradients …).
Run: flaxformer run NAME.py
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer import (
    AdamW,
    AssociativeRecall,
    Attention,
    Axis,
    Claim,
    Dense,
    ModelConfig,
    Run,
    Study,
    Training,
    leaf,
)


class KIND(Attention):
    """Y = Concat_h(σ(Q_h K_hᵀ · scale − length_bias · log S) V_h) W_O for a query that may read S keys.

    Queries, keys, heads, masks and decoding stay those of `Attention`. Other methods that may be overridden: `logits`,
    `combine`, `transform_heads`, `keys_and_values` (docs/components.md). Declare a field as `leaf(...)` if it is a
    number that the program reads, and as `static(...)` if a new value needs a new program.
    """

    length_bias: float = leaf(1.0)

    def normalize(
        self, weights: Attention.Weights, logits: Float[Array, "*batch N T S"], mask: Bool[Array, "*batch N T S"]
    ) -> Float[Array, "*batch N T S"]:
        """Return the attention weights: 0 where the mask is False, and finite where a whole row is."""
        keys = jnp.maximum(mask.sum(-1, keepdims=True), 1)
        return jnp.where(mask, jax.nn.sigmoid(logits - self.length_bias * jnp.log(keys)), 0)


study = Study(
    name="NAME",
    question="Does sigmoid attention train as well as softmax attention?",
    baseline=Run(
        model=ModelConfig(layers=2, d_model=32, attention=Attention(heads=4), feed_forward=Dense(d_ff=64)),
        task=AssociativeRecall(pairs=4, queries=4),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=300, evaluate_every=100),
    ),
    axes=[Axis("model.attention", {"softmax": Attention(heads=4), "own": KIND()})],
    seeds=range(5),
    claims=[
        Claim(
            "sigmoid and softmax attention are alike",
            equal={"attention": "own"},
            to={"attention": "softmax"},
            within=0.1,
        )
    ],
    caveats=["One width ({model.d_model}), one learning rate ({optimizer.learning_rate}), {training.steps} steps."],
)
