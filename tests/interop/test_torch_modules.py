"""Transformer modules of torch.nn: equal outputs and gradients with their weights, and conversion back.

The numbers come from tests/golden/make_torch_modules_golden.py; where torch is installed they are also made afresh.
"""

import functools
import inspect
import itertools
import math
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer import model
from flaxformer.components import (
    Attention,
    Dense,
    Embeddings,
    Gated,
    LanguageModel,
    LayerNorm,
    NoHead,
    NoPositions,
    Normal,
    RMSNorm,
    Rotary,
    Sinusoidal,
    TokenMixer,
    Tokens,
)
from flaxformer.components.component import Context
from flaxformer.config import ModelConfig
from flaxformer.core.paths import replace_at
from flaxformer.core.struct import REQUIRED
from flaxformer.interop.torch_arguments import CONSTRUCTORS
from flaxformer.interop.torch_modules import arguments_of, config_of, from_torch, to_torch
from flaxformer.model.blocks import block
from flaxformer.model.weights import with_layout
from flaxformer.nn.masks import Explicit
from flaxformer.system.errors import UserError

GOLDEN = Path(__file__).parents[1] / "golden"
PLACES = {"pre": True, "post": False}
BIASES = {"bias": True, "no_bias": False}
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


@functools.cache
def stored():
    with np.load(GOLDEN / "torch_modules.npz", allow_pickle=False) as file:
        return dict(file)


@functools.cache
def fresh():
    pytest.importorskip("torch", reason="torch is not installed; the stored numbers are compared all the same")
    return runpy.run_path(str(GOLDEN / "make_torch_modules_golden.py"))["cases"](seed=1)


@pytest.fixture(scope="module", params=[stored, fresh], ids=["stored", "fresh"])
def golden(request):
    return request.param()


def state_of(golden, kind, has_bias=True, has_norm=True):
    """The stored state dict, without the biases, or the last norm of a stack, that a module does not have."""
    prefix = f"{kind}/weights/"
    weights = {name.removeprefix(prefix): w for name, w in golden.items() if name.startswith(prefix)}
    weights = {name: w for name, w in weights.items() if has_bias or "bias" not in name}
    return {name: w for name, w in weights.items() if has_norm or not name.startswith("norm.")}


def config_for(kind, place="pre", biased="bias", activation="relu", **changes):
    if kind.startswith("MultiheadAttention"):
        width = 13 if kind.endswith("wide") else None
        values = {"embed_dim": 6, "num_heads": 3, "bias": BIASES[biased], "kdim": width, "vdim": width}
        return config_of("MultiheadAttention", **values | changes)
    values = {"d_model": 6, "nhead": 3, "dim_feedforward": 11, "dropout": 0.0, "activation": activation}
    values |= {"norm_first": PLACES[place], "bias": BIASES[biased]}
    if kind in ("TransformerEncoder", "TransformerDecoder"):
        values |= {"num_layers": 2, "norm": place == "pre"}
    if kind == "Transformer":
        values |= {"num_encoder_layers": 2, "num_decoder_layers": 3}
    return config_of(kind, **values | changes)


def masks_of(golden):
    """None, causal, padding (of the memory too), both: side by side in a leading axis, so that all are one call.

    Returns what each query may see, of its own sequence and of the memory; and which tokens are real.
    """
    causal, padded = (np.array(which).reshape(4, 1, 1) for which in ([0, 1, 0, 1], [0, 0, 1, 1]))
    past = np.tri(golden["valid"].shape[1], dtype=bool) | (causal == 0)
    valid, memory_valid = (golden[name] | (padded == 0) for name in ("valid", "memory_valid"))
    own = valid[:, :, None, None, :] & past[:, None, None]
    return (
        Explicit(jnp.asarray(own)),
        Explicit(jnp.asarray(memory_valid[:, :, None, None, :])),
        jnp.asarray(valid),
        jnp.asarray(memory_valid),
    )


def check_outputs_and_gradients(function, golden, case, inputs):
    """Return the results of `function` under every mask, and the gradients of (output · cotangent).sum()."""

    def loss(inputs):
        output, weights = function(**inputs)
        return (output * golden["cotangent"][None]).sum(), {"output": output} | ({} if weights is None else weights)

    gradients, found = jax.grad(loss, has_aux=True)({name: jnp.stack([x] * 4) for name, x in inputs.items()})
    found |= {f"{name}_gradient": gradient for name, gradient in gradients.items()}
    stored = {name.rpartition("/")[2]: value for name, value in golden.items() if name.startswith(f"{case}/")}
    assert found.keys() == stored.keys()
    for name, value in found.items():
        close(value, stored[name], err_msg=name)


@pytest.mark.every(4, "long")
@pytest.mark.every(11)
@pytest.mark.parametrize(("place", "bias", "activation"), list(itertools.product(PLACES, BIASES, ("relu", "gelu"))))
@pytest.mark.parametrize("kind", ["TransformerEncoderLayer", "TransformerDecoderLayer"])
def test_block_equals_the_torch_layer_under_every_mask(golden, kind, place, bias, activation):
    config = config_for(kind, place, bias, activation)
    params = from_torch(kind, state_of(golden, kind, BIASES[bias]), config)
    mask, memory_mask, _, _ = masks_of(golden)
    places = jnp.arange(golden["x"].shape[1])

    def function(x, memory=None):
        context = Context(
            query_positions=places, key_positions=places, mask=mask, source=memory, source_mask=memory_mask
        )
        return block(params, config, x, context)[0], None

    inputs = {name: golden[name] for name in ("x", "memory")[: 1 + config.reads_memory]}
    check_outputs_and_gradients(function, golden, f"{kind}/{place}/{bias}/{activation}", inputs)


@pytest.mark.every(2, "long")
@pytest.mark.every(5)
@pytest.mark.parametrize(("place", "bias", "activation"), [("pre", "bias", "relu"), ("post", "no_bias", "gelu")])
@pytest.mark.parametrize("kind", ["TransformerEncoder", "TransformerDecoder", "Transformer"])
def test_stack_equals_the_torch_stack_under_every_mask(golden, kind, place, bias, activation):
    config = config_for(kind, place, bias, activation)
    params = from_torch(kind, state_of(golden, kind, BIASES[bias], place == "pre" or kind == "Transformer"), config)
    mask, _, valid, memory_valid = masks_of(golden)

    def function(x, memory=None):
        read = "source" if config.encoder else "memory"
        more = {} if memory is None else {read: memory, f"{read}_valid": memory_valid}
        return model.apply(params, config, x, valid=valid, mask=mask, **more), None

    inputs = {name: golden[name] for name in ("x", "memory")[: 1 + config.reads_memory]}
    check_outputs_and_gradients(function, golden, f"{kind}/{place}/{bias}/{activation}", inputs)


@pytest.mark.every(3)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("kind", ["MultiheadAttention", "MultiheadAttention/wide"])
def test_attention_equals_the_torch_attention(golden, kind, bias):
    """To a memory of the model's width and of another: output, gradients, and the weights of every head."""
    config = config_for(kind, biased=bias)
    params = from_torch("MultiheadAttention", state_of(golden, kind, BIASES[bias]), config)
    _, mask, _, _ = masks_of(golden)

    def function(x, memory):
        nowhere = jnp.zeros(0, jnp.int32)
        context = Context(nowhere, nowhere, mask=mask, source=memory, return_intermediates=True)
        output, aux = config.attention.apply(params, x, context)
        return output, {"attention": aux.intermediates["weights"]}

    inputs = {"x": golden["x"], "memory": golden["wide" if kind.endswith("wide") else "memory"]}
    check_outputs_and_gradients(function, golden, f"{kind}/{bias}", inputs)


EVERY = [*(kind for kind in CONSTRUCTORS), "MultiheadAttention/wide"]
OPTIONS = list(itertools.product(EVERY, PLACES, BIASES))


def same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.mark.every(3)
@pytest.mark.parametrize(("case", "place", "bias"), OPTIONS)
def test_load_save_load_is_bit_equal(case, place, bias):
    kind, config = case.partition("/")[0], config_for(case, place, bias)
    state = state_of(stored(), case, BIASES[bias], place == "pre")
    params = from_torch(kind, state, config)
    saved = to_torch(kind, params, config)
    assert {name: w.dtype for name, w in saved.items()} == {name: np.dtype("float32") for name in state}
    same(saved, state)
    same(from_torch(kind, saved, config), params)
    assert all(w.flags.writeable for w in saved.values())  # torch.from_numpy warns of others


def test_scanned_layers_are_saved_as_layers():
    config = config_for("Transformer")
    state = state_of(stored(), "Transformer")
    params = with_layout(from_torch("Transformer", state, config), "scanned")
    same(to_torch("Transformer", params, config), state)


@pytest.mark.parametrize(("case", "place", "bias"), OPTIONS)
def test_torch_builds_the_module_from_the_arguments_and_loads_the_weights(case, place, bias):
    torch = pytest.importorskip("torch")
    kind, config = case.partition("/")[0], config_for(case, place, bias)
    arguments = arguments_of(kind, config)
    if kind in ("TransformerEncoder", "TransformerDecoder"):
        layers, norm = arguments.pop("num_layers"), arguments.pop("norm")
        made = getattr(torch.nn, f"{kind}Layer")(**arguments)
        norm = torch.nn.LayerNorm(6, arguments["layer_norm_eps"], bias=arguments["bias"]) if norm else None
        more = {"enable_nested_tensor": False} if kind == "TransformerEncoder" else {}
        module = getattr(torch.nn, kind)(made, layers, norm, **more)
    elif kind == "Transformer":
        with pytest.warns(UserWarning, match="nested_tensor"):
            module = torch.nn.Transformer(**arguments)
    else:
        module = getattr(torch.nn, kind)(**arguments)
    params = from_torch(kind, module.state_dict(), config)
    for name, weight in to_torch(kind, params, config).items():
        module.state_dict()[name].copy_(torch.from_numpy(weight + 1))
    same(from_torch(kind, module.state_dict(), config), jax.tree.map(lambda w: w + 1, params))


@pytest.mark.parametrize("kind", CONSTRUCTORS)
def test_arguments_and_their_defaults_are_those_of_torch(kind):
    torch = pytest.importorskip("torch")
    theirs = dict(inspect.signature(getattr(torch.nn, kind)).parameters)
    if kind in ("TransformerEncoder", "TransformerDecoder"):  # a layer stands for its arguments
        theirs |= inspect.signature(getattr(torch.nn, f"{kind}Layer")).parameters
    for name, default in CONSTRUCTORS[kind].defaults.items():
        if name == "norm":
            assert (default, theirs[name].default) == (False, None)
        elif name == "activation":
            assert default == theirs[name].default.__name__
        else:
            assert theirs[name].default == (inspect.Parameter.empty if default is REQUIRED else default), name
    left_out = {"device", "dtype", "custom_encoder", "custom_decoder"}
    left_out |= {"encoder_layer", "decoder_layer", "enable_nested_tensor", "mask_check"}
    assert set(theirs) - set(CONSTRUCTORS[kind].defaults) <= left_out


@pytest.mark.parametrize(("case", "place", "bias"), OPTIONS)
def test_arguments_and_config_are_inverses(case, place, bias):
    kind, config = case.partition("/")[0], config_for(case, place, bias)
    changes = {"bias": not BIASES[bias]}
    if kind != "MultiheadAttention":
        changes |= {"layer_norm_eps": 0.3, "dropout": 0.25, "activation": "gelu"}
    assert config_for(case, place, bias, **arguments_of(kind, config)) == config
    changed = config_for(case, place, bias, **changes)
    assert {name: arguments_of(kind, changed)[name] for name in changes} == changes
    assert config_of(kind, **arguments_of(kind, changed)) == changed != config


def test_embedding_and_head_can_be_added_to_a_torch_stack():
    stack = config_for("TransformerEncoder")
    loaded = from_torch("TransformerEncoder", state_of(stored(), "TransformerEncoder"), stack)
    changes = {"vocabulary": 17, "inputs": Tokens(), "head": LanguageModel(), "mask_pattern": "causal"}
    config = stack.replace(**changes)
    random = np.random.default_rng(0)
    table, matrix = random.normal(size=(17, 6)).astype(np.float32), random.normal(size=(6, 17)).astype(np.float32)
    params = loaded.replace(
        embedding=Tokens.Weights(tokens=jnp.asarray(table)), head=LanguageModel.Weights(matrix=jnp.asarray(matrix))
    )
    tokens = jnp.asarray(random.integers(17, size=(4, 2, 5)))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda spec: spec.shape, model.specs(config))
    hidden = model.apply(loaded, stack.replace(mask_pattern="causal"), jnp.asarray(table)[tokens])
    close(model.apply(params, config, tokens), hidden @ matrix)


def test_block_of_a_model_converts_to_a_torch_layer():
    """Inputs, head and encoder of the model do not affect the conversion of its block."""
    whole = config_for("Transformer").replace(vocabulary=17, inputs=Tokens(), head=LanguageModel(), distinct_blocks=1)
    params = from_torch("Transformer", state_of(stored(), "Transformer"), config_for("Transformer"))
    state = to_torch("TransformerDecoderLayer", params.blocks[2], whole)
    same(from_torch("TransformerDecoderLayer", state, config_for("TransformerDecoderLayer")), params.blocks[2])
    state = to_torch("MultiheadAttention", params.encoder.blocks[1].attention, whole.encoder)
    same(from_torch("MultiheadAttention", state, config_for("MultiheadAttention")), params.encoder.blocks[1].attention)


def test_memory_with_the_width_of_the_model_has_packed_weights():
    state = state_of(stored(), "MultiheadAttention")
    own, other = config_for("MultiheadAttention"), config_for("MultiheadAttention", kdim=6, vdim=6)
    params = from_torch("MultiheadAttention", state, other)
    assert isinstance(params, Attention.Weights)
    same(jax.tree.leaves(params), jax.tree.leaves(from_torch("MultiheadAttention", state, own)))
    same(to_torch("MultiheadAttention", params, other), state)


def test_cross_attention_with_other_settings_equals_the_torch_attention():
    packed = config_for("MultiheadAttention", kdim=6, vdim=6)
    config = packed.replace(cross_attention=packed.attention, attention=Attention(heads=2, window=3))
    state = state_of(stored(), "MultiheadAttention")
    assert arguments_of("MultiheadAttention", config) == arguments_of("MultiheadAttention", packed)
    same(to_torch("MultiheadAttention", from_torch("MultiheadAttention", state, config), config), state)


def test_explicit_cross_attention_equals_the_default():
    config = config_for("TransformerDecoder")
    written = config.replace(cross_attention=config.attention.replace(d_head=2))
    assert arguments_of("TransformerDecoder", written) == arguments_of("TransformerDecoder", config)


def test_weights_of_half_precision_are_loaded_as_float32():
    state = {name: w.astype(np.float16) for name, w in state_of(stored(), "MultiheadAttention").items()}
    params = from_torch("MultiheadAttention", state, config_for("MultiheadAttention"))
    assert {w.dtype for w in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    same(to_torch("MultiheadAttention", params, config_for("MultiheadAttention")), state)


WRONG_STATES = {
    "missing": ({"linear1.bias": None}, r"'linear1.bias' is missing; expected \(11,\)"),
    "transposed": ({"linear1.weight": np.zeros((6, 11))}, r"'linear1.weight' is \(6, 11\); expected \(11, 6\)"),
    "of another rank": (
        {"self_attn.in_proj_bias": np.zeros((3, 6))},
        r"'self_attn.in_proj_bias' is \(3, 6\); expected \(18,\)",
    ),
    "unexpected": (
        {"self_attn.bias_k": np.zeros((1, 1, 6))},
        r"'self_attn.bias_k' is \(1, 1, 6\); expected no such tensor",
    ),
    "of integers": ({"norm1.weight": np.zeros(6, np.int8)}, r"'norm1.weight' is of int8; expected floating-point"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG_STATES.values(), ids=WRONG_STATES)
def test_wrong_tensor_raises_an_error_with_both_shapes(changes, message):
    state = state_of(stored(), "TransformerEncoderLayer") | changes
    state = {name: w for name, w in state.items() if w is not None}
    with pytest.raises(UserError, match=message) as raised:
        from_torch("TransformerEncoderLayer", state, config_for("TransformerEncoderLayer"))
    assert str(raised.value).count("expected") == 1


def test_many_wrong_tensors_are_counted():
    with pytest.raises(UserError, match=r"'encoder.layers.0.self_attn.in_proj_bias' is \(18,\)[\s\S]*and more$"):
        from_torch("Transformer", state_of(stored(), "Transformer"), config_for("Transformer", biased="no_bias"))


def test_wrong_weights_raise_an_error_with_both_shapes():
    config = config_for("TransformerEncoderLayer")
    params = from_torch("TransformerEncoderLayer", state_of(stored(), "TransformerEncoderLayer"), config)
    turned = params.replace(feed_forward=params.feed_forward.replace(up=params.feed_forward.down, up_bias=None))
    with pytest.raises(UserError, match=r"'feed_forward/up' is \(11, 6\); expected \(6, 11\)") as raised:
        to_torch("TransformerEncoderLayer", turned, config)
    assert "'feed_forward/up_bias' is missing; expected (11,)" in str(raised.value)


WRONG_ARGUMENTS = {
    "kind": ("TransformerEncodeLayer", {}, "did you mean 'TransformerEncoderLayer'"),
    "unknown": ("TransformerEncoderLayer", {"n_head": 3}, "no argument 'n_head'; did you mean 'nhead'"),
    "of another module": ("TransformerEncoderLayer", {"num_layers": 3}, "no argument 'num_layers'"),
    "missing": ("TransformerEncoderLayer", {"nhead": REQUIRED}, "has no nhead; expected a value"),
    "heads": ("TransformerEncoderLayer", {"nhead": 5}, "attention.heads is 5; expected a divisor of d_model 6"),
    "activation": ("TransformerEncoderLayer", {"activation": "rellu"}, "did you mean 'relu'"),
    "norm_first": ("TransformerEncoderLayer", {"norm_first": "no"}, "NormPlacement.pre is 'no'; expected .* or bool"),
    "bias keys": ("MultiheadAttention", {"add_bias_kv": True}, "add_bias_kv True; expected False"),
    "zero keys": ("MultiheadAttention", {"add_zero_attn": True}, "add_zero_attn True; expected False"),
    "an activation": ("TransformerEncoderLayer", {"activation": math.erf}, "which is not supported; supported: linear"),
    "two memories": (
        "MultiheadAttention",
        {"kdim": 5, "vdim": 7},
        "kdim is 5 and vdim is 7, which is not supported",
    ),
    "half a memory": (
        "MultiheadAttention",
        {"kdim": 5},
        "kdim is 5 and vdim is 6, which is not supported",
    ),
}


@pytest.mark.parametrize(("kind", "changes", "message"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
def test_wrong_arguments_raise_an_error_that_names_them(kind, changes, message):
    known = {"embed_dim": 6, "num_heads": 3} if kind == "MultiheadAttention" else {"d_model": 6, "nhead": 3}
    with pytest.raises(UserError, match=message):
        config_of(kind, **known | changes)


class OwnDense(Dense):
    """User component."""


class OwnMixer(TokenMixer):
    """A component without heads."""


WRONG_CONFIGS = {
    "own feed-forward": ("TransformerEncoder", {"feed_forward": OwnDense(d_ff=11)}, "OwnDense'; expected 'Dense'"),
    "no feed-forward": ("TransformerEncoder", {"feed_forward": None}, "feed_forward.kind is None; expected 'Dense'"),
    "own mixer": ("TransformerEncoder", {"attention": OwnMixer()}, "OwnMixer'; expected 'Attention'"),
    "own cross-attention": (
        "TransformerDecoder",
        {"cross_attention": Attention(heads=3, logit_cap=5.0)},
        "cross_attention.kind is 'Attention'; expected None",
    ),
    "rotary": ("TransformerEncoder", {"positions": Rotary()}, "positions.kind is 'Rotary'; expected 'NoPositions'"),
    "sinusoidal": ("TransformerEncoder", {"positions": Sinusoidal()}, "positions.kind is 'Sinusoidal'"),
    "rms": ("TransformerEncoderLayer", {"norm_kind": RMSNorm()}, "norm_kind.kind is 'RMSNorm'; expected 'LayerNorm'"),
    "gate": (
        "TransformerEncoderLayer",
        {"feed_forward": Gated(d_ff=11)},
        "feed_forward.kind is 'Gated'; expected 'Dense'",
    ),
    "half a bias": (
        "TransformerEncoderLayer",
        {"feed_forward.bias": False},
        "feed_forward.bias is False; expected True",
    ),
    "norm's bias": ("TransformerEncoderLayer", {"norm_kind": LayerNorm(affine="gain")}, "norm_kind.affine is 'gain'"),
    "few keys": ("MultiheadAttention", {"attention.key_value_heads": 1}, "attention.key_value_heads is 1; expected 3"),
    "width of heads": ("MultiheadAttention", {"attention.d_head": 4}, "attention.d_head is 4; expected 2"),
    "scale": ("MultiheadAttention", {"attention.scale_exponent": 1.0}, "attention.scale_exponent is 1.0; expected 0.5"),
    "tokens": ("TransformerEncoder", {"inputs": Tokens()}, "inputs.kind is 'Tokens'; expected 'Embeddings'"),
    "head": ("TransformerEncoder", {"head": LanguageModel()}, "head.kind is 'LanguageModel'; expected 'NoHead'"),
    "no encoder": ("Transformer", {"encoder": None, "d_memory": 6}, "encoder.kind is None; expected 'ModelConfig'"),
    "no memory": ("TransformerDecoder", {"d_memory": None}, "d_memory is None; expected 6"),
    "wide memory": ("TransformerDecoder", {"d_memory": 7}, "d_memory is 7; expected 6"),
    "encoder": (
        "Transformer",
        {"encoder.feed_forward.activation": "gelu"},
        "encoder.feed_forward.activation is 'gelu'; expected 'relu'",
    ),
}


@pytest.mark.parametrize(("kind", "changes", "message"), WRONG_CONFIGS.values(), ids=WRONG_CONFIGS)
def test_config_of_no_torch_module_raises_an_error_that_names_the_field(kind, changes, message):
    config = replace_at(config_for(kind), changes)
    for refused in (arguments_of, lambda kind, config: from_torch(kind, {}, config)):
        with pytest.raises(UserError, match=message):
            refused(kind, config)


def test_masks_and_initial_values_are_not_part_of_a_module():
    config = config_for("Transformer")
    free = {"mask_pattern": "causal", "attention.window": 2, "initializer": Normal(), "vocabulary": 17}
    changed = replace_at(config, free | {f"encoder.{path}": value for path, value in free.items()})
    assert arguments_of("Transformer", changed) == arguments_of("Transformer", config)


def test_embeddings_have_no_weights_and_are_not_changed():
    config = ModelConfig(
        d_model=6, attention=Attention(heads=3), layers=0, inputs=Embeddings(), head=NoHead(), positions=NoPositions()
    )
    config = config.replace(norm=config.norm.replace(final=False))
    params = model.init(jax.random.key(0), config)
    x = jax.random.normal(jax.random.key(1), (2, 5, 6))
    assert jax.tree.leaves(params) == []
    np.testing.assert_array_equal(model.apply(params, config, x), x)
    with pytest.raises(ValueError, match=r"\(2, 5, 7\); expected vectors of width 6"):
        model.apply(params, config, jnp.zeros((2, 5, 7)))
