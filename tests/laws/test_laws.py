"""Properties of every architecture: causality, symmetry, padding, independence, layouts, transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grid import (
    BASE,
    DEFAULT,
    MIXED,
    OPTIONS,
    PREFIX,
    B,
    S,
    T,
    V,
    encoder_decoder,
    grid,
    model_and_tokens,
    sparse_grid,
)

from flaxformer.components import (
    POST,
    PRE,
    BatchNorm,
    DeepNorm,
    LayerNorm,
    LearnedPositions,
    NoPositions,
    RMSNorm,
    Sinusoidal,
)
from flaxformer.core.paths import replace_at
from flaxformer.model import apply, apply_with_intermediates, encode, init
from flaxformer.nn import Segments

compiled = jax.jit(apply)


def close(x, y, tolerance=2e-5):
    """Assert equality up to rounding relative to the largest number."""
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1, np.abs(y).max()))


def forward(params, config, tokens, valid=None, **given):
    """Return `apply`, always with `valid`, so that the tests of an architecture share one compiled program."""
    valid = jnp.ones(tokens.shape, bool) if valid is None else valid
    return compiled(params, config, tokens, valid=valid, **given)


def test_the_default_grid_contains_every_choice():
    seen = {name for _, names in MIXED[:DEFAULT] for name in names}
    assert seen == {choice for choices in OPTIONS.values() for choice in choices}


@jax.jit
def sensitivity(params, config, tokens, given):
    """Return |d y[t] / d x[s]|, [T, T], of a random combination y of the logits by the embeddings x."""

    def of_vectors(vectors):
        # A vocabulary of T words, one a place, makes the embedding table the sequence of vectors itself.
        placed = params.replace(embedding=params.embedding.replace(tokens=vectors))
        logits = apply(placed.replace(head=params.head.replace(matrix=head)), config, jnp.arange(T), **given)
        return logits @ jax.random.normal(jax.random.key(4), (V,))

    head = params.embedding.tokens.T if params.head.matrix is None else params.head.matrix
    given = jax.tree.map(lambda x: x[0], given)
    jacobian = jax.jacrev(of_vectors)(params.embedding.tokens[tokens[0]])
    return jnp.abs(jacobian).sum(-1)


@pytest.mark.every(2, "long")
@pytest.mark.every(4)
@grid
def test_the_gradient_reaches_exactly_the_tokens_that_the_mask_allows(config):
    params, tokens, given = model_and_tokens(config)
    seen = np.asarray(sensitivity(params, config, tokens, given)) > 0
    t, s = np.mgrid[:T, :T]
    # With a window of w in each of L layers, place t reaches back L · (w − 1) places.
    window = config.attention.window
    reach = T if window is None else config.layers * (window - 1)
    permitted = (s <= t) & (t - s <= reach)
    if config.mask_pattern == "prefix":
        permitted |= s < PREFIX
    assert (seen == permitted).all()


@sparse_grid
def test_bidirectional_attention_reads_later_tokens(config):
    config = replace_at(config, {"mask_pattern": "bidirectional", "attention.window": None})
    assert (np.asarray(sensitivity(*_with(config))) > 0).all()


def _with(config):
    params, tokens, given = model_and_tokens(config)
    return params, config, tokens, given


def test_a_norm_over_the_sequence_depends_on_later_tokens():
    config = BASE.replace(norm_kind=LayerNorm(over="sequence"))
    seen = np.asarray(sensitivity(*_with(config))) > 0
    assert seen.all()


@pytest.mark.parametrize("norm", [PRE, POST], ids=["pre", "post"])
@pytest.mark.parametrize(
    "kind", [LayerNorm(affine="none"), RMSNorm(), BatchNorm(), LayerNorm(over="sequence")], ids=str
)
def test_without_positions_and_mask_the_model_is_permutation_equivariant(norm, kind):
    config = BASE.replace(norm=norm, norm_kind=kind, positions=NoPositions(), mask_pattern="bidirectional")
    params, tokens, _ = model_and_tokens(config)
    order = jax.random.permutation(jax.random.key(2), T)
    close(forward(params, config, tokens[:, order]), forward(params, config, tokens)[:, order])


@pytest.mark.parametrize("choice", ["causal mask", *(name for name in OPTIONS["positions"] if name != "no positions")])
def test_positions_and_causal_mask_break_permutation_equivariance(choice):
    config = BASE.replace(positions=NoPositions(), mask_pattern="bidirectional")
    config = config.replace(**({"mask_pattern": "causal"} if choice == "causal mask" else OPTIONS["positions"][choice]))
    params, tokens, _ = model_and_tokens(config)
    order = jnp.roll(jnp.arange(T), 1)
    there = forward(params, config, tokens[:, order]) - forward(params, config, tokens)[:, order]
    assert float(jnp.abs(there).max()) > 1e-3


def with_padding(params, config, tokens, keep):
    """Return weights, tokens and `valid`; padding has id V − 1, with a NaN embedding unless the table is shared."""
    table = params.embedding.tokens
    if not config.head.tied and config.inputs.lookup == "gather":
        table = table.at[V - 1].set(jnp.nan)
    params = params.replace(embedding=params.embedding.replace(tokens=table))
    padded = jnp.where(keep[None], tokens % (V - 1), V - 1)
    return params, padded, jnp.broadcast_to(keep[None], (B, T))


LENGTH = 4


@pytest.mark.every(2, "long")
@pytest.mark.every(5)
@grid
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_content_of_padding_does_not_change_the_output(config, side):
    params, tokens, given = model_and_tokens(config)
    keep = jnp.arange(T) < LENGTH if side == "right" else jnp.arange(T) >= T - LENGTH
    params, padded, valid = with_padding(params, config, tokens, keep)
    said = forward(params, config, padded, valid=valid, **given)[:, keep]
    assert np.isfinite(said).all()
    other = jnp.where(keep[None], padded, 1)
    close(said, forward(params, config, other, valid=valid, **given)[:, keep])


@sparse_grid
def test_padding_on_the_right_does_not_change_the_output(config):
    params, tokens, given = model_and_tokens(config)
    params, padded, valid = with_padding(params, config, tokens, jnp.arange(T) < LENGTH)
    alone = forward(params, config, padded[:, :LENGTH], **given)
    close(forward(params, config, padded, valid=valid, **given)[:, :LENGTH], alone)


ENCODER_DECODER = encoder_decoder(BASE)


@grid
def test_the_content_of_source_padding_does_not_change_the_output(config):
    config = ENCODER_DECODER if config.encoder is None else config
    params, tokens, given = model_and_tokens(config)
    other = given | {"source": jnp.where(given["source_valid"], given["source"], (given["source"] + 1) % V)}
    np.testing.assert_array_equal(forward(params, config, tokens, **given), forward(params, config, tokens, **other))


def test_source_padding_does_not_change_the_output():
    params, tokens, given = model_and_tokens(ENCODER_DECODER)
    alone = {"source": given["source"][:, :3], "source_valid": jnp.ones((B, 3), bool)}
    one, two = (forward(params, ENCODER_DECODER, tokens, **x)[0] for x in (given, alone))
    close(one, two)


@pytest.mark.every(3)
@grid
def test_sequences_of_a_batch_are_independent(config):
    params, tokens, given = model_and_tokens(config)
    other = tokens.at[1].set((tokens[1] + 1) % V)
    np.testing.assert_array_equal(
        forward(params, config, tokens, **given)[0], forward(params, config, other, **given)[0]
    )


def test_batch_norm_in_training_couples_the_sequences_of_a_batch():
    config, key = BASE.replace(norm_kind=BatchNorm()), jax.random.key(5)
    params, tokens, _ = model_and_tokens(config)
    other = tokens.at[1].set((tokens[1] + 1) % V)
    one, two = (forward(params, config, x, dropout_key=key)[0] for x in (tokens, other))
    assert float(jnp.abs(one - two).max()) > 1e-3


@pytest.mark.every(2)
@sparse_grid
def test_scanned_layers_equal_unrolled_ones(config):
    _, tokens, given = model_and_tokens(config)
    unrolled, scanned = (init(jax.random.key(0), config, layout) for layout in ("unrolled", "scanned"))
    for layer in range(config.layers):
        jax.tree.map(
            lambda one, stacked, layer=layer: np.testing.assert_array_equal(one, stacked[layer]),
            unrolled.blocks[layer],
            scanned.blocks,
        )
    y, kept = jax.jit(apply_with_intermediates)(unrolled, config, tokens, **given)
    z, stacked = jax.jit(apply_with_intermediates)(scanned, config, tokens, **given)
    close(y, z, 1e-5)
    jax.tree.map(lambda a, b: close(a, b, 1e-4), kept, stacked)


@sparse_grid
def test_intermediates_reproduce_the_output(config):
    params, tokens, given = model_and_tokens(config)
    logits, kept = jax.jit(apply_with_intermediates)(params, config, tokens, **given)
    close(logits, forward(params, config, tokens, **given))
    x = kept.embedded
    rule = config.residual
    skip = rule.skip_gain(config.layers, config.reads_memory) if isinstance(rule, DeepNorm) else 1
    residual = {
        "attention": config.attention_residual,
        "cross_attention": True,
        "feed_forward": config.feed_forward_residual,
    }
    for block in kept.blocks:
        for name, keeps in residual.items():
            branch = getattr(block, name)
            if branch is None:
                assert name == "cross_attention" if config.feed_forward is not None else name != "attention"
                continue
            if not config.norm.post_residual:
                close(branch.stream, skip * x * keeps + branch.update, 1e-5)
            x = branch.stream
        sums = block.attention.weights.sum(-1)
        close(sums, np.ones(sums.shape), 1e-6)
    if not config.norm.final:
        np.testing.assert_array_equal(kept.final, x)
    if config.encoder is not None:
        memory = encode(params, config, given["source"], given["source_valid"])
        close(kept.encoder.final, memory)
        assert kept.blocks[0].cross_attention.weights.shape == (B, config.attention.heads, T, S)
        close(kept.blocks[0].cross_attention.weights[0, :, :, 3:], np.zeros((config.attention.heads, T, S - 3)))
        read = {"memory": memory, "memory_valid": given["source_valid"], "prefix": given.get("prefix")}
        close(forward(params, config, tokens, **read), logits)


@pytest.mark.parametrize("layout", [pytest.param("unrolled", marks=pytest.mark.slow), "scanned"])
def test_transformations_compose(layout):
    tokens = model_and_tokens(BASE)[1]
    exponents, keys = jnp.array([0.0, 0.5, 1.0]), jax.random.split(jax.random.key(3), 3)

    def loss(exponent, key):
        config = replace_at(BASE, {"attention.scale_exponent": exponent, "layers": 1})
        return apply(init(key, config, layout), config, tokens).mean()

    gradient = jax.grad(loss)
    single = jax.jit(gradient)
    one_by_one = np.array([single(e, k) for e, k in zip(exponents, keys, strict=True)])
    assert np.abs(one_by_one).min() > 0
    np.testing.assert_allclose(jax.jit(jax.vmap(gradient))(exponents, keys), one_by_one, rtol=1e-3, atol=1e-7)
    mapped = jax.jit(lambda *pairs: jax.lax.map(lambda pair: gradient(*pair), pairs))(exponents, keys)
    np.testing.assert_allclose(mapped, one_by_one, rtol=1e-4, atol=1e-8)
    assert jax.eval_shape(jax.vmap(gradient), exponents, keys).shape == (3,)


def test_packed_documents_are_independent():
    """With segments and positions that restart, each document has the same logits as alone."""
    config = replace_at(BASE, {"positions": Sinusoidal(), "attention.window": 3})
    params, tokens, _ = model_and_tokens(config)
    document = jnp.array([[0, 0, 0, 1, 1, 1, 1]] * B)
    positions = jnp.array([[0, 1, 2, 0, 1, 2, 3]] * B)
    packed = forward(params, config, tokens, mask=Segments(document, document), positions=positions)
    close(packed[:, :3], forward(params, config, tokens[:, :3]))
    close(packed[:, 3:], forward(params, config, tokens[:, 3:]))


def test_positions_beyond_max_length_are_rejected():
    config = BASE.replace(positions=LearnedPositions(max_length=5))
    params = init(jax.random.key(0), config)
    with pytest.raises(ValueError, match=r"7.*at most max_length 5"):
        apply(params, config, jnp.zeros((1, 7), int))
    with pytest.raises(ValueError, match=r"position is 5.*below max_length 5"):
        apply(params, config, jnp.zeros((1, 2), int), positions=jnp.array([4, 5]))


def test_a_missing_source_or_memory_is_named():
    config = ENCODER_DECODER
    params, tokens, _ = model_and_tokens(config)
    with pytest.raises(ValueError, match=r"needs source or memory; given are \[\]"):
        apply(params, config, tokens)
    with pytest.raises(ValueError, match=r"needs neither source nor memory; given are \['source'\]"):
        apply(init(jax.random.key(0), BASE), BASE, tokens, source=tokens)
