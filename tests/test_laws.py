"""Laws that every architecture obeys, over the whole option grid."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.config import (
    NO_NORM,
    POST,
    PRE,
    SANDWICH,
    LayerNorm,
    LearnedPositions,
    ModelConfig,
    NoPositions,
    RMSNorm,
    Sinusoidal,
)
from flaxformer.model import apply, apply_with_intermediates, init

B, T, V = 2, 7, 13  # distinct primes, so that a swapped axis fails
BASE = ModelConfig(vocabulary=V, layers=2, d_model=12, heads=3, d_ff=17)

NORMS = {"pre": PRE, "post": POST, "sandwich": SANDWICH, "no norm": NO_NORM}
KINDS = {"layer": LayerNorm(), "layer without affine": LayerNorm(affine="none"), "rms": RMSNorm()}
POSITIONS = {"none": NoPositions(), "sinusoidal": Sinusoidal(), "learned": LearnedPositions(max_length=11)}
VARIANTS = {
    "one key-value head": {"key_value_heads": 1},
    "d_value ≠ d_head": {"d_head": 5, "d_value": 7},
    "unscaled": {"logit_scale_exponent": 0.0},
    "model-width scale": {"logit_scale_width": "model"},
    "logit cap": {"logit_cap": 2.0},
    "window": {"window": 3},
    "tied head": {"tied_head": True, "head_bias": True},
    "no biases": {"attention_bias": False, "feed_forward_bias": False},
    "gelu": {"activation": "gelu"},
}
PRODUCT = list(itertools.product(enumerate(NORMS), enumerate(KINDS), enumerate(POSITIONS)))
GRID = [pytest.param(BASE.replace(**changes), id=name) for name, changes in VARIANTS.items()] + [
    pytest.param(
        BASE.replace(norm=NORMS[norm], norm_kind=KINDS[kind], positions=POSITIONS[positions]),
        id=f"{norm}, {kind}, {positions}",
        # A third of the product has every pair of choices in it; the rest is for CI.
        marks=() if (i + j) % len(POSITIONS) == k else pytest.mark.slow,
    )
    for (i, norm), (j, kind), (k, positions) in PRODUCT
]
grid = pytest.mark.parametrize("config", GRID)
forward = jax.jit(apply)


def model_and_tokens(config):
    tokens = jax.random.randint(jax.random.key(1), (B, T), 0, V)
    params = init(jax.random.key(0), config)
    # Moved away from its initial zeros and ones, so that no bias or gain is invisible.
    noise = lambda w: w + 0.1 * jax.random.normal(jax.random.key(w.size), w.shape)  # noqa: E731
    return jax.tree.map(noise, params), tokens


@jax.jit
def sensitivity(params, config, tokens):
    """|d output[t] / d (what was embedded at s)|, [T, T]: a random mixture of the logits, by token vectors."""

    def of_vectors(vectors):
        # A vocabulary of T words, one a place, makes the embedding table the sequence of vectors itself.
        placed = params.replace(embedding=params.embedding.replace(tokens=vectors))
        logits = apply(placed.replace(head=params.head.replace(matrix=head)), config, jnp.arange(T))
        return logits @ jax.random.normal(jax.random.key(4), (V,))

    head = params.embedding.tokens.T if params.head.matrix is None else params.head.matrix
    jacobian = jax.jacrev(of_vectors)(params.embedding.tokens[tokens[0]])
    return jnp.abs(jacobian).sum(-1)


@grid
def test_the_gradient_sees_no_future_and_all_of_the_permitted_past(config):
    params, tokens = model_and_tokens(config)
    seen = np.asarray(sensitivity(params, config, tokens)) > 0
    t, s = np.mgrid[:T, :T]
    # With a window of w in each of L layers, place t reaches back L · (w − 1) places.
    reach = T if config.window is None else config.layers * (config.window - 1)
    assert (seen == ((s <= t) & (t - s <= reach))).all()


@grid
def test_without_a_causal_mask_the_future_is_seen(config):
    params, tokens = model_and_tokens(config.replace(causal=False, window=None))
    assert (np.asarray(sensitivity(params, config.replace(causal=False, window=None), tokens)) > 0).all()


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_without_positions_and_mask_a_permutation_of_the_input_permutes_the_output(norm, kind):
    config = BASE.replace(norm=norm, norm_kind=kind, positions=NoPositions(), causal=False)
    params, tokens = model_and_tokens(config)
    order = jax.random.permutation(jax.random.key(2), T)
    np.testing.assert_allclose(
        forward(params, config, tokens[:, order]), forward(params, config, tokens)[:, order], rtol=2e-5, atol=2e-5
    )


@pytest.mark.parametrize("change", [{"positions": Sinusoidal()}, {"causal": True}], ids=["positions", "causal mask"])
def test_positions_or_a_causal_mask_break_the_symmetry(change):
    config = BASE.replace(positions=NoPositions(), causal=False).replace(**change)
    params, tokens = model_and_tokens(config)
    order = jnp.roll(jnp.arange(T), 1)
    moved = forward(params, config, tokens[:, order]) - forward(params, config, tokens)[:, order]
    assert float(jnp.abs(moved).max()) > 1e-3


@grid
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_changes_nothing_even_when_it_is_nan(config, side):
    params, tokens = model_and_tokens(config.replace(vocabulary=V + 1))
    config = config.replace(vocabulary=V + 1)
    rotten = params.embedding.tokens.at[V].set(jnp.nan)
    padding = V
    if config.tied_head:  # the table is the head too: a NaN row would be a NaN logit
        rotten, padding = params.embedding.tokens, 0
    params = params.replace(embedding=params.embedding.replace(tokens=rotten))
    length = 4
    keep = jnp.arange(T) < length if side == "right" else jnp.arange(T) >= T - length
    tokens = jnp.where(keep[None], tokens, padding)
    padded = forward(params, config, tokens, valid=jnp.broadcast_to(keep[None], (B, T)))[:, keep]
    assert np.isfinite(padded).all()
    if side == "right":
        alone = forward(params, config, tokens[:, :length])
    else:  # positions stay where they are: compare with other padding instead
        others = jnp.where(keep[None], tokens, 1)
        alone = forward(params, config, others, valid=jnp.broadcast_to(keep[None], (B, T)))[:, keep]
    np.testing.assert_allclose(padded, alone, rtol=2e-5, atol=2e-5)


@grid
def test_sequences_of_a_batch_do_not_meet(config):
    params, tokens = model_and_tokens(config)
    other = tokens.at[1].set((tokens[1] + 1) % V)
    np.testing.assert_array_equal(forward(params, config, tokens)[0], forward(params, config, other)[0])


@grid
def test_scanned_layers_equal_unrolled_ones(config):
    tokens = model_and_tokens(config)[1]
    unrolled, scanned = (init(jax.random.key(0), config, layout) for layout in ("unrolled", "scanned"))
    for layer in range(config.layers):
        jax.tree.map(
            lambda one, stacked, layer=layer: np.testing.assert_array_equal(one, stacked[layer]),
            unrolled.blocks[layer],
            scanned.blocks,
        )
    y, kept = jax.jit(apply_with_intermediates)(unrolled, config, tokens)
    z, stacked = jax.jit(apply_with_intermediates)(scanned, config, tokens)
    np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), kept, stacked)


@grid
def test_the_intermediates_are_the_stages(config):
    params, tokens = model_and_tokens(config)
    _, kept = jax.jit(apply_with_intermediates)(params, config, tokens)
    stream = kept.embedded
    for block in kept.blocks:
        for branch in (block.attention, block.feed_forward):
            if not config.norm.stream:
                np.testing.assert_allclose(branch.stream, stream + branch.update, rtol=1e-5, atol=1e-5)
            stream = branch.stream
    if not config.norm.final:
        np.testing.assert_array_equal(kept.final, stream)


@pytest.mark.parametrize("layout", ["unrolled", "scanned"])
def test_transformations_compose(layout):
    _, tokens = model_and_tokens(BASE)
    exponents, keys = jnp.array([0.0, 0.5, 1.0]), jax.random.split(jax.random.key(3), 3)

    def loss(exponent, key):
        config = BASE.replace(logit_scale_exponent=exponent, layers=1)
        return apply(init(key, config, layout), config, tokens).mean()

    gradient = jax.grad(loss)
    single = jax.jit(gradient)
    one_by_one = np.array([single(e, k) for e, k in zip(exponents, keys, strict=True)])
    assert np.abs(one_by_one).min() > 0
    np.testing.assert_allclose(jax.jit(jax.vmap(gradient))(exponents, keys), one_by_one, rtol=1e-3, atol=1e-7)
    mapped = jax.jit(lambda *pairs: jax.lax.map(lambda pair: gradient(*pair), pairs))(exponents, keys)
    np.testing.assert_allclose(mapped, one_by_one, rtol=1e-4, atol=1e-8)
    assert jax.eval_shape(jax.vmap(gradient), exponents, keys).shape == (3,)


def test_a_sequence_longer_than_learned_positions_is_refused():
    config = BASE.replace(positions=LearnedPositions(max_length=5))
    with pytest.raises(ValueError, match=r"7.*at most max_length 5"):
        apply(init(jax.random.key(0), config), config, jnp.zeros((1, 7), int))
