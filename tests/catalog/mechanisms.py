"""Every mechanism of the catalog in a model of a size at which laws and formulas are tried."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import (
    AdamW,
    AssociativeRecall,
    Attention,
    Context,
    Dense,
    FeedForward,
    ModelConfig,
    NoPositions,
    Run,
    TokenMixer,
    Training,
)
from flaxformer.catalog import mechanisms, variants
from flaxformer.components.component import with_aux
from flaxformer.core.paths import replace_at
from flaxformer.model import init, specs

BASELINE = Run(
    model=ModelConfig(
        layers=2, d_model=16, attention=Attention(heads=2), feed_forward=Dense(d_ff=32), positions=NoPositions()
    ),
    task=AssociativeRecall(pairs=3, queries=2, keys=6, values=6, batch_size=8),
    optimizer=AdamW(learning_rate=3e-3, warmup_steps=2),
    training=Training(steps=8, evaluate_every=4),
)
NAMES = list(mechanisms())
TASKS = {
    f"{name}:{label}": changes
    for name in NAMES
    if mechanisms()[name].family == "tasks"
    for label, changes in variants(name).items()
}
"""Changes of the baseline by every task of the catalog, as `ARMS`."""
ARMS = {f"{name}:{label}": changes for name in NAMES for label, changes in variants(name).items()}
ARMS = {arm: changes for arm, changes in ARMS.items() if arm not in TASKS}
"""Changes of every arm of the catalog, by the name of its file and its label; tasks are not arms."""


@functools.cache
def run_of(arm):
    """The run of an arm, such as "sinks:learned sink", with a layer for each block of its pattern."""
    changes = (ARMS | TASKS)[arm]
    layers = max(BASELINE.model.layers, len(changes.get("model.pattern", ())))
    return replace_at(BASELINE, {"model.layers": layers} | changes)


def drawn(shapes, scale=0.5):
    """Random numbers of these shapes, so that no weight is at an initial 0 or 1."""
    dice = np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(scale * dice.standard_normal(x.shape), jnp.float32), shapes)


@functools.cache
def model_of(arm):
    """The model of an arm, and random weights."""
    config = run_of(arm).model.replace(vocabulary=BASELINE.task.vocabulary)
    return config, drawn(jax.eval_shape(lambda: init(jax.random.key(0), config)))


def weights_of(component, d_model, layers=1):
    """Random weights of a component in double precision, for a model of one layer."""
    place = "feed_forward" if isinstance(component, FeedForward) else "attention"
    assert isinstance(component, FeedForward | TokenMixer)
    model = ModelConfig(
        layers=layers,
        d_model=d_model,
        **({"attention": Attention(heads=2), "positions": NoPositions()} | {place: component}),
    )
    dice = np.random.default_rng(0)
    declared = getattr(specs(model).blocks[0], place)
    return jax.tree.map(lambda spec: dice.standard_normal(spec.shape), declared)


def applied(component, weights, x, **context):
    """The update of a sequence [T, D] in double precision, and the `Aux`."""
    positions = jnp.arange(x.shape[-2])
    with jax.enable_x64(True):
        shared = Context(query_positions=positions, key_positions=positions, **context)
        return with_aux(jax.jit(component.apply)(jax.tree.map(jnp.asarray, weights), jnp.asarray(x), shared))
