"""The studies of components, their classes, and their models at a size at which formulas are compared."""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer import catalog
from flaxformer.model import init
from flaxformer.study.load import load_study

ROOT = Path(__file__).parents[2]
FILES = {path.stem: path for folder in ("examples", "experiments") for path in ROOT.glob(f"{folder}/components/*.py")}
MODELS = {
    "attention_sinks": "attention=sink",
    "contextual_positions": "positions=contextual",
    "differential_attention": "attention=differential",
    "dynamic_tanh": "norm=DyT",
    "gated_delta_rule": "write=delta",
    "gated_linear_attention": "mixer=gated linear",
    "hyper_connections": "residual=4 streams",
    "learned_activation": "activation=learned Swish",
    "local_global": "pattern=3 local + 1 global",
    "looped_block": "blocks=1 block × 4",
    "mixture_of_experts": "network=experts",
    "multi_token_prediction": "head=4 tokens",
    "short_convolution": "first=convolution",
    "sigmoid_attention": "attention=sigmoid",
    "value_residual": "share=half",
}
"""The arm of each study that has the component in its model."""
NAMES = sorted(FILES)
VOCABULARY = 13


@functools.cache
def study_of(name):
    return load_study(FILES[name])


def class_of(name, kind):
    """A class of the catalog, or one that a study's file defines."""
    if hasattr(catalog, kind):
        return getattr(catalog, kind)
    study_of(name)
    [module] = [own for key, own in sys.modules.items() if key.startswith(f"{name}@")]
    return getattr(module, kind)


def run_of(name):
    """The run of the arm that has the component in its model."""
    [run] = [arm.run for arm in study_of(name).arms() if arm.name == MODELS[name]]
    return run


def small(config, **changes):
    """The model with two layers, the last two of a pattern, and few dimensions."""
    return config.replace(layers=min(2, config.layers), d_model=16, pattern=config.pattern[-2:], **changes)


def drawn(shapes):
    """Random numbers of these shapes, by NumPy: `init` compiles a program for every model."""
    dice = np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(0.5 * dice.standard_normal(x.shape), jnp.float32), shapes)


@functools.cache
def model_of(name):
    """The model of a component at reduced size, and weights none of which is at an initial 0 or 1."""
    config = small(run_of(name).model, vocabulary=VOCABULARY)
    return config, drawn(jax.eval_shape(lambda: init(jax.random.key(0), config)))
