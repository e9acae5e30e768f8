"""Grid of architectures for tests of general properties: every choice of every option, in mixed combinations.

A row of the grid has one choice per option. Options cycle with different periods, so that combinations vary. If two
choices contradict each other, the later one is left out of the row.

A choice is a change of the config: values by dotted path, or a function of the config.
"""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.components import (
    NO_NORM,
    POST,
    PRE,
    RES_POST_NORM,
    SANDWICH,
    Alibi,
    Attention,
    BatchNorm,
    ConcatenatedIndex,
    DeepNorm,
    Dense,
    Gated,
    LanguageModel,
    LayerNorm,
    LayerScale,
    LearnedPositions,
    NoPositions,
    NormPlacement,
    RelativeBuckets,
    ReZero,
    RMSNorm,
    Rotary,
    Sinusoidal,
    Tokens,
)
from flaxformer.config import ModelConfig
from flaxformer.core.params import path_name
from flaxformer.core.paths import replace_at
from flaxformer.model import init
from flaxformer.model.weights import with_layout
from flaxformer.nn.masks import lengths_to_valid
from flaxformer.system.errors import UserError

B, T, S, V = 2, 7, 5, 13  # distinct primes, so that a swapped axis fails
BASE = ModelConfig(vocabulary=V, layers=2, d_model=12, attention=Attention(heads=3), feed_forward=Dense(d_ff=17))
PREFIX = 3
DEFAULT, MORE = 9, 27
"""Number of rows that contain every choice, and number of further rows of mixed choices."""
SOME = 3
"""Number of further rows that are `slow`; the rest are `exhaustive`."""


def encoder_decoder(config):
    """Return the config with an encoder all of whose sizes differ from the decoder's."""
    attention = config.attention.replace(heads=2, key_value_heads=1, d_head=None, d_value=None)
    feed_forward = None if config.feed_forward is None else config.feed_forward.replace(d_ff=11)
    return config.with_encoder(layers=1, d_model=8, attention=attention, feed_forward=feed_forward)


OPTIONS = {
    "norm": {
        "pre": {"norm": PRE},
        "post": {"norm": POST},
        "sandwich": {"norm": SANDWICH},
        "branch-post": {"norm": RES_POST_NORM},
        "no norm": {"norm": NO_NORM},
        "post and embedding": {"norm": NormPlacement(post_residual=True, embedding=True)},
    },
    "positions": {
        "no positions": {"positions": NoPositions()},
        "sinusoidal": {"positions": Sinusoidal()},
        "split sinusoidal": {"positions": Sinusoidal(layout="split")},
        "learned": {"positions": LearnedPositions(max_length=11)},
        "index": {"positions": ConcatenatedIndex(scale=0.2)},
        "rotary": {"positions": Rotary()},
        "interleaved rotary": {"positions": Rotary(layout="interleaved")},
        "alibi": {"positions": Alibi()},
        "buckets": {"positions": RelativeBuckets(buckets=4, max_distance=5)},
    },
    "kind": {
        "layer": {"norm_kind": LayerNorm()},
        "layer gain": {"norm_kind": LayerNorm(affine="gain")},
        "layer plain": {"norm_kind": LayerNorm(affine="none")},
        "rms": {"norm_kind": RMSNorm()},
        "batch": {"norm_kind": BatchNorm()},
    },
    "mask_pattern": {"causal": {}, "window": {"attention.window": 3}, "prefix": {"mask_pattern": "prefix"}},
    "residual": {
        "plain": {},
        "rezero": {"residual": ReZero()},
        "layer scale": {"residual": LayerScale()},
        "deep norm": {"residual": DeepNorm()},
        "attention not residual": {"attention_residual": False},
        "feed-forward not residual": {"feed_forward_residual": False},
        "parallel": {"parallel": True},
    },
    "heads": {
        "as many": {},
        "one key-value head": {"attention.key_value_heads": 1},
        "d_value ≠ d_head": {"attention.d_head": 8, "attention.d_value": 7},
        "full values": {"attention.value_form": "full"},
    },
    "logits": {
        "1/√d": {},
        "unscaled": {"attention.scale_exponent": 0.0},
        "model width": {"attention.scale_width": "model"},
        "cap": {"attention.logit_cap": 2.0},
        "query-key norm": {"attention.query_key_norm": RMSNorm()},
        "shared query-key": {"attention.share_query_key": True},
        "frozen pattern": {"attention.frozen_pattern": 11},
    },
    "feed-forward": {
        "relu": {},
        "gelu": {"feed_forward.activation": "gelu"},
        "linear": {"feed_forward.activation": "linear"},
        "swiglu": {"feed_forward": Gated(d_ff=17, activation="silu")},
        "no feed-forward": {"feed_forward": None},
    },
    "biases": {
        "all": {},
        "no biases": {"attention.bias": False, "attention.out_bias": False, "feed_forward.bias": False},
        "qkv": {"attention.out_bias": False},
    },
    "head": {
        "untied": {},
        "tied": {"head": LanguageModel(tied=True, bias=True)},
        "transform": {"head": LanguageModel(transform="gelu", scale_exponent=0.5)},
    },
    "family": {"decoder": {}, "encoder-decoder": encoder_decoder},
    "lookup": {"gather": {}, "one-hot": {"inputs": Tokens(lookup="one-hot", scale_exponent=0.5)}},
}


def mixed(choices: dict[str, str]) -> tuple[ModelConfig, list[str]]:
    """Return the config with these choices, and their names; a choice that contradicts an earlier one is left out."""
    config, names = BASE, []
    for option, choice in choices.items():
        try:
            changed = apply_choice(config, OPTIONS[option][choice])
        except UserError:
            continue
        config, names = changed, [*names, choice]
    return config, names


def apply_choice(config, choice):
    """Return the config with a choice; without a feed-forward network, its fields are ignored."""
    if callable(choice):
        return choice(config)
    has_network = config.feed_forward is not None
    return replace_at(config, {p: v for p, v in choice.items() if has_network or not p.startswith("feed_forward.")})


def _rows() -> list[dict[str, str]]:
    """Return rows in which each option cycles through its choices in a shuffled order."""
    dice, columns = random.Random(1), {}
    for option, choices in OPTIONS.items():
        columns[option] = [list(choices)[i % len(choices)] for i in range(DEFAULT)]
        dice.shuffle(columns[option])
        columns[option] += dice.choices(list(choices), k=MORE)
    return [{option: column[i] for option, column in columns.items()} for i in range(DEFAULT + MORE)]


ROWS = _rows()
MIXED = [mixed(row) for row in ROWS]


def rows(default):
    """Return a parametrisation by all architectures, the first `default` of which run by default."""

    def marks(i):
        return () if i < default else pytest.mark.slow if i < DEFAULT + SOME else pytest.mark.exhaustive

    cases = [
        pytest.param(config, id=f"{i}: {', '.join(names)}", marks=marks(i)) for i, (config, names) in enumerate(MIXED)
    ]
    return pytest.mark.parametrize("config", cases)


grid, sparse_grid = rows(DEFAULT), rows(2)


def random_weights(config, layout="unrolled"):
    """Return random weights without initial zeros or ones, so that biases and gains have an effect.

    They are drawn by NumPy: `init` compiles a program for every shape, and no law is about its numbers.
    """
    dice = np.random.default_rng(0)

    def draw(path, leaf):
        name = path_name(path).split("/")[-1]
        near_one = name in ("gain", "variance")
        spread = 0.1 if near_one or "bias" in name else 0.4
        return jnp.asarray(near_one + spread * dice.uniform(-1.7, 1.7, leaf.shape), jnp.float32)

    shapes = jax.eval_shape(lambda: init(jax.random.key(0), config))
    return with_layout(jax.tree_util.tree_map_with_path(draw, shapes), layout)


def model_and_tokens(config, layout="unrolled"):
    """Return weights, tokens [B, T], and further arguments: a source with padding, a prefix."""
    tokens = jax.random.randint(jax.random.key(1), (B, T), 0, config.vocabulary)
    given = {}
    if config.encoder is not None:
        valid = lengths_to_valid(jnp.array([3, S]), S)
        given = {"source": jax.random.randint(jax.random.key(2), (B, S), 0, V), "source_valid": valid}
    if config.mask_pattern == "prefix":
        given["prefix"] = jnp.full((B,), PREFIX)
    return random_weights(config, layout), tokens, given
