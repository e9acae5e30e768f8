"""Tiny runs of every model family, each with a batch in which some sequences and sources have padding."""

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer.components import SANDWICH, Attention, BatchNorm, Dense, Elman, LayerScale, Tokens
from flaxformer.config import ModelConfig, recurrent_model
from flaxformer.core.params import path_name
from flaxformer.model.weights import with_layout
from flaxformer.nn.masks import lengths_to_valid
from flaxformer.tasks import Batch, Copy
from flaxformer.training import AdamW, Run, start

B, T, S, V = 2, 7, 5, 13
LENGTHS, SOURCE_LENGTHS = (7, 4), (3, 5)
BASE = ModelConfig(
    vocabulary=V,
    layers=2,
    d_model=6,
    attention=Attention(heads=2, bias=False),
    feed_forward=Dense(d_ff=11),
    inputs=Tokens(scale_exponent=0.0),
)
MODELS = {
    "decoder": BASE.replace(
        attention=BASE.attention.replace(key_value_heads=1),
        dropout=0.2,
        norm=SANDWICH,
        norm_kind=BatchNorm(),
        residual=LayerScale(),
        layers=1,
    ),
    "encoder-decoder": BASE.with_encoder(layers=1, d_model=10, attention=BASE.attention.replace(heads=5)),
    "recurrent": recurrent_model(Elman(), vocabulary=V, layers=2, d_model=6),
}
# A large epsilon, so that Adam does not amplify gradients that are rounding errors.
OPTIMIZER = AdamW(learning_rate=1e-2, warmup_steps=3.0, weight_decay=0.1, epsilon=1e-3)


def run_of(model):
    """Return a run of the model, with a task that fits it; the tests use a batch of their own."""
    paired = model.encoder is not None
    task = Copy(symbols=V - 1, length=T if paired else 3, form="paired" if paired else "joined")
    return Run(model=model, task=task, optimizer=OPTIMIZER)


def state_of(run, layout="unrolled"):
    """Return a state before the first step with no weight 0 or 1, drawn by NumPy, since compiling `start` is slow."""
    dice, shapes = np.random.default_rng(0), jax.eval_shape(lambda: start(run))

    def draw(path, leaf):
        near_one = path_name(path).split("/")[-1] in ("gain", "variance")
        return jnp.asarray(near_one + 0.4 * dice.uniform(-1.7, 1.7, leaf.shape), jnp.float32)

    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    state = state.replace(diverged_at=jnp.int32(-1), params=jax.tree_util.tree_map_with_path(draw, shapes.params))
    return in_layout(state, run, layout)


def in_layout(state, run, layout):
    """Return the same state with its layers unrolled or scanned."""
    shapes = jax.eval_shape(lambda: start(run, layout))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes.optimizer)
    return state.replace(params=with_layout(state.params, layout), optimizer=zeros)


def batch_of(run):
    """Return a batch whose second sequence has padding, and whose first source has padding."""
    dice, valid = np.random.default_rng(1), lengths_to_valid(jnp.array(LENGTHS), T)
    inputs, targets = (jnp.asarray(dice.integers(0, V, (B, T)), jnp.int32) for _ in range(2))
    batch = Batch(inputs=inputs, targets=targets, weights=valid.astype(jnp.float32), valid=valid)
    if run.model.encoder is None:
        return batch
    source = jnp.asarray(dice.integers(0, V, (B, S)), jnp.int32)
    return batch.replace(source=source, source_valid=lengths_to_valid(jnp.array(SOURCE_LENGTHS), S))


def case(name, layout="unrolled"):
    """Return a run, its state before the first step, and a batch."""
    run = run_of(MODELS[name])
    return run, state_of(run, layout), batch_of(run)
