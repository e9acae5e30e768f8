"""Equality of a block with torch.nn.TransformerEncoderLayer, and of attention with scaled_dot_product_attention.

The numbers come from tests/golden/make_torch_golden.py; if torch is installed, they are also computed again.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components.component import Context
from flaxformer.core.weight_specs import declare
from flaxformer.interop.torch_modules import config_of, from_torch
from flaxformer.model.blocks import BlockParams, block
from flaxformer.nn import Causal, Padding, dot_product_attention

GOLDEN = Path(__file__).parents[1] / "golden" / "torch_encoder_layer.npz"
KIND = "TransformerEncoderLayer"
PLACES = {"pre": True, "post": False}
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN, allow_pickle=False) as file:
        return {name: jnp.asarray(file[name]) for name in file.files}


def config_for(place, activation, weights, heads):
    d_ff, d_model = weights["linear1.weight"].shape
    sizes = {"d_model": d_model, "nhead": heads, "dim_feedforward": d_ff}
    return config_of(KIND, **sizes, norm_first=PLACES[place], activation=activation)


@jax.jit
def layer_and_gradient(params, config, x, mask, cotangent):
    places = jnp.arange(x.shape[1])

    def loss(x):
        y, *_ = block(params, config, x, Context(query_positions=places, key_positions=places, mask=mask))
        return (y * cotangent).sum(), y

    (_, y), gradient = jax.value_and_grad(loss, has_aux=True)(x)
    return y, gradient


def torch_weights(golden):
    prefix = "layer/weights/"
    return {name.removeprefix(prefix): x for name, x in golden.items() if name.startswith(prefix)}


@pytest.mark.every(3, "long")
@pytest.mark.every(5)
@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("place", PLACES)
def test_a_block_equals_the_torch_encoder_layer(golden, place, activation, mask):
    masks = {"none": None, "causal": Causal(), "padding": Padding(golden["layer/valid"])}
    weights = torch_weights(golden)
    config = config_for(place, activation, weights, heads=3)
    params = from_torch(KIND, weights, config)
    output, gradient = layer_and_gradient(params, config, golden["layer/x"], masks[mask], golden["layer/cotangent"])
    case = f"layer/{place}/{activation}/{mask}"
    close(output, golden[f"{case}/output"])
    close(gradient, golden[f"{case}/x_gradient"])


@pytest.mark.parametrize("place", PLACES)
def test_torch_weights_cover_all_weights_of_a_block(golden, place):
    weights = torch_weights(golden)
    config = config_for(place, "relu", weights, heads=3)
    params = from_torch(KIND, weights, config)
    declared = declare(BlockParams, config)
    assert jax.tree.map(lambda weight: weight.shape, params) == jax.tree.map(lambda spec: spec.shape, declared)
    assert sum(w.size for w in jax.tree.leaves(params)) == sum(w.size for w in weights.values())


@pytest.mark.every(3, "long")
@pytest.mark.every(5)
@pytest.mark.parametrize("implementation", ["reference", "xla"])
@pytest.mark.parametrize(
    ("case", "heads", "options"),
    [
        ("none", 6, {}),
        ("causal", 6, {"mask": Causal()}),
        ("masked", 6, {"mask": "allowed"}),
        ("biased", 6, {"bias": "bias"}),
        ("scale", 6, {"scale": 0.61}),
        ("one_head_a_key", 3, {"mask": "allowed"}),
    ],
)
def test_attention_equals_torch_scaled_dot_product_attention(golden, case, heads, options, implementation):
    """Torch has heads before length; query heads share key-value heads in the same order."""
    q, k, v = (jnp.swapaxes(golden[f"sdpa/{name}"], 1, 2) for name in "qkv")
    options = {name: golden[f"sdpa/{x}"][:, :heads] if isinstance(x, str) else x for name, x in options.items()}
    result = dot_product_attention(q[:, :, :heads], k, v, **options, implementation=implementation)
    close(jnp.swapaxes(result, 1, 2), golden[f"sdpa/{case}"])


@pytest.mark.parametrize("place", PLACES)
def test_a_block_equals_the_torch_encoder_layer_for_fresh_weights(place):
    torch = pytest.importorskip("torch", reason="torch is not installed; the stored numbers are compared all the same")
    d_model, heads, d_ff, B, T = 15, 5, 23, 3, 11
    layer = torch.nn.TransformerEncoderLayer(
        d_model, heads, d_ff, dropout=0.0, activation="gelu", batch_first=True, norm_first=place == "pre"
    )
    random = np.random.default_rng(5)
    weights = {name: random.normal(0, 0.3, w.shape).astype(np.float32) for name, w in layer.state_dict().items()}
    layer.load_state_dict({name: torch.from_numpy(w) for name, w in weights.items()})
    x, cotangent = random.normal(size=(2, B, T, d_model)).astype(np.float32)
    valid = np.arange(T) < np.array([11, 3, 7])[:, None]
    causal = np.tril(np.ones((T, T), bool))

    entering = torch.from_numpy(x).requires_grad_()
    theirs = layer(entering, src_mask=torch.from_numpy(~causal), src_key_padding_mask=torch.from_numpy(~valid))
    (theirs * torch.from_numpy(cotangent)).sum().backward()
    config = config_for(place, "gelu", weights, heads)
    mask = Causal() & Padding(jnp.asarray(valid))
    ours, gradient = layer_and_gradient(from_torch(KIND, weights, config), config, x, mask, cotangent)
    close(ours, theirs.detach().numpy())
    close(gradient, entering.grad.numpy(), rtol=1e-4, atol=1e-4)
