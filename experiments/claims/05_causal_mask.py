"""Does a causal mask hide the future, and where must it be applied?

The notes mask the future by a large negative constant in the logits, "or equivalently" by setting α_ij = 0 for j > i.
The position of the zeros decides. Inside the softmax (the −∞ of the other texts), no output depends on a later input:
the gradient is exactly 0. Zeros after the softmax leave the later tokens in its denominator: rows sum to less than one,
and the future leaks. The equivalence fails as written; with the rows divided by their sums again, it holds.

The gradient is that of every output of a whole untrained model with respect to every input, in both norm placements.
Two more models show that the measurement can find a leak: one without a mask, and one whose mask is causal but whose
norm takes its statistics over the sequence. A mask hides the future only if nothing but attention mixes tokens.

Cost: no training, about 12 s on one CPU core; the quick form is the same.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import POST, Attention, Claim, LayerNorm, ModelConfig, Probe, Regressor, Vectors
from flaxformer.claims import Case
from flaxformer.model import apply, init
from flaxformer.nn import Causal, dot_product_attention
from flaxformer.nn.dot_product import dot_product_weights

LENGTH = 8
CAUSAL = ModelConfig(
    inputs=Vectors(width=3), head=Regressor(numbers=2), layers=3, d_model=16, attention=Attention(heads=2)
)
MODELS = {
    "pre-norm": CAUSAL,
    "post-norm": CAUSAL.replace(norm=POST),
    "no mask": CAUSAL.replace(mask_pattern="bidirectional"),
    "norm over the sequence": CAUSAL.replace(norm_kind=LayerNorm(over="sequence")),
}


def influence(function: Callable[[jax.Array], jax.Array], inputs: jax.Array) -> np.ndarray:
    """Return the largest |∂ output[t, i] / ∂ input[s, j]| over i and j, for every pair of tokens [t, s]."""
    return np.abs(jax.jit(jax.jacrev(function))(inputs)).max((1, 3))


def leak(influences: np.ndarray) -> float:
    """Return the largest influence of a later token on an earlier one."""
    return np.triu(influences, 1).max()


def through_models(seed: int) -> dict[str, float]:
    """Return the influence of the future in each model, and the weakest influence of a token of the past."""
    inputs, numbers = jax.random.normal(jax.random.key(seed), (LENGTH, 3)), {}
    for name, config in MODELS.items():
        params = init(jax.random.key(seed), config)
        influences = influence(lambda x, params=params, config=config: apply(params, config, x), inputs)
        numbers[f"future, {name}"] = leak(influences)
        numbers[f"past, {name}"] = influences[np.tril_indices(LENGTH)].min()
    return numbers


def through_zeros(seed: int) -> dict[str, float]:
    """Compare zeros after the softmax, with and without division by the sums of the rows, with the mask."""
    query, key, value = jax.random.normal(jax.random.key(seed), (3, LENGTH, 1, 16))

    def zeroed(key: jax.Array, normalised: bool = False) -> jax.Array:
        weights = jnp.tril(dot_product_weights(query, key)[0])
        weights = weights / weights.sum(-1, keepdims=True) if normalised else weights
        return weights @ value[:, 0]

    masked = dot_product_attention(query, key, value, mask=Causal())[:, 0]
    return {
        "difference, zeroed": jnp.abs(zeroed(key) - masked).max(),
        "difference, zeroed and normalised": jnp.abs(zeroed(key, normalised=True) - masked).max(),
        "future, zeroed": leak(influence(lambda key: zeroed(key[:, None]), key[:, 0])),
        "first row's sum, zeroed": jnp.tril(dot_product_weights(query, key)[0])[0].sum(),
    }


def exactly_zero(text: str, quantity: str) -> Claim:
    """Return a claim of exact zero: the margin is below any rounding error of float32."""
    return Claim(text, equal={"quantity": quantity}, to=0, within=1e-30)


case = Case(
    claim="A causal mask hides the future; it may act on the logits or, equivalently, set the weights to zero.",
    source="Self-Attention and Transformers, future masking; What Happens in A Transformer Layer, masks",
    evidence=[
        Probe(
            name="gradients",
            question="Does any output depend on a later input?",
            measure=through_models,
            seeds=[0],
            exact=True,
            claims=[
                exactly_zero(
                    "as written, “no longer depends on future information”, pre-norm: the gradient is 0",
                    "future, pre-norm",
                ),
                exactly_zero(
                    "as written, “no longer depends on future information”, post-norm: the gradient is 0",
                    "future, post-norm",
                ),
                Claim(
                    "every output depends on the whole past, pre-norm", higher={"quantity": "past, pre-norm"}, than=1e-6
                ),
                Claim(
                    "without a mask, outputs depend on the future", higher={"quantity": "future, no mask"}, than=1e-3
                ),
                Claim(
                    "with a norm over the sequence, they do in spite of the mask",
                    higher={"quantity": "future, norm over the sequence"},
                    than=1e-3,
                ),
            ],
            caveats=["Three layers of width 16, untrained; that no gradient passes does not depend on the weights."],
        ),
        Probe(
            name="zeros",
            question="Is it equivalent to set the weights to zero after the softmax?",
            measure=through_zeros,
            seeds=range(20, 28),
            claims=[
                Claim(
                    "as written, “or equivalently, setting α_ij = 0”: zeroed weights give the output of the mask",
                    equal={"quantity": "difference, zeroed"},
                    to=0,
                    within=1e-4,
                ),
                Claim("zeroed weights leak the future", higher={"quantity": "future, zeroed"}, than=1e-3),
                Claim(
                    "corrected: zeroed and divided by their sum, they do",
                    equal={"quantity": "difference, zeroed and normalised"},
                    to=0,
                    within=1e-4,
                ),
            ],
            caveats=["One head of width 16 and normal queries, keys and values; the size of the leak depends on them."],
        ),
    ],
)
