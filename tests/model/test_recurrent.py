"""Recurrent cells against torch and their formulas, alone and in blocks, in decoding and in training.

The numbers of torch come from tests/golden/make_torch_recurrent_golden.py; if torch is installed, they are also
computed again.
"""

import functools
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer import model
from flaxformer.components import (
    GRU,
    LSTM,
    Alibi,
    Attention,
    Classifier,
    Dense,
    Elman,
    Embeddings,
    LanguageModel,
    NoHead,
    NoPositions,
    TokenMixer,
    Tokens,
    Vectors,
)
from flaxformer.config import Block, ModelConfig, recurrent_model
from flaxformer.core.params import stack, table
from flaxformer.core.weight_axes import decay_mask
from flaxformer.model.decoding import generate
from flaxformer.model.weights import with_layout
from flaxformer.nn import Causal, layer_norm
from flaxformer.system.errors import UserError
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training, start, train_chunk

B, T, V, D, W = 2, 7, 13, 5, 3  # distinct primes, so that a swapped axis fails
GOLDEN = Path(__file__).parents[1] / "golden"
SHAPE = {"vocabulary": V, "layers": 2, "d_model": D}
CELLS = {"elman": Elman(), "gru": GRU(), "lstm": LSTM()}
MODELS = {name: recurrent_model(cell, **SHAPE) for name, cell in CELLS.items()}
ELMAN, GATED, LONG = MODELS.values()
HYBRID = ModelConfig(
    vocabulary=V,
    layers=4,
    d_model=D,
    attention=Attention(heads=1),
    pattern=(Block(attention=GRU()), Block()),
    feed_forward=Dense(d_ff=11),
    positions=NoPositions(),
)
BLOCKS = {  # cells in blocks with norms, skip connections and a feed-forward network
    "lstm": HYBRID.replace(pattern=(), attention=LSTM(), layers=2),
    "gru and attention": HYBRID,
    "elman and lstm": HYBRID.replace(pattern=(Block(attention=Elman()), Block(attention=LSTM()))),
}
cells = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
in_some_layout = pytest.mark.parametrize(
    ("config", "layout"),
    [(ELMAN, "unrolled"), (GATED, "scanned"), (LONG, "unrolled")],
    ids=["elman", "gru scanned", "lstm"],
)
in_both_layouts = pytest.mark.parametrize("layout", ["unrolled", "scanned"])
blocks = pytest.mark.parametrize("config", BLOCKS.values(), ids=BLOCKS)
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
forward, forward_with_stages, extend = map(jax.jit, (model.apply, model.apply_with_intermediates, model.extend))
SIGMAS = {"tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0)}


@functools.cache
def model_and_tokens(config, layout="unrolled"):
    """Return weights without initial zeros, so that biases have an effect, and tokens [B, T] below V − 1."""
    params = model.init(jax.random.key(0), config)
    params = jax.tree.map(lambda w: w + 0.1 * jax.random.normal(jax.random.key(w.size), w.shape), params)
    return with_layout(params, layout), jax.random.randint(jax.random.key(1), (B, T), 0, V - 1)


def cells_of(params):
    """Return the weights of the cell of each layer."""
    return [block.attention for block in params.blocks]


def elman(layer, x, activation):
    """Return h_t = σ(W h_{t−1} + U x_t + b) token by token in float64, from x [B, T, D] to h of the same shape."""
    weights = jax.tree.map(lambda w: np.asarray(w, np.float64), layer)
    matrix, inputs = weights.recurrent[:, 0].T, weights.input[:, 0].T  # W and U map columns
    hidden = np.zeros(x.shape)
    for row, t in np.ndindex(*x.shape[:2]):
        before = hidden[row, t - 1] if t else np.zeros(x.shape[-1])
        hidden[row, t] = SIGMAS[activation](matrix @ before + inputs @ np.asarray(x)[row, t] + weights.bias[0])
    return hidden


# --- the cells against torch and against the formula -------------------------------------------------------


@functools.cache
def stored():
    with np.load(GOLDEN / "torch_recurrent.npz", allow_pickle=False) as file:
        return dict(file)


@functools.cache
def live():
    pytest.importorskip("torch", reason="torch is not installed; the stored numbers are compared all the same")
    return runpy.run_path(str(GOLDEN / "make_torch_recurrent_golden.py"))["cases"](seed=1)


@pytest.fixture(params=["stored", "live"])
def golden(request):
    return {"stored": stored, "live": live}[request.param]()


def part(golden, prefix):
    """Return the arrays whose names begin with a prefix, without the prefix."""
    return {name.removeprefix(f"{prefix}/"): x for name, x in golden.items() if name.startswith(f"{prefix}/")}


def from_torch(weights, index, cell):
    """Convert a layer of torch, which has matrices [gates · out, in] and two biases that are added."""
    gates, width = {"elman": 1, "gru": 3, "lstm": 4}[cell], weights["weight_hh_l0"].shape[1]
    maps = [weights[f"weight_{kind}_l{index}"].T.reshape(width, gates, width) for kind in ("ih", "hh")]
    biases = [weights[f"bias_{kind}_l{index}"].reshape(gates, width).copy() for kind in ("ih", "hh")]
    more = {}
    if cell == "gru":
        more["candidate_bias"], biases[1][2] = biases[1][2].copy(), 0
    kind = {"elman": Elman, "gru": GRU, "lstm": LSTM}[cell]
    return kind.Weights(input=maps[0], recurrent=maps[1], bias=biases[0] + biases[1], **more)


@jax.jit
def outcome_and_gradients(params, config, x, cotangent):
    """Return output, last states, and the gradients with respect to the weights and x."""

    def scored(params, x):
        outcome = model.run(params, config, x, {}, cache=model.new_cache(params, config, x.shape[:1], 0))
        return (outcome.output * cotangent).sum(), (outcome.output, outcome.cache.layers)

    gradients, found = jax.grad(scored, argnums=(0, 1), has_aux=True)(params, x)
    return *found, *gradients


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["elman-tanh", "elman-relu", "gru", "lstm"])
def test_two_recurrent_layers_equal_torch(golden, name):
    cell, _, activation = name.partition("-")
    mixer = Elman(activation=activation) if activation else CELLS[cell]
    weights, expected, x = part(golden, f"{name}/weights"), part(golden, f"{name}/gradients"), golden["x"]
    like_torch = {"inputs": Embeddings(), "head": NoHead(), "d_model": x.shape[-1], "layers": 2}
    config = recurrent_model(mixer, **like_torch)
    params = model.init(jax.random.key(0), config)
    layers = [jax.tree.map(jnp.asarray, from_torch(weights, i, cell)) for i in range(2)]
    blocks = tuple(own.replace(attention=layer) for own, layer in zip(params.blocks, layers, strict=True))
    params = params.replace(blocks=blocks)
    output, states, gradients, x_gradient = outcome_and_gradients(params, config, x, golden["cotangent"])

    close(output, golden[f"{name}/output"])
    for i, state in part(golden, f"{name}/state").items():
        close(jnp.stack([layer.attention[int(i)] for layer in states]), state)
    close(x_gradient, expected["x"])
    for index, gradient in enumerate(cells_of(gradients)):
        torchs = from_torch(expected, index, cell)
        close(gradient.input, torchs.input)
        close(gradient.recurrent, torchs.recurrent)
        close(gradient.bias.reshape(-1), expected[f"bias_ih_l{index}"])
        if cell == "gru":
            close(gradient.candidate_bias, torchs.candidate_bias)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_the_elman_language_model_equals_its_formula(activation):
    config = ELMAN.replace(attention=Elman(activation=activation), head=LanguageModel(bias=True))
    params, tokens = model_and_tokens(config)
    x = params.embedding.tokens[tokens]
    for layer in cells_of(params):
        x = elman(layer, x, activation)
    close(
        forward(params, config, tokens), x @ np.asarray(params.head.matrix) + np.asarray(params.head.bias)[None, None]
    )


@cells
def test_half_precision_weights_give_a_half_precision_state(config):
    params, tokens = model_and_tokens(config)
    half = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, jnp.bfloat16), params)

    def read(params):
        return model.extend(params, config, tokens, model.new_cache(params, config, (B,), T))

    logits, cache = jax.eval_shape(read, half)
    assert {x.dtype for x in jax.tree.leaves(cache.layers)} == {jnp.dtype(jnp.bfloat16)}
    assert logits.dtype == jnp.float32  # the answer is wide, as its loss is


# --- the laws ----------------------------------------------------------------------------------------------


@pytest.mark.every(2, "long")
@cells
def test_the_gradient_reaches_exactly_the_earlier_tokens(config):
    config = config.replace(inputs=Embeddings())
    params, _ = model_and_tokens(config, "scanned")
    x = jax.random.normal(jax.random.key(2), (T, D))
    mixture = jax.random.normal(jax.random.key(3), (V,))
    jacobian = jax.jit(jax.jacrev(lambda x: model.apply(params, config, x) @ mixture))(x)
    t, s = np.mgrid[:T, :T]
    assert ((np.abs(jacobian).sum(-1) > 0) == (s <= t)).all()


@jax.jit
def logits_and_gradient(params, config, inputs, valid):
    def scored(params):
        logits = model.apply(params, config, inputs, valid=valid)
        return jnp.square(jnp.where(valid[..., None], logits, 0)).sum(), logits

    return jax.grad(scored, has_aux=True)(params)[::-1]


PLACES = {"right": [0, 1, 2, 3], "left": [3, 4, 5, 6], "within": [0, 2, 3, 6]}


@pytest.mark.every(3)
@in_some_layout
def test_nan_padding_reaches_no_output_and_no_gradient_of_cells(config, layout):
    params, tokens = model_and_tokens(config, layout)
    rotten = params.embedding.tokens.at[V - 1].set(jnp.nan)
    params = params.replace(embedding=params.embedding.replace(tokens=rotten))
    for places in map(jnp.array, PLACES.values()):
        padded = jnp.full((B, T), V - 1).at[:, places].set(tokens[:, places])
        check_padding(params, config, padded, places)


def test_nan_padding_of_vectors_reaches_no_gradient():
    config = ELMAN.replace(inputs=Vectors(width=W), layers=1)
    params, _ = model_and_tokens(config)
    places = jnp.array(PLACES["within"])
    inputs = jax.random.normal(jax.random.key(2), (B, T, W))
    check_padding(params, config, jnp.full_like(inputs, jnp.nan).at[:, places].set(inputs[:, places]), places)


def check_padding(params, config, padded, places):
    valid = jnp.zeros((B, T), bool).at[:, places].set(True)
    logits, gradient = logits_and_gradient(params, config, padded, valid)
    alone, expected = logits_and_gradient(params, config, padded[:, places], valid[:, places])
    assert np.isfinite(alone).all()
    close(logits[:, places], alone)
    for g, e in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-4)
        assert float(jnp.abs(e).max()) > 0


def test_pooled_output_does_not_depend_on_padding():
    config = ELMAN.replace(head=Classifier(classes=3, pool="mean"))
    params, tokens = model_and_tokens(config)
    valid = jnp.broadcast_to((jnp.arange(T) >= 2) & (jnp.arange(T) < 6), (B, T))
    close(forward(params, config, tokens, valid=valid), forward(params, config, tokens[:, 2:6]))


@in_some_layout
def test_decoding_in_parts_equals_the_forward_pass(config, layout):
    check_pieces(config, layout)


def check_pieces(config, layout):
    params, tokens = model_and_tokens(config, layout)
    valid = jnp.ones((B, T), bool).at[0, :3].set(False).at[1, 5:].set(False)
    cache, pieces, done = model.new_cache(params, config, (B,), T), [], 0
    for length in (3, 1, 3):
        here = slice(done, done + length)
        logits, cache = extend(params, config, tokens[:, here], cache, valid=valid[:, here])
        pieces, done = [*pieces, logits], done + length
    assert cache.used == T
    np.testing.assert_array_equal(cache.count, valid.sum(-1))
    expected = forward(params, config, tokens, valid=valid)
    close(jnp.where(valid[..., None], jnp.concatenate(pieces, axis=1) - expected, 0), jnp.zeros_like(expected))


@in_some_layout
def test_the_cache_of_recurrent_cells_has_constant_size(config, layout):
    params, tokens = model_and_tokens(config, layout)
    small, large = (model.new_cache(params, config, (B,), capacity) for capacity in (1, 1000))
    shapes = [leaf.shape for leaf in jax.tree.leaves(small)]
    assert shapes == [leaf.shape for leaf in jax.tree.leaves(large)]
    assert small.capacity is None
    for _ in range(3):
        logits, small = extend(params, config, tokens, small)
    assert shapes == [leaf.shape for leaf in jax.tree.leaves(small)]
    close(logits, forward(params, config, jnp.tile(tokens, (1, 3)))[:, -T:])


def test_the_cache_of_a_model_with_attention_has_a_limit():
    params, tokens = model_and_tokens(HYBRID)
    with pytest.raises(ValueError, match="0 of 3 positions are used; 7 more tokens do not fit"):
        model.extend(params, HYBRID, tokens, model.new_cache(params, HYBRID, (B,), 3))


@pytest.mark.parametrize("config", [GATED, LONG.replace(dropout=0.3)], ids=["gru", "lstm with dropout"])
def test_scanned_layers_equal_unrolled_ones(config):
    tokens, key = model_and_tokens(config)[1], jax.random.key(4)
    unrolled, scanned = (model.init(jax.random.key(0), config, layout) for layout in ("unrolled", "scanned"))
    for index, layer in enumerate(unrolled.blocks):
        jax.tree.map(lambda one, whole, i=index: np.testing.assert_array_equal(one, whole[i]), layer, scanned.blocks)
    jax.tree.map(close, *(forward_with_stages(p, config, tokens, dropout_key=key) for p in (unrolled, scanned)))


@in_some_layout
def test_recurrent_sequences_are_independent_and_need_no_batch_axis(config, layout):
    params, tokens = model_and_tokens(config, layout)
    other = tokens.at[1].set((tokens[1] + 1) % V)
    one, two = forward(params, config, tokens), forward(params, config, other)
    np.testing.assert_array_equal(one[0], two[0])
    assert not np.array_equal(one[1], two[1])
    close(forward(params, config, tokens[0]), one[0])


def test_intermediates_are_the_states_of_each_layer():
    config = ELMAN.replace(head=LanguageModel(tied=True), inputs=Tokens(std=1.0))
    params, tokens = model_and_tokens(config)
    logits, kept = forward_with_stages(params, config, tokens)
    first, second = (block.attention for block in kept.blocks)
    np.testing.assert_array_equal(kept.embedded, params.embedding.tokens[tokens])
    close(first.update, elman(cells_of(params)[0], kept.embedded, "tanh"))
    close(second.update, elman(cells_of(params)[1], first.update, "tanh"))
    np.testing.assert_array_equal(second.input, first.update)
    np.testing.assert_array_equal(kept.final, second.update)
    close(logits, kept.final @ params.embedding.tokens.T)


def test_dropout_acts_between_layers_and_never_between_tokens():
    config = ELMAN.replace(dropout=0.5, attention=Elman(activation="relu"))
    params, tokens = model_and_tokens(config)
    # All outputs of the first layer are positive, and the second layer repeats its input.
    first, zero = cells_of(params)[0], jnp.zeros((D, 1, D))
    first = first.replace(bias=jnp.full((1, D), 9.0), recurrent=0.01 * first.recurrent)
    second = Elman.Weights(input=jnp.eye(D).reshape(zero.shape), recurrent=zero, bias=jnp.zeros((1, D)))
    blocks = tuple(own.replace(attention=cell) for own, cell in zip(params.blocks, (first, second), strict=True))
    _, kept = forward_with_stages(params.replace(blocks=blocks), config, tokens, dropout_key=jax.random.key(5))
    updates = [block.attention.update for block in kept.blocks]
    embedded, between, final = map(np.asarray, (kept.embedded, *updates))

    close(embedded, np.where(embedded == 0, 0, 2 * np.asarray(params.embedding.tokens[tokens])))
    hidden = elman(first, embedded, "relu")
    assert (hidden > 0).all()
    close(between, np.where(between == 0, 0, 2 * hidden))
    close(final, np.where(final == 0, 0, 2 * between))
    stays = between > 0
    for dropped in (embedded == 0, ~stays, final[stays] == 0):
        assert 0.3 < dropped.mean() < 0.7
    assert ((embedded == 0) != ~stays).any()
    np.testing.assert_array_equal(final, kept.final)


@cells
def test_weight_declarations_of_recurrent_models(config):
    params, _ = model_and_tokens(config)
    shapes = {name: spec.shape for name, spec in table(model.specs(config))}
    assert [w.shape for w in jax.tree.leaves(params)] == list(shapes.values())
    gates = {Elman: 1, GRU: 3, LSTM: 4}[type(config.attention)]
    spec = model.specs(config).blocks[1].attention.recurrent
    assert (spec.shape, spec.fan_in, spec.fan_out) == ((D, gates, D), D, gates * D)
    decayed = decay_mask(params)
    assert {name for name, own in zip(shapes, jax.tree.leaves(decayed), strict=True) if own} == {
        *(f"blocks/{i}/attention/{name}" for i in range(2) for name in ("input", "recurrent")),
        "head/matrix",
    }


def test_models_can_be_vmapped_over_weights():
    tokens = model_and_tokens(LONG)[1]
    members = tuple(model.init(jax.random.key(seed), LONG) for seed in range(3))
    mapped = jax.jit(jax.vmap(model.apply, (0, None, None)))(stack(members), LONG, tokens)
    one_by_one = [forward(params, LONG, tokens) for params in members]
    np.testing.assert_allclose(mapped, one_by_one, rtol=1e-4, atol=1e-5)


# --- in blocks with other components ----------------------------------------------------------------------


@pytest.mark.slow
@blocks
def test_scanned_blocks_equal_unrolled_ones(config):
    config, key = config.replace(dropout=0.3), jax.random.key(4)
    params, tokens = model_and_tokens(config)
    scanned = with_layout(params, "scanned")
    assert not isinstance(scanned.blocks, tuple)
    jax.tree.map(close, *(forward_with_stages(p, config, tokens, dropout_key=key) for p in (params, scanned)))


@pytest.mark.every(6)
@in_both_layouts
@blocks
def test_decoding_a_block_in_parts_equals_the_forward_pass(config, layout):
    check_pieces(config, layout)


@pytest.mark.slow
@blocks
def test_padding_in_a_block_reaches_no_output(config):
    params, tokens = model_and_tokens(config)
    for name, places in PLACES.items():
        places = jnp.array(places)
        valid = jnp.zeros((B, T), bool).at[:, places].set(True)
        padded = jnp.full((B, T), V - 1).at[:, places].set(tokens[:, places])
        alone = forward(params, config, tokens[:, places])
        close(forward(params, config, padded, valid=valid)[:, places], alone)
        assert name == "right" or np.abs(forward(params, config, padded)[:, places] - alone).max() > 1e-3


def test_a_block_with_a_cell_equals_its_equation():
    """x + h(norm(x)), before the feed-forward network."""
    config = BLOCKS["elman and lstm"]
    params, tokens = model_and_tokens(config)
    _, kept = forward_with_stages(params, config, tokens)
    branch, norm = kept.blocks[0].attention, params.blocks[0].attention_connection.pre
    close(branch.input, layer_norm(kept.embedded, norm.gain, norm.bias))
    close(branch.update, elman(cells_of(params)[0], branch.input, "tanh"))
    close(branch.stream, kept.embedded + branch.update)


def test_position_schemes_use_the_heads_of_attention_in_a_pattern():
    """The same layers, with either mixer as the attention of the model."""
    attention = Attention(heads=2, d_head=4)
    first = HYBRID.replace(positions=Alibi(), attention=LSTM(), pattern=(Block(), Block(attention=attention)))
    second = first.replace(attention=attention, pattern=(Block(attention=LSTM()), Block()))
    params, tokens = model_and_tokens(first)
    expected = forward(params, second, tokens)
    np.testing.assert_array_equal(forward(params, first, tokens), expected)
    assert np.abs(expected - forward(params, first.replace(positions=NoPositions()), tokens)).max() > 1e-3


# --- rejected arguments, and arguments without effect ------------------------------------------------------


class Average(TokenMixer):
    """Mean of a token and those before it, without a decoding state."""

    reads_mask = False

    def apply(self, weights, x, context):
        """Return Σ_{s ≤ t} x_s / t over tokens that are not padding."""
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        total, count = jnp.cumsum(jnp.where(valid[..., None], x, 0), -2), jnp.cumsum(valid, -1)
        return total / jnp.maximum(count, 1)[..., None]


MASKLESS = {
    "attention is LSTM": LONG,
    "attention is Average": LONG.replace(attention=Average()),
    "pattern.0.attention is GRU": HYBRID,
}


@pytest.mark.parametrize("name", MASKLESS)
def test_a_mixer_without_mask_rejects_a_mask(name):
    config = MASKLESS[name]
    params, tokens = model_and_tokens(config)
    with pytest.raises(UserError, match=f"mask is given, and {name}, which reads no mask; expected None"):
        model.apply(params, config, tokens, mask=Causal())
    forward(params, config, tokens, mask=None)


@pytest.mark.parametrize("mask_pattern", ["bidirectional", "prefix"])
@pytest.mark.parametrize("name", MASKLESS)
def test_a_mixer_without_mask_needs_a_causal_mask_pattern(name, mask_pattern):
    kind = name.split()[-1]
    found = rf"mask_pattern is \"{mask_pattern}\"; expected \"causal\" with attention {kind}, which reads no mask"
    with pytest.raises(UserError, match=found):
        MASKLESS[name].replace(mask_pattern=mask_pattern)


def test_a_mixer_without_state_is_decoded_by_recomputing_the_prefix():
    check_pieces(MASKLESS["attention is Average"], "unrolled")


@pytest.mark.parametrize("name", ["source", "source_valid", "memory", "memory_valid"])
def test_a_model_without_cross_attention_rejects_a_source(name):
    params, tokens = model_and_tokens(ELMAN)
    with pytest.raises(ValueError, match=rf"needs neither source nor memory; given are \['{name}'\]"):
        model.apply(params, ELMAN, tokens, **{name: tokens})
    with pytest.raises(ValueError, match=rf"needs neither source nor memory; given are \['{name}'\]"):
        model.new_cache(params, ELMAN, (B,), T, **{name: tokens})


def test_positions_and_prefix_do_not_change_a_recurrent_model():
    params, tokens = model_and_tokens(ELMAN)
    given = {"prefix": jnp.array([3, 5]), "positions": jnp.broadcast_to(jnp.arange(T)[::-1], (B, T)), "mask": None}
    np.testing.assert_array_equal(forward(params, ELMAN, tokens, **given), forward(params, ELMAN, tokens))


def test_a_recurrent_decoder_needs_an_explicit_cross_attention():
    with pytest.raises(
        UserError, match=r"cross_attention is None with attention LSTM, .*expected cross_attention=Attention"
    ):
        LONG.replace(d_memory=W)
    config = LONG.replace(d_memory=W, cross_attention=Attention(heads=1))
    params, tokens = model_and_tokens(config)
    memory = jax.random.normal(jax.random.key(2), (B, 4, W))
    whole = forward(params, config, tokens, memory=memory)
    assert np.abs(whole - forward(params, config, tokens, memory=2 * memory)).max() > 1e-3
    cache = model.new_cache(params, config, (B,), 0, memory=memory)
    first, cache = extend(params, config, tokens[:, :3], cache)
    close(jnp.concatenate([first, extend(params, config, tokens[:, 3:], cache)[0]], axis=1), whole)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ELMAN.replace(head=LanguageModel(tied=True), inputs=Embeddings()),
            r"head.tied is True; expected inputs",
        ),
        (lambda: ELMAN.replace(inputs=Tokens(shared=True)), r"inputs.shared is True; expected"),
        (lambda: GRU(activation="relu"), r"GRU has no field 'activation'"),
        (lambda: Elman(activation="gelu"), r"Elman.activation is 'gelu'"),
        (lambda: recurrent_model(LSTM(), heads=4), r"ModelConfig has no field 'heads'"),
    ],
    ids=["tied", "shared", "gru", "activation", "heads"],
)
def test_contradictory_recurrent_configs_are_rejected(make, message):
    with pytest.raises(UserError, match=message):
        make()


# --- decoding and training ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "layout"), [(GATED, "scanned"), (LONG, "unrolled")], ids=["gru", "lstm"])
def test_greedy_generation_of_recurrent_models(config, layout):
    params, _ = model_and_tokens(config, layout)
    prompt, valid = np.array([[0, 0, 3], [5, 2, 1]]), np.array([[False, False, True], [True, True, True]])
    steps = T - 3
    said = generate(params, config, prompt, steps=steps, valid=valid).tokens
    for row in range(2):
        length, tokens = int(valid[row].sum()), np.zeros((B, T), int)
        tokens[0, :length] = prompt[row][valid[row]]
        for place in range(length, length + steps):
            tokens[0, place] = forward(params, config, tokens)[0, place - 1].argmax()
        np.testing.assert_array_equal(said[row], tokens[0, length : length + steps])


TASK = Copy(symbols=3, length=2, batch_size=16, evaluation_batches=1)
TABLE = Tokens(frozen=True)
RUN = Run(
    model=ELMAN.replace(vocabulary=TASK.vocabulary, d_model=17, layers=1, inputs=TABLE),
    task=TASK,
    optimizer=AdamW(learning_rate=2e-2, decay="constant", weight_decay=0.01),
    training=Training(steps=150),
)
train = jax.jit(train_chunk, static_argnums=3)


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        pytest.param({}, "unrolled", marks=pytest.mark.slow),
        pytest.param({"attention": GRU(), "layers": 2, "inputs": Tokens()}, "scanned", marks=pytest.mark.slow),
        ({"attention": LSTM()}, "unrolled"),
    ],
    ids=CELLS,
)
def test_every_cell_learns_to_copy_with_a_frozen_table(changes, layout):
    run = RUN.replace(model=RUN.model.replace(**changes))
    before = start(run, layout)
    after, metrics = train(before, run, run.task.load(), run.training.steps)
    losses = np.asarray(metrics["loss"])
    assert after.diverged_at == -1
    assert losses[:5].mean() > 0.9
    assert losses[-10:].mean() < 0.2
    changed = jax.tree.map(lambda old, new: bool((old != new).any()), before.params, after.params)
    assert changed.embedding.tokens == (run.model.inputs != TABLE)
    assert all(jax.tree.leaves((changed.blocks, changed.head)))


def test_a_run_that_diverges_stops():
    run = RUN.replace(optimizer=RUN.optimizer.replace(learning_rate=1e38))
    after, metrics = train(start(run), run, run.task.load(), run.training.steps)
    assert after.diverged_at == 1
    assert np.isfinite(metrics["loss"][0])
    assert all(np.isfinite(w).all() for w in jax.tree.leaves(after.params))
    assert float(jnp.abs(after.params.head.matrix).max()) > 1e37


def test_a_task_that_does_not_fit_a_recurrent_model_is_rejected():
    assert not list(RUN.task.problems_with(RUN.model))
    with pytest.raises(UserError, match=r"model.vocabulary is 2"):
        RUN.replace(model=RUN.model.replace(vocabulary=2))
    with pytest.raises(UserError, match=r"model.encoder is None"):
        RUN.replace(task=TASK.replace(form="paired"))
