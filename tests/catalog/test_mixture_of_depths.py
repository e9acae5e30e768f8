"""Blocks that compute some of the tokens equal a loop over tokens and heads."""

import jax
import jax.numpy as jnp
import pytest
from references import assert_equal, dice

from flaxformer import NO_NORM, Attention, Block, Dense, Embeddings, ModelConfig, NoHead, NoPositions
from flaxformer.catalog import RoutedAttention, RoutedNetwork
from flaxformer.model import apply, specs

T, D, N, H, F = 6, 6, 2, 3, 4
MODEL = ModelConfig(
    layers=2,
    d_model=D,
    attention=Attention(heads=N),
    feed_forward=Dense(d_ff=F),
    inputs=Embeddings(),
    head=NoHead(),
    norm=NO_NORM,
    positions=NoPositions(),
)


def block(w, x, chosen, score):
    """Both branches for the chosen tokens, which see the chosen ones before them."""
    rows = {t: x[t] for t in range(T)}
    a = w.attention
    for t in chosen:
        total = a.out_bias
        for n in range(N):
            q, seen = x[t] @ a.query[:, n] + a.query_bias[n], [s for s in chosen if s <= t]
            e = [jnp.exp(q @ (x[s] @ a.key[:, n] + a.key_bias[n]) / H**0.5) for s in seen]
            mixed = sum(c / sum(e) * (x[s] @ a.value[:, n] + a.value_bias[n]) for c, s in zip(e, seen, strict=True))
            total = total + mixed @ a.out[n]
        rows[t] = rows[t] + score[t] * total
    f = w.feed_forward
    for t in chosen:
        hidden = jnp.maximum(rows[t] @ f.up + f.up_bias, 0)
        rows[t] = rows[t] + score[t] * (hidden @ f.down + f.down_bias)
    return jnp.stack([rows[t] for t in range(T)])


@pytest.mark.long
@pytest.mark.parametrize("capacity", [0.1, 0.5, 1.0])
def test_a_block_computes_the_tokens_of_the_highest_scores(capacity):
    routed = Block(attention=RoutedAttention(heads=N, capacity=capacity), feed_forward=RoutedNetwork)
    config = MODEL.replace(pattern=(routed, Block()))
    drawn = jax.tree.map(lambda spec: 0.5 * dice.standard_normal(spec.shape), specs(config))
    x = dice.standard_normal((T, D))

    scores = x @ drawn.blocks[0].attention.router[:, 0]
    chosen = sorted(range(T), key=lambda t: -scores[t])[: max(1, int(capacity * T))]

    def reference(params, x):
        first, second = params.blocks
        return block(second, block(first, x, sorted(chosen), x @ first.attention.router[:, 0]), range(T), jnp.ones(T))

    assert_equal(lambda params, x: apply(params, config, x), reference, drawn, x)
