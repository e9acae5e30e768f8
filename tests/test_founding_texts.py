"""Statements of the founding texts, checked by numbers: the tests that FOUNDING_TEXTS.md refers to."""

import ast
import functools
import inspect
import re
from pathlib import Path

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flaxformer
from flaxformer.components import (
    NO_NORM,
    POST,
    PRE,
    RES_POST_NORM,
    SANDWICH,
    Attention,
    BatchNorm,
    ConcatenatedIndex,
    Dense,
    Elman,
    LanguageModel,
    LayerNorm,
    LearnedPositions,
    NoHead,
    NoPositions,
    NormPlacement,
    Patches,
    Rotary,
    Sinusoidal,
    Tokens,
    Vectors,
)
from flaxformer.config import ModelConfig, recurrent_model
from flaxformer.core.params import CONSTANTS, count, table
from flaxformer.core.paths import replace_at
from flaxformer.core.weight_specs import declarations
from flaxformer.model import apply, apply_with_intermediates, extend, new_cache, specs
from flaxformer.model.weights import Transformer
from flaxformer.nn import Causal, dot_product_attention, layer_norm, sinusoidal
from flaxformer.nn.attention import masked_softmax
from flaxformer.nn.dot_product import dot_product_weights
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.tasks.synthetic import next_token
from flaxformer.training import AdamW, Run, Training, start, train_chunk

B, T, V = 2, 7, 13  # distinct primes, so that a swapped axis fails
BASE = ModelConfig(vocabulary=V, layers=1, d_model=15, attention=Attention(heads=3), feed_forward=Dense(d_ff=17))
NO_BIAS = Attention(bias=False, out_bias=False)
BARE = {"norm": NO_NORM, "positions": NoPositions(), "head": NoHead(), "feed_forward": None}
PLACEMENTS = {"pre": PRE, "post": POST, "sandwich": SANDWICH, "branch-post": RES_POST_NORM, "no norm": NO_NORM}

# Compiled quickly, to run once.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
see, forward, step = jit(apply_with_intermediates), jit(apply), jit(extend)
attend, attention_weights = jit(dot_product_attention), jit(dot_product_weights)
close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)


def weights(config, moved=0.1, scanned=False, seed=0):
    """Weights of the initial spread, drawn by NumPy, for which nothing is compiled.

    moved: how far from their initial zeros and ones biases and gains are, so that none is invisible.
    scanned: draw the layers as one stack.
    """
    random = np.random.default_rng(seed)

    def draw(own, stacked=()):
        kind, mean = own.spec.init, 0.0
        if kind in CONSTANTS or kind == "constant":
            mean, std = CONSTANTS.get(kind, own.value), moved
        else:
            std = own.value if kind == "normal" else config.initial_value(own.spec).scale
        return jnp.asarray(mean + std * random.normal(size=(*stacked, *own.spec.shape)), jnp.float32)

    declared = declarations(Transformer, config)
    if not scanned:
        return jax.tree.map(draw, declared)
    blocks = jax.tree.map(lambda own: draw(own, (config.layers,)), declared.blocks[0])
    return jax.tree.map(draw, declared.replace(blocks=())).replace(blocks=blocks)


def words(*shape):
    return jax.random.randint(jax.random.key(1), shape, 0, V)


def normal(*shape, seed=0, std=1.0):
    return jnp.asarray(np.random.default_rng(seed).normal(0, std, shape), jnp.float32)


def exact(x):
    return np.asarray(x, np.float64)


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def entropy(weights):
    """Mean entropy (nats) of the rows; uniform rows over S keys have ln S."""
    return float(-(weights * jnp.log(jnp.maximum(weights, 1e-30))).sum(-1).mean())


# --- the errata, by number -------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.5, 2.0])
@pytest.mark.parametrize("width", [17, 257])
def test_e1_a_dot_product_has_variance_d_sigma_to_the_fourth(width, sigma):
    query, key = (normal(307, 1, width, seed=seed, std=sigma) for seed in (0, 1))
    # The logarithm of a softmax is its logits, up to a number for each row.
    logits = np.log(attention_weights(query, key)) * width**0.5
    variance = np.var(logits - logits.mean(-1, keepdims=True))
    np.testing.assert_allclose(variance, width * sigma**4, rtol=0.1)


def head_entropy(**changes):
    own = Attention(heads=8, **changes)
    config = ModelConfig(
        vocabulary=67, layers=1, d_model=64, attention=own, mask_pattern="bidirectional", positions=NoPositions()
    )
    _, kept = see(weights(config, moved=0), config, jnp.arange(64)[None])
    return entropy(kept.blocks[0].attention.weights)


def test_e2_the_width_of_the_model_makes_heads_nearly_uniform():
    uniform, head, model = np.log(64), head_entropy(), head_entropy(scale_width="model")
    # Logits of variance v have an entropy of about ln S − v/2: v is 1, and with the model's width d_head / d_model.
    np.testing.assert_allclose([head, model], [uniform - 1 / 2, uniform - 1 / 16], atol=0.08)
    assert head_entropy(scale_exponent=0.0) < head - 1  # variance 8


@pytest.mark.parametrize("heads", [1, 3, 5])
def test_e3_each_head_is_scaled_by_its_own_width(heads):
    own = Attention(heads=heads)
    np.testing.assert_allclose(own.scale(15), (15 / heads) ** -0.5, rtol=1e-6)
    np.testing.assert_allclose(own.replace(scale_width="model").scale(15), 15**-0.5, rtol=1e-6)
    assert float(own.replace(scale_exponent=0.0).scale(15)) == 1


def test_e4_zeroing_after_the_softmax_is_not_masking():
    query, key, value = (normal(T, 1, 5, seed=seed) for seed in range(3))
    before = attention_weights(query, key, mask=Causal())[0]
    after = np.tril(attention_weights(query, key)[0])
    close(before.sum(-1), np.ones(T))
    assert (after.sum(-1)[:-1] < 0.9).all()
    close(after / after.sum(-1, keepdims=True), before)
    masked = attend(query, key, value, mask=Causal())[:, 0]
    assert np.abs(masked - after @ value[:, 0]).max() > 0.3


def turner_block(x, params, heads, epsilon):
    """A block of "An Introduction to Transformers" in its own layout, D × N: A_h is normalised down its columns."""
    params = jax.tree.map(exact, params)
    standardise = lambda x: (x - x.mean(0)) / np.sqrt(x.var(0) + epsilon)  # noqa: E731
    tokens, update, patterns = standardise(x), 0, []
    for h in range(heads):
        keys, queries = params.attention.key[:, h].T @ tokens, params.attention.query[:, h].T @ tokens
        allowed = np.triu(np.exp(keys.T @ queries / np.sqrt(len(x))))
        patterns.append(allowed / allowed.sum(0))
        update = update + params.attention.value[:, h].T @ tokens @ patterns[-1]
    z, ffn = x + update, params.feed_forward
    hidden = np.maximum(ffn.up.T @ standardise(z) + ffn.up_bias[:, None], 0)
    return z + ffn.down.T @ hidden + ffn.down_bias[:, None], np.stack(patterns)


def test_e6_e7_the_transposed_layout_is_the_same_model():
    config = BASE.replace(
        layers=2,
        norm=NormPlacement(pre=True),
        norm_kind=LayerNorm(affine="none"),
        attention=NO_BIAS.replace(heads=3, value_form="full", scale_width="model"),
        head=NoHead(),
    )
    params = weights(config)
    _, kept = see(params, config, words(1, T))
    x = exact(kept.embedded[0]).T
    for block, did in zip(params.blocks, kept.blocks, strict=True):
        x, patterns = turner_block(x, block, config.attention.heads, 1e-5)
        np.testing.assert_allclose(did.feed_forward.stream[0], x.T, rtol=1e-4, atol=1e-4)
        close(did.attention.weights[0], np.swapaxes(patterns, 1, 2))


def logit_spread(layers, norm):
    config = ModelConfig(
        vocabulary=31, layers=layers, d_model=32, attention=Attention(heads=1), positions=NoPositions(), norm=norm
    )
    return float(forward(weights(config, 0, scanned=True), config, jnp.arange(31)[None]).std())


def test_e8_without_a_final_norm_the_logits_grow_with_depth():
    shallow, deep = (logit_spread(layers, NormPlacement(pre=True)) for layers in (2, 32))
    assert deep > 2 * shallow
    shallow, deep = (logit_spread(layers, PRE) for layers in (2, 32))
    np.testing.assert_allclose(deep, shallow, rtol=0.2)


@pytest.mark.parametrize("keep", [True, False])
def test_e11_the_first_residual_connection_can_be_left_out(keep):
    config = BASE.replace(norm=POST, attention_residual=keep, norm_kind=LayerNorm(affine="none"))
    _, kept = see(weights(config), config, words(B, T))
    attended, fed = kept.blocks[0].attention, kept.blocks[0].feed_forward
    close(attended.stream, layer_norm(kept.embedded + attended.update if keep else attended.update))
    close(fed.stream, layer_norm(attended.stream + fed.update))


def test_e9_e10_e12_e14_shapes():
    config = BASE.replace(attention=Attention(heads=3, d_head=2, d_value=5), d_memory=11)
    shape = {name: spec.shape for name, spec in table(specs(config))}
    assert shape["blocks/0/feed_forward/up"] == (15, 17)
    assert shape["blocks/0/feed_forward/down"] == (17, 15)
    assert shape["head/matrix"] == (15, V)
    assert shape["blocks/0/cross_attention/query"] == (15, 3, 2)
    assert shape["blocks/0/cross_attention/key"] == (11, 3, 2)
    assert shape["blocks/0/cross_attention/value"] == (11, 3, 5)
    assert shape["blocks/0/cross_attention/out"] == (3, 5, 15)
    output, kept = see(weights(config), config, words(B, T), memory=normal(B, 5, 11))
    assert output.shape == (B, T, V)
    crossed = kept.blocks[0].cross_attention
    assert crossed.weights.shape == (B, 3, T, 5)
    assert crossed.update.shape == (B, T, 15)
    assert attend(normal(T, 3, 2), normal(5, 3, 2), normal(5, 3, 11)).shape == (T, 3, 11)


@pytest.mark.parametrize(("norm", "positions"), [(PRE, Sinusoidal()), (POST, Rotary())], ids=["pre", "post"])
def test_e13_one_token_at_a_time_gives_the_logits_of_all_at_once(norm, positions):
    config = BASE.replace(attention=Attention(heads=3, d_head=4), norm=norm, positions=positions)
    params, tokens = weights(config), words(B, T)
    cache, said = new_cache(params, config, (B,), T), []
    for t in range(T):
        logits, cache = step(params, config, tokens[:, t : t + 1], cache)
        said.append(logits)
    close(jnp.concatenate(said, axis=1), forward(params, config, tokens))


def test_e15_without_epsilon_a_constant_token_is_not_finite():
    constant = jnp.full((5,), 3.0)
    assert np.isnan(layer_norm(constant, epsilon=0.0)).all()
    close(layer_norm(constant), np.zeros(5))
    with pytest.raises(UserError, match=r"epsilon is 0.0; expected a number above 0"):
        LayerNorm(epsilon=0.0)
    x = normal(5, std=0.01)
    close(layer_norm(x), (x - x.mean()) / jnp.sqrt(x.var() + 1e-5))
    assert flax.linen.LayerNorm().epsilon == 1e-6


@pytest.mark.parametrize("over", ["token", "sequence"])
def test_e16_a_norm_over_the_sequence_leaks_the_future(over):
    config = BASE.replace(norm_kind=LayerNorm(over=over))
    params = weights(config)
    changed = words(1, T).at[0, -1].add(1) % V
    moved = np.abs(forward(params, config, changed) - forward(params, config, words(1, T))).max(-1)[0]
    assert moved[-1] > 1e-2
    assert (moved[:-1] > 1e-4).all() if over == "sequence" else (moved[:-1] == 0).all()
    if over == "sequence":
        with pytest.raises(UserError, match="depends on later ones"):
            new_cache(params, config, (1,), T)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_e17_torch_is_post_norm_by_default():
    torch = pytest.importorskip("torch")
    layer = inspect.signature(torch.nn.TransformerEncoderLayer).parameters
    assert layer["norm_first"].default is False
    assert layer["dropout"].default == 0.1
    assert layer["layer_norm_eps"].default == LayerNorm().epsilon
    assert layer["activation"].default is torch.nn.functional.relu
    for norm_first in (False, True):
        whole = torch.nn.Transformer(6, 2, 1, 1, 5, norm_first=norm_first, batch_first=True)
        assert isinstance(whole.encoder.norm, torch.nn.LayerNorm)
        assert isinstance(whole.decoder.norm, torch.nn.LayerNorm)


def test_e18_gpt2_counts_its_final_norm_and_its_positions():
    sizes = {"vocabulary": 50257, "layers": 12, "d_model": 768, "attention": Attention(heads=12)}
    config = ModelConfig(**sizes, head=LanguageModel(tied=True), positions=LearnedPositions(max_length=1024))
    assert count(specs(config)) == 124_439_808
    without = config.replace(norm=NormPlacement(pre=True), positions=NoPositions())
    assert count(specs(without)) == 124_439_808 - 2 * 768 - 1024 * 768


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "live"])
def test_e19_two_layers_collapse_only_given_their_patterns(frozen):
    own = NO_BIAS.replace(heads=1, frozen_pattern=T if frozen else None)
    config = ModelConfig(
        d_model=11, attention=own, layers=2, inputs=Vectors(width=11), attention_residual=False, **BARE
    )
    params = weights(config)
    params = params.replace(embedding=params.embedding.replace(matrix=jnp.eye(11), matrix_bias=jnp.zeros(11)))
    one, other = normal(1, T, 11), normal(1, T, 11, seed=1)
    output, kept = see(params, config, one)
    first, second = (exact(did.attention.weights[0, 0]) for did in kept.blocks)
    maps = [exact(block.attention.value[:, 0] @ block.attention.out[0]) for block in params.blocks]
    together = second @ first
    close(output[0], together @ exact(one[0]) @ maps[0] @ maps[1])
    close(together.sum(-1), np.ones(T))
    assert np.abs(together - first).max() > 0.05  # which the text's α_jk Σ_j α_ij would be
    sum_of_parts = output + forward(params, config, other)
    surplus = np.abs(forward(params, config, one + other) - sum_of_parts).max()
    assert surplus < 1e-5 if frozen else surplus > 0.1


def test_e20_e24_heads_concatenate_to_n_by_d_and_a_matrix_follows():
    config = ModelConfig(vocabulary=V, d_model=15, attention=NO_BIAS.replace(heads=3), layers=1, **BARE)
    params = weights(config)
    _, kept = see(params, config, words(1, T))
    x, attention = exact(kept.embedded[0]), jax.tree.map(exact, params.blocks[0].attention)
    heads = []
    for h in range(3):
        query, key, value = (x @ w[:, h] for w in (attention.query, attention.key, attention.value))
        logits = query @ key.T / np.sqrt(5)
        heads.append(softmax(np.where(np.tri(T, dtype=bool), logits, -np.inf)) @ value)
    together = np.concatenate(heads, axis=1)
    assert together.shape == (T, 15)
    matrix = attention.out.reshape(15, 15)
    close(kept.blocks[0].attention.update[0], together @ matrix)
    # "Transformers like a physicist" sums over the second index of its Õ, which is therefore our matrix transposed.
    close(kept.blocks[0].attention.update[0], np.einsum("ef,tf->te", matrix.T, together))


def cost(heads):
    config = ModelConfig(d_model=64, attention=NO_BIAS.replace(heads=heads), layers=1, inputs=Vectors(width=3), **BARE)
    params = weights(config, moved=0)
    return jax.jit(apply).lower(params, config, jnp.ones((1, 128, 3))).compile().cost_analysis()


def test_e21_heads_cost_no_products_but_exponentials():
    one, many = cost(1), cost(8)
    assert one["flops"] < many["flops"] < 1.15 * one["flops"]
    np.testing.assert_allclose(many["transcendentals"] / one["transcendentals"], 8, rtol=0.01)
    np.testing.assert_allclose(one["transcendentals"], 128**2, rtol=0.01)


@pytest.mark.parametrize(("d_ff", "inner"), [(None, 60), (75, 75)])
def test_e22_the_feed_forward_layer_is_four_times_as_wide_by_default(d_ff, inner):
    shapes = {name: spec.shape for name, spec in table(specs(BASE.replace(feed_forward=Dense(d_ff=d_ff))))}
    assert shapes["blocks/0/feed_forward/up"] == (15, inner)


@jax.jit
@jax.grad
def loss_gradient(params, config, tokens):
    logits = jax.nn.log_softmax(apply(params, config, tokens[:, :-1]))
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1).mean()


def gradients_by_layer(norm, layers):
    """‖∂loss/∂W_2‖ of the feed-forward layers at initialisation, a mean over three draws of the weights."""
    config = ModelConfig(vocabulary=64, layers=layers, d_model=64, positions=NoPositions(), norm=norm)
    tokens = jax.random.randint(jax.random.key(1), (4, 17), 0, 64)
    draws = [loss_gradient(weights(config, 0, True, seed), config, tokens) for seed in range(3)]
    return np.mean([np.linalg.norm(g.blocks.feed_forward.down.reshape(layers, -1), axis=-1) for g in draws], axis=0)


@pytest.mark.slow
def test_e23_pre_norm_gradients_fall_with_depth_near_the_output_alone():
    pre, post = ([gradients_by_layer(norm, layers) for layers in (4, 64)] for norm in (PRE, POST))
    slope = lambda pair, layer: np.log(pair[1][layer] / pair[0][layer]) / np.log(64 / 4)  # noqa: E731
    np.testing.assert_allclose(slope(pre, -1), -0.5, atol=0.12)
    np.testing.assert_allclose(slope(post, -1), 0, atol=0.12)
    first = [pair[1][0] for pair in (pre, post)]
    np.testing.assert_allclose(first[0], first[1], rtol=0.5)
    assert post[1][-1] > 4 * pre[1][-1]


OVEN = jnp.array([[0, 1, 2, 0, 3, 4]])  # the oven cooked the bread so
BREAD = jnp.array([[0, 3, 2, 0, 1, 4]])  # the bread cooked the oven so


def test_e25_the_weights_of_a_word_are_normalised_over_every_word_itself_too():
    config = BASE.replace(mask_pattern="bidirectional", positions=NoPositions())
    _, kept = see(weights(config), config, OVEN)
    so = exact(kept.blocks[0].attention.weights[0, :, -1])
    close(so.sum(-1), np.ones(3))
    assert (so / so[:, :-1].sum(-1, keepdims=True)).sum(-1).min() > 1.01  # as with a denominator that ends at "bread"


def test_e26_coefficients_are_proportional_to_the_exponential_of_the_similarity():
    query, key = normal(1, 1, 5), normal(T, 1, 5, seed=1)
    similarity = exact(key[:, 0] @ query[0, 0]) / np.sqrt(5)
    given = exact(attention_weights(query, key)[0, 0])
    close(given / given[0], np.exp(similarity - similarity[0]), rtol=1e-4)
    assert similarity.min() < 0 < given.min()  # no share of a sum could be


def test_e27_the_shift_is_in_the_task_and_the_target_is_a_word():
    tokens = words(T)
    batch = next_token(tokens, jnp.ones(T, bool))
    assert batch.inputs.tolist() == tokens[:-1].tolist()
    assert batch.targets.tolist() == tokens[1:].tolist()


def test_e28_one_hot_rows_multiply_the_table_from_the_left():
    config = BASE.replace(positions=NoPositions(), layers=0)
    params, tokens = weights(config), words(1, T)
    _, kept = see(params, config, tokens)
    one_hot = np.eye(V)[tokens[0]]
    close(kept.embedded[0], one_hot @ params.embedding.tokens)
    assert one_hot.shape[1] == params.embedding.tokens.shape[0] != one_hot.shape[0]


# --- the mechanisms ----------------------------------------------------------------------------------------


def test_a_table_read_by_index_or_by_one_hot_product_is_the_same():
    tokens = jnp.array([[1, 4, 4, 0], [2, 1, 5, 0]])
    config = BASE.replace(layers=0)
    loss = jit(jax.value_and_grad(lambda params, config: (apply(params, config, tokens) ** 2).mean()))
    params = weights(config)
    gather, product = (loss(params, config.replace(inputs=Tokens(lookup=way))) for way in ("gather", "one-hot"))
    jax.tree.map(close, gather, product)
    rows = np.abs(gather[1].embedding.tokens).max(-1) > 0
    assert np.flatnonzero(rows).tolist() == [0, 1, 2, 4, 5]


def test_the_embedding_is_scaled_by_the_root_of_the_width_on_request():
    config = BASE.replace(positions=NoPositions(), layers=0)
    scaled = config.replace(inputs=Tokens(scale_exponent=0.5))
    params = weights(config)
    plain, larger = (see(params, c, words(1, T))[1].embedded for c in (config, scaled))
    close(larger, plain * 15**0.5)


def test_a_word_has_one_embedding_and_as_many_representations_as_contexts():
    _, kept = see(weights(BASE), BASE, jnp.array([[3, 1, 5], [7, 2, 5]]))
    assert np.array_equal(kept.embedded[0, 2], kept.embedded[1, 2])
    one, other = kept.final[:, 2]
    assert float(one @ other / jnp.linalg.norm(one) / jnp.linalg.norm(other)) < 0.99


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_table_keeps_its_bits_in_training(frozen):
    run = Run(
        model=ModelConfig(vocabulary=17, layers=0, d_model=8, inputs=Tokens(frozen=frozen)),
        task=Copy(symbols=7, length=3, batch_size=2, evaluation_batches=1),
        optimizer=AdamW(learning_rate=0.1, weight_decay=0.1),
        training=Training(steps=3),
    )
    before = start(run)
    after, _ = jit(train_chunk, static_argnums=3)(before, run, run.task.load(), 3)
    same = jax.tree.map(np.array_equal, before.params, after.params)
    assert same.embedding.tokens == frozen
    assert not same.head.matrix
    assert not same.final_norm.gain


@pytest.mark.parametrize("class_token", [False, True])
def test_patches_are_a_strided_convolution(class_token):
    kind = Patches(height=6, width=10, size=2, channels=3, class_token=class_token)
    config = BASE.replace(inputs=kind, positions=NoPositions(), layers=0)
    params, images = weights(config), normal(B, 6, 10, 3)
    _, kept = see(params, config, images)
    kernel = params.embedding.matrix.reshape(2, 2, 3, 15)
    convolved = jax.lax.conv_general_dilated(
        images, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    assert kept.embedded.shape == (B, kind.count, 15)
    close(kept.embedded[:, int(class_token) :], convolved.reshape(B, 15, 15) + params.embedding.matrix_bias[None, None])


def test_vectors_are_mapped_one_by_one():
    config = BASE.replace(inputs=Vectors(width=5), positions=NoPositions(), layers=0)
    params, x = weights(config), normal(B, T, 5)
    _, kept = see(params, config, x)
    close(kept.embedded, exact(x) @ exact(params.embedding.matrix) + exact(params.embedding.matrix_bias))


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3), (7, 2, 5, 3)])
def test_softmax_is_over_the_last_axis_and_commutes_with_permutations(shape):
    x = normal(*shape, std=2.0)
    mask = jnp.ones(shape, bool)
    close(masked_softmax(x, mask), softmax(exact(x)))
    close(masked_softmax(x[..., ::-1, :], mask), masked_softmax(x, mask)[..., ::-1, :])
    close(masked_softmax(x[..., ::-1], mask), masked_softmax(x, mask)[..., ::-1])


def test_outputs_are_convex_combinations_of_values():
    query, key, value = normal(T, 3, 5, std=3.0), normal(11, 3, 5, seed=1), normal(11, 3, 2, seed=2)
    given = attention_weights(query, key)
    assert (given >= 0).all()
    close(given.sum(-1), np.ones((3, T)))
    mixed = attend(query, key, value)
    assert (mixed <= value.max(0)[None] + 1e-6).all()
    assert (mixed >= value.min(0)[None] - 1e-6).all()


@pytest.mark.parametrize(("exponent", "expected"), [(0.5, [3.67, 3.67, 3.67]), (0.0, [1.3, 0.57, 0.26])])
def test_scaled_logits_keep_their_entropy_at_any_width(exponent, expected):
    found = []
    for width in (16, 64, 256):
        query, key = normal(257, 1, width), normal(64, 1, width, seed=1)
        found.append(entropy(attention_weights(query, key, scale=float(width) ** -exponent)))
    np.testing.assert_allclose(found, expected, atol=0.12)


def test_a_sharp_look_up_takes_the_nearest_value_and_averages_ties():
    key = normal(5, 1, 3).at[4].set(normal(5, 1, 3)[1])  # keys 1 and 4 are the same
    value = normal(5, 1, 2, seed=1)
    nearest = attend(key[:3], key / jnp.linalg.norm(key, axis=-1, keepdims=True), value, scale=1e4)
    close(nearest[0], value[0])
    close(nearest[1], (value[1] + value[4]) / 2)
    close(nearest[2], value[2])


@pytest.mark.parametrize("shared", [True, False])
def test_shared_query_and_key_map_gives_symmetric_logits(shared):
    config = BASE.replace(mask_pattern="bidirectional", attention=Attention(heads=3, share_query_key=shared))
    _, kept = see(weights(config), config, words(1, T))
    # log A is a symmetric matrix and a number a row: around any three places its asymmetry adds up to nothing.
    asymmetry = np.log(kept.blocks[0].attention.weights[0, 0])
    asymmetry = asymmetry - asymmetry.T
    around = asymmetry[0, 1] + asymmetry[1, 2] + asymmetry[2, 0]
    assert abs(around) < 1e-5 if shared else abs(around) > 1e-2


def test_the_full_value_form_is_concatenation_and_a_matrix_with_v_h_o_h():
    factored = BASE.replace(attention=Attention(heads=3, bias=False))
    params = weights(factored)
    attention = params.blocks[0].attention
    merged = jnp.einsum("dnv,nvm->dnm", attention.value, attention.out)
    assert all(np.linalg.matrix_rank(merged[:, h], tol=1e-4) == 5 for h in range(3))
    block = params.blocks[0].replace(attention=attention.replace(value=merged, out=None))
    full = replace_at(factored, {"attention.value_form": "full"})
    close(
        forward(params.replace(blocks=(block,)), full, words(B, T)), forward(params, factored, words(B, T)), atol=1e-4
    )
    assert count(specs(full)) - count(specs(factored)) == 3 * 15**2 - 2 * 15**2


@pytest.mark.parametrize("sharing", ["loop", "group"])
def test_one_block_can_serve_every_layer(sharing):
    config = BASE.replace(layers=3, distinct_blocks=1, sharing=sharing)
    params = weights(config)
    assert count(specs(config)) == count(specs(BASE.replace(layers=1)))
    repeated = params.replace(blocks=3 * params.blocks)
    own = BASE.replace(layers=3)
    close(forward(params, config, words(B, T)), forward(repeated, own, words(B, T)))


def test_the_products_of_a_head_have_the_rank_of_its_width():
    config = BASE.replace(attention=NO_BIAS.replace(heads=3), **BARE)
    params = weights(config)
    _, kept = see(params, config, jnp.arange(V)[None])
    attention = params.blocks[0].attention
    for h in range(3):
        logits = kept.embedded[0] @ attention.query[:, h] @ attention.key[:, h].T @ kept.embedded[0].T
        assert logits.shape == (V, V)
        assert np.linalg.matrix_rank(logits, tol=1e-3) == 5


def test_word_order_is_visible_only_with_positions_or_two_causal_layers():
    told_apart = {}
    for name, config in {
        "no order": BASE.replace(mask_pattern="bidirectional", positions=NoPositions()),
        "positions": BASE.replace(mask_pattern="bidirectional"),
        "one causal layer": BASE.replace(positions=NoPositions()),
        "two causal layers": BASE.replace(positions=NoPositions(), layers=2),
    }.items():
        said = forward(weights(config), config, jnp.concatenate([OVEN, BREAD]))[:, -1]
        told_apart[name] = bool(np.abs(said[0] - said[1]).max() > 1e-4)
    # One causal layer says of the last word what it says in any order of the words before: it sees them all.
    assert told_apart == {"no order": False, "positions": True, "one causal layer": False, "two causal layers": True}


@pytest.mark.parametrize("mask_pattern", ["bidirectional", "causal"])
def test_e29_equal_vectors_cannot_be_counted_without_positions_or_a_first_token(mask_pattern):
    """A causal mask breaks the symmetry, and yet no y_n = n · x_n of a constant sequence comes of it."""
    config = BASE.replace(mask_pattern=mask_pattern, positions=NoPositions())
    params, constant = weights(config), jnp.full((1, T), 3)
    close(forward(params, config, constant), jnp.broadcast_to(forward(params, config, constant)[:, :1], (1, T, V)))
    started = forward(params, config, constant.at[0, 0].set(5))[0, 1:]
    apart = np.abs(np.diff(started, axis=0)).max(-1)
    assert (apart > 1e-3).all() if mask_pattern == "causal" else (apart < 1e-4).all()


def test_a_concatenated_index_is_the_first_number_and_has_no_bound():
    config = BASE.replace(positions=ConcatenatedIndex(scale=0.5), layers=0)
    params = weights(config)
    _, kept = see(params, config, jnp.zeros((1, 101), int))
    close(kept.embedded[0, :, 0], 0.5 * jnp.arange(101))
    assert params.embedding.tokens.shape == (V, 14)
    assert np.abs(sinusoidal(jnp.arange(101), 15)).max() <= 1 < kept.embedded.max() / 40


@pytest.mark.parametrize("norm", PLACEMENTS.values(), ids=PLACEMENTS)
def test_a_norm_stands_where_its_placement_says(norm):
    config = BASE.replace(norm=norm, norm_kind=LayerNorm(affine="none"))
    _, kept = see(weights(config), config, words(B, T))
    stream = kept.embedded
    for block in kept.blocks:
        for branch in (block.attention, block.feed_forward):
            close(branch.input, layer_norm(stream) if norm.pre else stream)
            if norm.post_branch:
                close(branch.update.mean(-1), np.zeros((B, T)))
                close(branch.update.std(-1), np.ones((B, T)), atol=1e-3)
            stream = stream + branch.update
            stream = layer_norm(stream) if norm.post_residual else stream
            close(branch.stream, stream)
    close(kept.final, layer_norm(stream) if norm.final else stream)


def test_zero_residual_branch_is_the_identity_with_gradient_one():
    config = BASE.replace(
        inputs=Vectors(width=15), positions=NoPositions(), norm=NormPlacement(pre=True), head=NoHead()
    )
    params = weights(config)
    silent = [
        jax.tree.map(lambda w: jnp.zeros_like(w), {"attention": block.attention, "feed_forward": block.feed_forward})
        for block in params.blocks
    ]
    blocks = tuple(block.replace(**zeros) for block, zeros in zip(params.blocks, silent, strict=True))
    embedding = params.embedding.replace(matrix=jnp.eye(15), matrix_bias=jnp.zeros(15))
    params, x = params.replace(blocks=blocks, embedding=embedding), normal(1, T, 15)
    output = forward(params, config, x)
    close(output, x)
    gradient = jit(jax.grad(lambda x: apply(params, config, x).sum()))(x)
    close(gradient, np.ones((1, T, 15)))
    assert not np.asarray(forward(params, config.replace(feed_forward_residual=False), x)).any()


def test_batch_norm_mixes_the_sequences_of_a_batch_in_training_alone():
    config = BASE.replace(norm_kind=BatchNorm())
    params, tokens = weights(config), words(B, T)
    other = tokens.at[1].set((tokens[1] + 1) % V)
    key = jax.random.key(2)
    train = lambda tokens: forward(params, config, tokens, dropout_key=key)[0]  # noqa: E731
    assert np.abs(train(tokens) - train(other)).max() > 1e-3
    np.testing.assert_array_equal(forward(params, config, tokens)[0], forward(params, config, other)[0])
    with pytest.raises(ValueError, match="BatchNorm trains on 1 token"):
        apply(params, config, tokens[:1, :1], dropout_key=key)


def test_the_feed_forward_layer_is_the_same_for_every_token():
    params, tokens = weights(BASE), words(B, T)
    _, kept = see(params, BASE, tokens)
    ffn, x = jax.tree.map(exact, params.blocks[0].feed_forward), exact(kept.blocks[0].feed_forward.input)
    for place in np.ndindex(B, T):
        expected = np.maximum(x[place] @ ffn.up + ffn.up_bias, 0) @ ffn.down + ffn.down_bias
        close(kept.blocks[0].feed_forward.update[place], expected)


def test_every_bias_can_be_left_out_alone():
    counted = {"attention.bias": 3 * 15, "attention.out_bias": 15, "feed_forward.bias": 17 + 15}
    for path, numbers in counted.items():
        assert count(specs(BASE)) - count(specs(replace_at(BASE, {path: False}))) == numbers, path


def test_untrained_model_predicts_words_uniformly():
    config = ModelConfig(vocabulary=257, layers=1, d_model=64, feed_forward=Dense(d_ff=67))
    params, tokens = weights(config, moved=0), jax.random.randint(jax.random.key(1), (4, 33), 0, 257)
    # Xavier logits have a variance of 2 d_model / (d_model + V), which adds half of it to the uniform loss.
    spread = 2 * 64 / (64 + 257)
    logits = jax.nn.log_softmax(forward(params, config, tokens[:, :-1]))
    loss = -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1).mean()
    np.testing.assert_allclose(loss, np.log(257) + spread / 2, atol=0.15)


def test_cross_attention_reads_the_final_output_of_the_encoder():
    config = BASE.with_encoder(d_model=10, attention=Attention(heads=2))
    params, source = weights(config), jax.random.randint(jax.random.key(3), (B, 5), 0, V)
    told, kept = see(params, config, words(B, T), source=source)
    np.testing.assert_array_equal(told, see(params, config, words(B, T), memory=kept.encoder.final)[0])
    earlier = kept.encoder.blocks[0].feed_forward.stream
    assert np.abs(told - see(params, config, words(B, T), memory=earlier)[0]).max() > 1e-3


RECURRENT = recurrent_model(Elman(), d_model=16, inputs=Vectors(width=16), head=NoHead())
ATTENTIVE = ModelConfig(d_model=16, attention=Attention(heads=2), layers=1, inputs=Vectors(width=16), head=NoHead())


@pytest.mark.parametrize("length", [5, 11])
def test_a_recurrent_network_takes_as_many_steps_as_tokens_and_attention_one(length):
    program = lambda config: str(jax.make_jaxpr(apply)(weights(config), config, jnp.ones((length, 16))))  # noqa: E731
    assert f"length={length}" in program(RECURRENT)
    assert "scan[" not in program(ATTENTIVE)
    assert "while[" not in program(ATTENTIVE)


def reach(config, length):
    """How much the last output changes with the first input, relative to with the last one."""
    last = jax.grad(lambda x, params: apply(params, config, x)[-1] @ normal(16, seed=3))
    gradient = np.linalg.norm(jit(last)(normal(length, 16), weights(config, 0)), axis=-1)
    return gradient[0] / gradient[-1]


def test_gradient_of_the_first_token_vanishes_in_recurrent_networks_not_in_attention():
    near, far = reach(RECURRENT, 4), reach(RECURRENT, 64)
    assert far < 1e-4 * near
    assert reach(ATTENTIVE, 64) > 1e-3


# --- the page ----------------------------------------------------------------------------------------------

ROOT = Path(flaxformer.__file__).parents[1]
PAGE = (Path(flaxformer.__file__).parent / "claims" / "FOUNDING_TEXTS.md").read_text()


def rows(heading):
    """The cells of every row of the table under a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


ERRATA, MECHANISMS = rows("Errata"), rows("Mechanisms")


def test_every_erratum_and_every_mechanism_has_its_row_and_its_test():
    assert [row[0] for row in ERRATA] == [f"E{n}" for n in range(1, 30)]
    assert [row[0] for row in MECHANISMS] == [str(n) for n in range(1, 64)]
    for row in ERRATA:
        assert len(row) == 6, row
        assert "::test_" in row[-1], row
    for row in MECHANISMS:
        assert len(row) == 5, row
        assert "::test_" in row[-1], row


def test_every_test_and_every_file_that_the_page_names_is_there():
    missing = []
    for path, _, name in re.findall(r"`([\w./]+\.(?:py|md|npz))(::(\w+))?`", PAGE):
        there = (ROOT / path).exists()
        if not there or (name and name not in functions(path)):
            missing.append(f"{path}::{name}" if name else path)
    assert not missing, missing


@functools.cache
def functions(path):
    return {n.name for n in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(n, ast.FunctionDef)}


def test_every_test_of_this_file_is_on_the_page():
    own = {name for name in functions("tests/test_founding_texts.py") if name.startswith("test_")}
    about_the_page = {name for name in own if "page" in name or "every_erratum" in name}
    unnamed = {name for name in own - about_the_page if f"tests/test_founding_texts.py::{name}`" not in PAGE}
    assert not unnamed


PACKAGE = Path(flaxformer.__file__).parent
ABSENT = [name for row in rows("Not implemented") for name in re.findall(r"`(\w+)`", row[-1])]


def plain(name):
    return name.lower().replace("_", "")


@functools.cache
def defined_names():
    """Every module, class, function, argument, field and variable of the package, in lower case without underscores."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        found.add(plain(path.stem))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(plain(node.name))
            elif isinstance(node, ast.arg):
                found.add(plain(node.arg))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(plain(node.id))
    return found


def test_what_the_page_calls_not_implemented_is_not():
    assert len(ABSENT) > len(rows("Not implemented")) > 0
    assert [name for name in ABSENT if any(plain(name) in own for own in defined_names())] == []


@pytest.mark.parametrize("name", ["dot_product_attention", "Transformer", "scale_exponent", "corrupted", "memory"])
def test_the_names_of_the_page_would_be_found(name):
    assert plain(name) in defined_names()


def test_the_page_says_only_in_one_place_what_is_missing():
    before = PAGE.split("## Not implemented")[0].split("## Errata")[1]
    assert re.findall(r"not there|not implemented|not yet|later, |measured later", before) == []


SETTINGS = re.findall(r"`((?:\w+Config\(|recurrent_model\(|[a-z_]+=)[^`]*)`", PAGE)


@pytest.mark.every(21, "long")
@pytest.mark.parametrize("setting", sorted(set(SETTINGS)))
def test_every_config_line_of_the_page_is_one(setting):
    names = {name: getattr(flaxformer, name) for name in dir(flaxformer)}
    if re.match(r"\w+\(", setting):
        assert eval(setting, dict(names))
    else:
        assert isinstance(ModelConfig().replace(**eval(f"dict({setting})", dict(names))), ModelConfig)
