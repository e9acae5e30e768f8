"""Configs: static fields and leaves, validation messages, overrides by path, canonical text."""

import jax
import jax.numpy as jnp
import pytest

from flaxformer.components import (
    POST,
    PRE,
    Attention,
    Dense,
    Gated,
    LanguageModel,
    LearnedPositions,
    NoPositions,
    RMSNorm,
    Sinusoidal,
)
from flaxformer.config import ModelConfig
from flaxformer.core.canonical import canonical, canonical_text
from flaxformer.core.overrides import override
from flaxformer.core.paths import get_at, replace_at
from flaxformer.core.struct import Config, leaf, static
from flaxformer.system.errors import UserError
from flaxformer.system.json_differences import differences
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run

RUN = Run()


class Example(Config):
    kind: str = static("a", choices=("a", "b"))
    amount: float | None = leaf(None, at_least=0, below=1)


def test_static_fields_and_none_are_structure_and_numbers_are_leaves():
    assert jax.tree.leaves(Example(amount=0.5)) == [0.5]
    assert jax.tree.structure(Example(amount=0.5)) == jax.tree.structure(Example(amount=0.25))
    assert jax.tree.structure(Example(amount=0.5)) != jax.tree.structure(Example(amount=None))
    assert jax.tree.structure(Example(kind="a")) != jax.tree.structure(Example(kind="b"))


def test_configs_pass_through_transformations():
    config = AdamW(learning_rate=0.25)
    assert float(jax.jit(lambda c: c.learning_rate * 2)(config)) == 0.5
    doubled = jax.tree.map(lambda x: x * 2, AdamW(beta1=0.25, beta2=0.25))
    assert doubled.beta1 == 0.5
    gradient = jax.grad(lambda c: c.learning_rate * c.beta1)(jax.tree.map(jnp.float32, config))
    assert float(gradient.beta1) == 0.25


def test_an_integer_for_a_float_field_gives_the_same_canonical_text():
    assert canonical_text(AdamW(learning_rate=1)) == canonical_text(AdamW(learning_rate=1.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelConfig(d_modle=3), "no field 'd_modle'; did you mean 'd_model'"),
        (lambda: ModelConfig(d_model=0), "ModelConfig.d_model is 0; expected a number at least 1"),
        (lambda: ModelConfig(d_model=8.5), "ModelConfig.d_model is 8.5; expected int"),
        (lambda: ModelConfig(d_model=True), "ModelConfig.d_model is True; expected int"),
        (lambda: Dense(activation="rleu"), "Dense.activation is 'rleu'; did you mean 'relu'"),
        (lambda: ModelConfig(norm="psot"), "ModelConfig.norm is 'psot'; did you mean 'post'"),
        (lambda: ModelConfig(norm=RMSNorm()), "ModelConfig.norm is RMSNorm.*; expected NormPlacement"),
        (lambda: ModelConfig(feed_forward=RMSNorm()), "is RMSNorm.*; expected .*Dense.*Gated.* or another FeedForward"),
        (
            lambda: ModelConfig(norm_kind=4),
            "ModelConfig.norm_kind is 4; expected .*LayerNorm, RMSNorm, ZeroCentredRMSNorm, BatchNorm",
        ),
        (lambda: ModelConfig(attention=Attention(heads=5)), "attention.heads is 5; expected a divisor of d_model 64"),
        (lambda: Attention(heads=4, key_value_heads=3), "key_value_heads is 3; expected a divisor of heads 4"),
        (lambda: ModelConfig(dropout=1), "dropout is 1.0; expected a number below 1"),
        (lambda: AdamW(learning_rate="3e-3"), "learning_rate is '3e-3'; expected float"),
        (lambda: AdamW(learning_rate=None), "learning_rate is None; expected float"),
        (lambda: Run(task=Copy(symbols=400)), "model.vocabulary is 256; expected at least the task's 401"),
        (lambda: Run(model=ModelConfig(positions=LearnedPositions(max_length=8))), "max_length is 8.*32 tokens"),
        (lambda: get_at(RUN, "model.nrom"), "'model.nrom': ModelConfig has no field 'nrom'; did you mean 'norm'"),
        (lambda: replace_at(RUN, {"optimiser.clip": 1.0}), "no field 'optimiser'; did you mean 'optimizer'"),
        (lambda: get_at(RUN, "seed.x"), "0 has no fields"),
        (lambda: override(RUN, ["model.layers"]), "'model.layers'; expected path=value"),
        (lambda: override(RUN, ["model.layers=two"]), "layers is 'two'; expected int"),
        (
            lambda: override(RUN, ["model.layers=99999999999999999999"]),
            "layers is 9{20}; expected a number at most 100000",
        ),
        (
            lambda: override(RUN, ["optimizer.learning_rate=1e400"]),
            "learning_rate is '1e400'; expected a finite number",
        ),
        (lambda: override(RUN, ["task=TextFiles"]), r"'TextFiles', without path; expected TextFiles\(path=...\)"),
        (lambda: override(RUN, ["model.norm=psot"]), "model.norm is 'psot'; did you mean 'post'"),
        (lambda: override(RUN, ["model.positions=Sinusoidal(base=)"]), r"expected Sinusoidal\(field=number"),
        (lambda: override(RUN, ["model.positions=Sinusoidal(bass=3)"]), "no field 'bass'; did you mean 'base'"),
        (lambda: override(RUN, ["model.positions=Sinusiodal(base=3)"]), "did you mean 'Sinusoidal'"),
        (lambda: override(RUN, ["model.feed_forward=relu"]), "'relu'; it has: none, Dense.*, Gated"),
        (lambda: override(RUN, ["model.feed_forward=Gatd(d_ff=3)"]), "did you mean 'Gated'"),
    ],
)
def test_an_error_names_field_value_and_expectation(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_a_named_value_is_accepted_as_a_string():
    assert ModelConfig(norm="post") == ModelConfig(norm=POST)


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("model.layers=2", "model.layers", 2),
        ("optimizer.learning_rate=1e-2", "optimizer.learning_rate", 0.01),
        ("model.norm=post", "model.norm", POST),
        ("model.positions=NoPositions", "model.positions", NoPositions()),
        ("model.positions=Sinusoidal(base=100)", "model.positions", Sinusoidal(base=100.0)),
        ("model.head.tied=true", "model.head.tied", True),
        ("model.head=tied", "model.head", LanguageModel(tied=True)),
        ("optimizer.clip=None", "optimizer.clip", None),
        ("model.feed_forward.activation=gelu", "model.feed_forward.activation", "gelu"),
        ("model.feed_forward=Gated(d_ff=64)", "model.feed_forward", Gated(d_ff=64)),
        ("model.feed_forward=none", "model.feed_forward", None),
        ("model.attention.heads=2", "model.attention.heads", 2),
        ("model.attention=Attention(query_key_norm=RMSNorm())", "model.attention", Attention(query_key_norm=RMSNorm())),
        ("task=Copy(symbols=5)", "task", Copy(symbols=5)),
    ],
)
def test_override_sets_the_field_at_a_path(text, path, value):
    assert get_at(override(RUN, [text]), path) == value


def test_overrides_are_applied_together():
    changed = override(
        RUN, ["training.steps=30", "training.evaluate_every=15", "model.d_model=30", "model.attention.heads=5"]
    )
    assert (changed.training.steps, changed.model.attention.heads) == (30, 5)
    with pytest.raises(UserError, match="divisor"):
        override(RUN, ["model.d_model=30"])
    with pytest.raises(UserError, match=r"'model.layers' is changed twice, the second time to '3'"):
        override(RUN, ["model.layers=2", "model.layers=3"])


def test_differences_are_listed_field_by_field():
    old, new = RUN, replace_at(RUN, {"model.layers": 2, "model.norm": POST})
    assert differences(canonical(old), canonical(new)) == [
        "model.layers: 6 -> 2",
        'model.norm.pre.kind: "ModelNorm" -> (absent)',
        "model.norm.post_residual: null -> (absent)",
        'model.norm.final.kind: "ModelNorm" -> (absent)',
        "model.norm.pre: (absent) -> null",
        'model.norm.post_residual.kind: (absent) -> "ModelNorm"',
        "model.norm.final: (absent) -> null",
    ]
    assert differences(canonical(PRE), canonical(PRE)) == []


def test_canonical_rejects_arrays():
    with pytest.raises(UserError, match="no canonical form"):
        canonical(Example(amount=jnp.float32(0.5)))
