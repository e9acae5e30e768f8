"""How should a key be ignored: by −∞, by a large negative constant, or by a boolean?

The texts add −∞ to the logits, or "a large negative constant". For a query that may attend to some key, both are the
intended mask. For a query that may attend to none (padding on the left, under a causal mask) they are not: −∞ gives
0/0, NaN in output and gradient, which a second layer carries to every token; a constant cancels in the softmax, so the
query attends to exactly the forbidden keys. Two constants added, or one in float16, overflow to −∞. Booleans inside the
softmax (as in this library) give zeros with finite gradients in every type.

One head of width 8 attends over 6 tokens, the first two of them padding, under a causal mask: the queries of those two
may attend to nothing. The loss, and so the gradient, is of the four real tokens alone. The softmax of the hand-written
alternatives has the type of the logits.

Cost: no training, about 8 s on one CPU core; the quick form is the same.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import Claim, Probe
from flaxformer.claims import Case
from flaxformer.nn import Causal, Padding, dot_product_attention

LENGTH, WIDTH, PADDING = 6, 8, 2
REAL = np.arange(LENGTH) >= PADDING
ALLOWED = np.tri(LENGTH, dtype=bool) & REAL
TYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}
Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def booleans(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Return the output of the attention of this package, with both masks as booleans inside its softmax."""
    mask = Causal() & Padding(jnp.asarray(REAL))
    return dot_product_attention(query[:, None], key[:, None], value[:, None], mask=mask)[:, 0]


def added(constant: float, times: int = 1) -> Attention:
    """Return softmax(Q Kᵀ / √d + bias) V, where bias has the constant, once or more, at forbidden keys."""

    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        logits = query @ key.T * WIDTH**-0.5
        for _ in range(times):
            logits = logits + jnp.where(ALLOWED, jnp.float32(0), jnp.float32(constant)).astype(logits.dtype)
        return jax.nn.softmax(logits) @ value

    return attend


FORMS = {
    "booleans": booleans,
    "−∞": added(-np.inf),
    "−1e9": added(-1e9),
    "−1e4": added(-1e4),
    "lowest, twice": added(float(np.finfo(np.float32).min), times=2),
}


def tried(attend: Attention, query: jax.Array, key: jax.Array, value: jax.Array) -> dict[str, Any]:
    """Return the outputs of one and two layers, the gradient of a loss of the real tokens, and weights on padding."""

    def loss(arrays: tuple[jax.Array, ...]) -> jax.Array:
        return jnp.square(attend(*arrays)[PADDING:]).sum()

    once = attend(query, key, value)
    return {
        "output": once[PADDING:],
        "two layers": attend(once, once, once),
        "gradient": jax.grad(loss)((query, key, value)),
        "padding": attend(query, key, jnp.ones_like(value))[:PADDING],
    }


def lost(tree: Any) -> float:
    """Return the share of numbers that are not finite."""
    return np.mean([~np.isfinite(np.asarray(x, float)) for x in jax.tree.leaves(tree)])


def measure(seed: int) -> dict[str, float]:
    """Return the errors of every form in every type."""
    numbers = {}
    drawn = jax.random.normal(jax.random.key(seed), (3, LENGTH, WIDTH))
    for kind, dtype in TYPES.items():
        found = {
            name: jax.jit(lambda *x, form=form: tried(form, *x))(*drawn.astype(dtype)) for name, form in FORMS.items()
        }
        for name, did in found.items():
            numbers[f"lost after two layers, {name}, {kind}"] = lost(did["two layers"])
            numbers[f"lost of the gradient, {name}, {kind}"] = lost(did["gradient"])
            numbers[f"error, {name}, {kind}"] = jnp.abs(did["output"] - found["booleans"]["output"]).max()
            if not lost(did["padding"]):
                numbers[f"forbidden weight, {name}, {kind}"] = did["padding"].max()
    return numbers


def nothing(text: str, quantity: str, within: float = 1e-6) -> Claim:
    """Return a claim that a share, an error or a weight is zero."""
    return Claim(text, equal={"quantity": quantity}, to=0, within=within)


case = Case(
    claim="A key is ignored when −∞, or a large negative constant, is added to its logit.",
    source="What Happens in A Transformer Layer, masks; Self-Attention and Transformers, future masking",
    evidence=[
        Probe(
            name="fully_masked",
            question="What becomes of queries, and of those that may attend to nothing, under each form of a mask?",
            measure=measure,
            seeds=[0],
            exact=True,
            claims=[
                nothing(
                    "as written, “will turn into 0”: −∞ gives the output of the mask, for queries with a key",
                    "error, −∞, float32",
                ),
                nothing(
                    "as written, “a large negative constant”: so does −1e9 in float32, for queries with a key",
                    "error, −1e9, float32",
                ),
                nothing(
                    "stronger form, queries without a key, −∞: two layers are finite",
                    "lost after two layers, −∞, float32",
                ),
                nothing(
                    "stronger form, queries without a key, −∞: gradients are finite",
                    "lost of the gradient, −∞, float32",
                ),
                nothing(
                    "stronger form, queries without a key, −1e9: they read nothing", "forbidden weight, −1e9, float32"
                ),
                Claim("−1e9 in float16 overflows", higher={"quantity": "lost after two layers, −1e9, float16"}, than=0),
                Claim(
                    "the lowest number added twice overflows",
                    higher={"quantity": "lost after two layers, lowest, twice, float32"},
                    than=0,
                ),
                *(
                    nothing(f"corrected, booleans in {kind}: {text}", f"{quantity}, booleans, {kind}")
                    for kind in TYPES
                    for text, quantity in {
                        "two layers finite": "lost after two layers",
                        "gradients finite": "lost of the gradient",
                        "queries of padding read nothing": "forbidden weight",
                    }.items()
                ),
            ],
            caveats=["One head, a few tokens: that numbers overflow does not depend on the size."],
        )
    ],
)
