"""NAME: a norm of your own, compared with the one of the package.

Check: flaxformer check NAME.py (causality, padding, decoding, gradients …).
Run: flaxformer run NAME.py
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer import (
    AdamW,
    AssociativeRecall,
    Attention,
    Axis,
    Claim,
    Context,
    Dense,
    LayerNorm,
    ModelConfig,
    Norm,
    Parameters,
    Run,
    Study,
    Training,
    leaf,
    param,
)


class KIND(Norm):
    """y = gain ⊙ tanh(slope · x), with a learned scalar slope, initially `initial`."""

    initial: float = leaf(0.5, above=0)

    class Weights(Parameters):
        """Weights, each declared once; the size of the last axis of x is `d_norm`."""

        slope: Float[Array, ""] = param(value="initial", decay=False)
        gain: Float[Array, "d_norm"] = param(init="ones", decay=False)

    def apply(self, weights: Weights, x: Float[Array, "*batch D"], context: Context) -> Float[Array, "*batch D"]:
        """Return the normalised x; a norm acts on the last axis."""
        gain = weights.gain.reshape((1,) * (x.ndim - 1) + (-1,))
        return (jnp.tanh(weights.slope * x) * gain).astype(x.dtype)


study = Study(
    name="NAME",
    question="Does a tanh train as well as LayerNorm?",
    baseline=Run(
        model=ModelConfig(layers=2, d_model=32, attention=Attention(heads=4), feed_forward=Dense(d_ff=64)),
        task=AssociativeRecall(pairs=4, queries=4),
        optimizer=AdamW(learning_rate=3e-3, warmup_steps=50),
        training=Training(steps=300, evaluate_every=100),
    ),
    axes=[Axis("model.norm_kind", {"layer_norm": LayerNorm(), "own": KIND()})],
    seeds=range(5),
    claims=[
        Claim("a tanh and LayerNorm are alike", equal={"norm_kind": "own"}, to={"norm_kind": "layer_norm"}, within=0.1)
    ],
    caveats=["One width ({model.d_model}), one learning rate ({optimizer.learning_rate}), {training.steps} steps."],
)
