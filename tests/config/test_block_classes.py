"""Classes in the blocks of a pattern: the model's component as that class."""

import jax
import pytest

from flaxformer import (
    Attention,
    Block,
    Dense,
    Gated,
    LayerNorm,
    LearnedPositions,
    ModelConfig,
    RMSNorm,
    Run,
    replace_at,
)
from flaxformer.catalog import LinearAttention
from flaxformer.core.overrides import override
from flaxformer.system.errors import UserError

MODEL = ModelConfig(layers=4, d_model=16, attention=Attention(heads=8), feed_forward=Dense(d_ff=24))
PATTERN = (Block(attention=LinearAttention, feed_forward=Gated, norm_kind=RMSNorm), Block())


def check(model, heads, d_ff):
    first, second = model.block_configs[:2]
    assert first.attention == LinearAttention(heads=heads)
    assert first.feed_forward == Gated(d_ff=d_ff)
    assert first.norm_kind == RMSNorm(epsilon=1e-5)  # the affine of LayerNorm is not a choice of RMSNorm
    assert (second.attention, second.norm_kind) == (model.attention, LayerNorm())


def test_a_class_keeps_the_fields_of_the_models_component():
    check(MODEL.replace(pattern=PATTERN), 8, 24)
    changes = {"model": MODEL, "model.pattern": PATTERN, "model.attention.heads": 2, "model.feed_forward.d_ff": 7}
    check(replace_at(Run(), changes).model, 2, 7)
    text = "model.pattern=(Block(attention=LinearAttention,feed_forward=Gated,norm_kind=RMSNorm),Block())"
    check(override(replace_at(Run(), {"model": MODEL}), [text, "model.attention.heads=4"]).model, 4, 24)


def test_a_class_at_the_path_of_a_block():
    plain = replace_at(Run(), {"model": MODEL, "model.pattern": (Block(), Block(attention=Attention(heads=2)))})
    run = replace_at(
        plain, {"model.pattern.0.attention": LinearAttention, "model.pattern.1.attention": LinearAttention}
    )
    assert [block.attention for block in run.model.pattern] == [LinearAttention(heads=8), LinearAttention(heads=2)]


def test_a_config_with_a_pattern_of_classes_is_one_of_components():
    expected = MODEL.replace(pattern=(Block(attention=LinearAttention(heads=8)), Block()))
    assert MODEL.replace(pattern=(Block(attention=LinearAttention), Block())) == expected
    assert jax.tree.structure(expected) == jax.tree.structure(jax.tree.map(lambda x: x, expected))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Block(attention=Gated), "Block.attention is the class Gated; expected Attention, "),
        (lambda: Block(attention=3), "Block.attention is 3; expected Attention, "),
        (lambda: MODEL.replace(pattern=(Block(), Block(positions=LearnedPositions))), "pattern.1.positions is 'Lear"),
        (lambda: MODEL.replace(pattern=3), "ModelConfig.pattern is 3; expected tuple$"),
        (lambda: MODEL.replace(pattern=Block()), r"expected tuple: \(Block\(...\),\)"),
        (lambda: override(Run(), ["model.pattern=(Block(attention=Gated),)"]), "model.pattern.0.attention is 'Gated'"),
    ],
)
def test_what_is_not_a_component_of_the_field_is_refused(build, message):
    with pytest.raises(UserError, match=message):
        build()
