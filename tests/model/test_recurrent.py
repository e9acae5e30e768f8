"""The recurrent network against torch and its formula, under the laws that a Transformer keeps, and in training.

The numbers of torch come from tests/golden/make_torch_recurrent_golden.py; where torch is installed they are also made
afresh.
"""

import functools
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flaxformer.model.recurrent import Layer, with_layout

from flaxformer import model
from flaxformer.config import Classifier, LanguageModel, NoHead, RecurrentConfig, Stream, Tokens, Vectors
from flaxformer.model.decoding import generate
from flaxformer.nn import Causal
from flaxformer.params import stack, table
from flaxformer.struct import UserError
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training, start, train_chunk
from flaxformer.weight_axes import decay_mask

B, T, V, D, W = 2, 7, 13, 5, 3  # distinct primes, so that a swapped axis fails
GOLDEN = Path(__file__).parents[1] / "golden"
ELMAN = RecurrentConfig(vocabulary=V, layers=2, d_model=D)
GRU, LSTM = ELMAN.replace(cell="gru"), ELMAN.replace(cell="lstm")
CELLS = {"elman": ELMAN, "gru": GRU, "lstm": LSTM}
cells = pytest.mark.parametrize("config", CELLS.values(), ids=CELLS)
in_some_layout = pytest.mark.parametrize(
    ("config", "layout"),
    [(ELMAN, "unrolled"), (GRU, "scanned"), (LSTM, "unrolled")],
    ids=["elman", "gru scanned", "lstm"],
)
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
forward, forward_with_stages, extend = map(jax.jit, (model.apply, model.apply_with_intermediates, model.extend))
SIGMAS = {"tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0)}


@functools.cache
def model_and_tokens(config, layout="unrolled"):
    """Weights, moved away from their initial zeros so that no bias is invisible, and tokens [B, T] below V − 1."""
    params = model.init(jax.random.key(0), config)
    params = jax.tree.map(lambda w: w + 0.1 * jax.random.normal(jax.random.key(w.size), w.shape), params)
    return with_layout(params, layout), jax.random.randint(jax.random.key(1), (B, T), 0, V - 1)


def elman(layer, x, activation):
    """h_t = σ(W h_{t−1} + U x_t + b), one token after the other, in float64: x [B, T, D] to h of the same shape."""
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
    """What is below a prefix, by the rest of the name."""
    return {name.removeprefix(f"{prefix}/"): x for name, x in golden.items() if name.startswith(f"{prefix}/")}


def from_torch(weights, index, cell):
    """A layer of torch's, which keeps maps as [gates · out, in], and two biases to be added."""
    gates, width = {"elman": 1, "gru": 3, "lstm": 4}[cell], weights["weight_hh_l0"].shape[1]
    maps = [weights[f"weight_{kind}_l{index}"].T.reshape(width, gates, width) for kind in ("ih", "hh")]
    biases = [weights[f"bias_{kind}_l{index}"].reshape(gates, width).copy() for kind in ("ih", "hh")]
    candidate_bias = None
    if cell == "gru":
        candidate_bias, biases[1][2] = biases[1][2].copy(), 0
    return Layer(input=maps[0], recurrent=maps[1], bias=biases[0] + biases[1], candidate_bias=candidate_bias)


@jax.jit
def outcome_and_gradients(params, config, x, cotangent):
    """Output and last states, and the gradients of the weights and of x."""

    def scored(params, x):
        outcome = model.run(params, config, x, {}, cache=model.new_cache(params, config, x.shape[:1], 0))
        return (outcome.output * cotangent).sum(), (outcome.output, outcome.cache.layers)

    gradients, found = jax.grad(scored, argnums=(0, 1), has_aux=True)(params, x)
    return *found, *gradients


@pytest.mark.parametrize("name", ["elman-tanh", "elman-relu", "gru", "lstm"])
def test_two_layers_are_torch_s_two_layers(golden, name):
    cell, _, activation = name.partition("-")
    weights, expected, x = part(golden, f"{name}/weights"), part(golden, f"{name}/gradients"), golden["x"]
    like_torch = {"inputs": Stream(), "head": NoHead(), "d_model": x.shape[-1], "layers": 2}
    config = RecurrentConfig(cell=cell, activation=activation or "tanh", **like_torch)
    layers = tuple(jax.tree.map(jnp.asarray, from_torch(weights, i, cell)) for i in range(2))
    params = model.init(jax.random.key(0), config).replace(layers=layers)
    output, states, gradients, x_gradient = outcome_and_gradients(params, config, x, golden["cotangent"])

    close(output, golden[f"{name}/output"])
    for i, state in part(golden, f"{name}/state").items():
        close(jnp.stack([layer[int(i)] for layer in states]), state)
    close(x_gradient, expected["x"])
    for index, gradient in enumerate(gradients.layers):
        torchs = from_torch(expected, index, cell)
        close(gradient.input, torchs.input)
        close(gradient.recurrent, torchs.recurrent)
        close(gradient.bias.reshape(-1), expected[f"bias_ih_l{index}"])
        if cell == "gru":
            close(gradient.candidate_bias, torchs.candidate_bias)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_the_elman_language_model_is_its_formula(activation):
    config = ELMAN.replace(activation=activation, head=LanguageModel(bias=True))
    params, tokens = model_and_tokens(config)
    x = params.embedding.tokens[tokens]
    for layer in params.layers:
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


@cells
def test_the_gradient_sees_no_future_and_all_of_the_past(config):
    config = config.replace(inputs=Stream())
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


@in_some_layout
def test_padding_reaches_no_output_and_no_gradient_even_when_it_is_nan(config, layout):
    params, tokens = model_and_tokens(config, layout)
    rotten = params.embedding.tokens.at[V - 1].set(jnp.nan)
    params = params.replace(embedding=params.embedding.replace(tokens=rotten))
    for places in map(jnp.array, PLACES.values()):
        padded = jnp.full((B, T), V - 1).at[:, places].set(tokens[:, places])
        check_padding(params, config, padded, places)


def test_padding_of_nan_vectors_reaches_no_gradient_of_their_map():
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


def test_one_answer_a_sequence_is_of_its_real_tokens():
    config = ELMAN.replace(head=Classifier(classes=3, pool="mean"))
    params, tokens = model_and_tokens(config)
    valid = jnp.broadcast_to((jnp.arange(T) >= 2) & (jnp.arange(T) < 6), (B, T))
    close(forward(params, config, tokens, valid=valid), forward(params, config, tokens[:, 2:6]))


@in_some_layout
def test_what_is_read_in_pieces_is_what_is_read_at_once(config, layout):
    params, tokens = model_and_tokens(config, layout)
    valid = jnp.ones((B, T), bool).at[0, :3].set(False).at[1, 5:].set(False)
    cache, pieces, done = model.new_cache(params, config, (B,), T), [], 0
    for length in (3, 1, 3):
        here = slice(done, done + length)
        logits, cache = extend(params, config, tokens[:, here], cache, valid=valid[:, here])
        pieces, done = [*pieces, logits], done + length
    assert cache.used == T
    close(jnp.concatenate(pieces, axis=1), forward(params, config, tokens, valid=valid))


@pytest.mark.parametrize("config", [GRU, LSTM.replace(dropout=0.3)], ids=["gru", "lstm with dropout"])
def test_scanned_layers_equal_unrolled_ones(config):
    tokens, key = model_and_tokens(config)[1], jax.random.key(4)
    unrolled, scanned = (model.init(jax.random.key(0), config, layout) for layout in ("unrolled", "scanned"))
    for index, layer in enumerate(unrolled.layers):
        jax.tree.map(lambda one, whole, i=index: np.testing.assert_array_equal(one, whole[i]), layer, scanned.layers)
    jax.tree.map(close, *(forward_with_stages(p, config, tokens, dropout_key=key) for p in (unrolled, scanned)))


def test_auto_scans_deep_stacks():
    params, _ = model_and_tokens(ELMAN, "unrolled")
    deep = params.replace(layers=params.layers * 7)
    assert isinstance(with_layout(deep, "auto").layers, Layer)
    assert isinstance(with_layout(with_layout(deep, "auto"), "unrolled").layers, tuple)
    assert isinstance(with_layout(params, "auto").layers, tuple)
    nothing = ELMAN.replace(layers=0, head=NoHead())
    empty, tokens = model.init(jax.random.key(0), nothing, "scanned"), jnp.arange(T)
    np.testing.assert_array_equal(forward(empty, nothing, tokens), empty.embedding.tokens[:T])


@in_some_layout
def test_sequences_of_a_batch_do_not_meet_and_need_no_batch(config, layout):
    params, tokens = model_and_tokens(config, layout)
    other = tokens.at[1].set((tokens[1] + 1) % V)
    one, two = forward(params, config, tokens), forward(params, config, other)
    np.testing.assert_array_equal(one[0], two[0])
    assert not np.array_equal(one[1], two[1])
    close(forward(params, config, tokens[0]), one[0])


def test_the_intermediates_are_the_stages():
    config = ELMAN.replace(head=LanguageModel(tied=True))
    params, tokens = model_and_tokens(config)
    logits, kept = forward_with_stages(params, config, tokens)
    np.testing.assert_array_equal(kept.embedded, params.embedding.tokens[tokens])
    close(kept.layers[0], elman(params.layers[0], kept.embedded, "tanh"))
    close(kept.layers[1], elman(params.layers[1], kept.layers[0], "tanh"))
    np.testing.assert_array_equal(kept.final, kept.layers[1])
    close(logits, kept.final @ params.embedding.tokens.T)


def test_dropout_acts_on_what_goes_up_and_never_on_what_goes_on():
    config = ELMAN.replace(dropout=0.5, activation="relu")
    params, tokens = model_and_tokens(config)
    # The first layer says positive numbers alone, and the second repeats what it reads.
    first = params.layers[0].replace(bias=jnp.full((1, D), 9.0), recurrent=0.01 * params.layers[0].recurrent)
    zero = jnp.zeros((D, 1, D))
    second = Layer(input=jnp.eye(D).reshape(zero.shape), recurrent=zero, bias=jnp.zeros((1, D)))
    params = params.replace(layers=(first, second))
    _, kept = forward_with_stages(params, config, tokens, dropout_key=jax.random.key(5))
    embedded, hidden, repeated, final = map(np.asarray, (kept.embedded, *kept.layers, kept.final))

    close(embedded, np.where(embedded == 0, 0, 2 * np.asarray(params.embedding.tokens[tokens])))
    assert (hidden > 0).all()
    close(hidden, elman(first, embedded, "relu"))
    close(repeated, np.where(repeated == 0, 0, 2 * hidden))
    close(final, np.where(final == 0, 0, 2 * repeated))
    stays = repeated > 0
    for dropped in (embedded == 0, ~stays, final[stays] == 0):
        assert 0.3 < dropped.mean() < 0.7
    assert ((embedded == 0) != ~stays).any()


@cells
def test_every_weight_is_declared_with_its_axes(config):
    params, _ = model_and_tokens(config)
    shapes = {name: spec.shape for name, spec in table(model.specs(config))}
    assert [w.shape for w in jax.tree.leaves(params)] == list(shapes.values())
    gates = {"elman": 1, "gru": 3, "lstm": 4}[config.cell]
    spec = model.specs(config).layers[1].recurrent
    assert (spec.shape, spec.fan_in, spec.fan_out) == ((D, gates, D), D, gates * D)
    decayed = decay_mask(params)
    assert {name for name, own in zip(shapes, jax.tree.leaves(decayed), strict=True) if own} == {
        *(f"layers/{i}/{name}" for i in range(2) for name in ("input", "recurrent")),
        "head/matrix",
    }


def test_models_are_mapped_over_weights():
    tokens = model_and_tokens(LSTM)[1]
    members = tuple(model.init(jax.random.key(seed), LSTM) for seed in range(3))
    mapped = jax.jit(jax.vmap(model.apply, (0, None, None)))(stack(members), LSTM, tokens)
    one_by_one = [forward(params, LSTM, tokens) for params in members]
    np.testing.assert_allclose(mapped, one_by_one, rtol=1e-4, atol=1e-5)


# --- what it refuses, and what is of no consequence --------------------------------------------------------


@pytest.mark.parametrize("name", ["mask", "source", "source_valid", "memory", "memory_valid"])
def test_what_only_attention_reads_is_refused(name):
    params, tokens = model_and_tokens(ELMAN)
    given = {name: Causal() if name == "mask" else tokens}
    with pytest.raises(ValueError, match=rf"given is \['{name}'\].*no attention"):
        model.apply(params, ELMAN, tokens, **given)
    with pytest.raises(ValueError, match=rf"given is \['{name}'\].*no attention"):
        model.new_cache(params, ELMAN, (B,), T, **given)


def test_positions_and_a_prefix_change_nothing():
    params, tokens = model_and_tokens(ELMAN)
    given = {"prefix": jnp.array([3, 5]), "positions": jnp.broadcast_to(jnp.arange(T)[::-1], (B, T)), "mask": None}
    np.testing.assert_array_equal(forward(params, ELMAN, tokens, **given), forward(params, ELMAN, tokens))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": LanguageModel(transform="gelu")}, r"head.transform is 'gelu'; expected None"),
        ({"head": LanguageModel(tied=True), "inputs": Stream()}, r"head.tied is True; expected inputs Tokens"),
        ({"inputs": Tokens(shared=True)}, r"inputs.shared is True; expected False"),
        ({"cell": "gru", "activation": "relu"}, r"activation is 'relu' with cell 'gru'; expected 'tanh'"),
        ({"cell": "ltsm"}, r"RecurrentConfig.cell is 'ltsm'; did you mean 'lstm'"),
        ({"activation": "gelu"}, r"RecurrentConfig.activation is 'gelu'"),
        ({"heads": 4}, r"RecurrentConfig has no field 'heads'"),
    ],
    ids=str,
)
def test_a_config_that_says_nothing_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        RecurrentConfig(**changes)


# --- decoding and training ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "layout"), [(GRU, "scanned"), (LSTM, "unrolled")], ids=["gru", "lstm"])
def test_generation_is_the_most_probable_token_again_and_again(config, layout):
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
    [({}, "unrolled"), ({"cell": "gru", "layers": 2, "inputs": Tokens()}, "scanned"), ({"cell": "lstm"}, "unrolled")],
    ids=CELLS,
)
def test_every_cell_learns_to_copy_and_a_frozen_table_stays(changes, layout):
    run = RUN.replace(model=RUN.model.replace(**changes))
    before = start(run, layout)
    after, metrics = train(before, run, run.task.load(), run.training.steps)
    losses = np.asarray(metrics["loss"])
    assert after.diverged_at == -1
    assert losses[:5].mean() > 0.9
    assert losses[-10:].mean() < 0.2
    changed = jax.tree.map(lambda old, new: bool((old != new).any()), before.params, after.params)
    assert changed.embedding.tokens == (run.model.inputs != TABLE)
    assert all(jax.tree.leaves((changed.layers, changed.head)))


def test_a_run_that_diverges_stops():
    run = RUN.replace(optimizer=RUN.optimizer.replace(learning_rate=1e38))
    after, metrics = train(start(run), run, run.task.load(), run.training.steps)
    assert after.diverged_at == 1
    assert np.isfinite(metrics["loss"][0])
    assert all(np.isfinite(w).all() for w in jax.tree.leaves(after.params))
    assert float(jnp.abs(after.params.head.matrix).max()) > 1e37


def test_the_task_must_be_one_that_it_can_read():
    assert not list(RUN.task.problems_with(RUN.model))
    with pytest.raises(UserError, match=r"model.vocabulary is 2"):
        RUN.replace(model=RUN.model.replace(vocabulary=2))
    with pytest.raises(UserError, match=r"model.encoder is None"):
        RUN.replace(task=TASK.replace(form="paired"))
