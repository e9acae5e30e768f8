"""Static integer fields of every kind of component are axes of its weights, whatever else it computes."""

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float

import flaxformer.components
from flaxformer.components import (
    Alibi,
    Attention,
    Dense,
    LearnedPositions,
    NoPositions,
    Patches,
    RelativeBuckets,
    Rotary,
    Sinusoidal,
    Vectors,
)
from flaxformer.components.component import Component
from flaxformer.config import ModelConfig
from flaxformer.core.params import param
from flaxformer.core.struct import static
from flaxformer.model import apply, init, specs
from flaxformer.system.errors import UserError

FIELDS = {
    "TokenMixer": "attention", "FeedForward": "feed_forward", "Norm": "norm_kind", "Positions": "positions",
    "Residual": "residual", "Inputs": "inputs", "Head": "head",
}  # fmt: skip
REQUIRED = {
    "Patches": {"height": 4, "width": 4, "size": 2}, "Vectors": {"width": 3}, "Classifier": {"classes": 3},
    "LearnedPositions": {"max_length": 9}, "ByRole": {"base_width": 4}, "MuP": {"base_width": 4},
}  # fmt: skip
KINDS = [
    kind
    for name in flaxformer.components.__all__
    if isinstance(kind := getattr(flaxformer.components, name), type)
    and issubclass(kind, Component)
    and any(base.__name__ in FIELDS for base in kind.__mro__)
    and kind.__name__ != "Head"  # has no number of outputs
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("has_sizes", [False, True])
def test_a_static_integer_field_of_a_subclass_is_an_axis(kind, has_sizes):
    class Weights(kind.Weights):
        extra: Float[Array, "reach computed"] = param(init="zeros")

    def sizes(self, model):
        return {"computed": 5} if has_sizes else {"computed": 3}

    fields = {"__annotations__": {"reach": int}, "reach": static(7), "Weights": Weights, "sizes": sizes}
    own = type(f"Own{kind.__name__}", (kind,), {**fields, "__module__": __name__})
    field = next(FIELDS[base.__name__] for base in kind.__mro__ if base.__name__ in FIELDS)
    shapes = specs(ModelConfig(layers=1, d_model=8, **{field: own(**REQUIRED.get(kind.__name__, {}))}))
    found = [spec.shape for spec in jax.tree.leaves(shapes) if spec.axes == ("reach", "computed")]
    assert found
    assert set(found) == {(7, 5 if has_sizes else 3)}


@pytest.mark.parametrize("kind", [Alibi, LearnedPositions, NoPositions, RelativeBuckets, Rotary, Sinusoidal])
def test_inputs_without_a_token_are_refused(kind):
    positions = kind(**REQUIRED.get(kind.__name__, {}))
    config = ModelConfig(vocabulary=5, layers=1, d_model=8, attention=Attention(heads=2), positions=positions)
    params = jax.eval_shape(lambda: init(jax.random.key(0), config))
    logits = lambda *shape: jax.eval_shape(lambda params: apply(params, config, jnp.zeros(shape, int)), params)  # noqa: E731
    assert logits(0, 3).shape == (0, 3, 5)
    with pytest.raises(UserError, match="sequence length is 0; expected at least one token"):
        logits(2, 0)


def test_sizes_of_a_subclass_replace_those_of_its_base():
    class Wide(Dense):
        def sizes(self, model):
            return {"d_ff": 9}

    class Wider(Wide):
        more: int = static(2)

    assert Wider().axis_sizes({"d_model": 4}) == {"d_ff": 9, "more": 2}
    assert Attention(heads=2).axis_sizes({"d_model": 8})["d_head"] == 4
    assert Vectors(width=3).axis_sizes({})["d_input"] == 3
    assert Patches(height=4, width=6, size=2).axis_sizes({})["d_input"] == 4
    assert LearnedPositions(max_length=9).axis_sizes({}) == {"max_length": 9}
