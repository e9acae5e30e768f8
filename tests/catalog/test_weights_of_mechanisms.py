"""Mechanisms add as many weights as their files say."""

import math

import pytest
from mechanisms import BASELINE

from flaxformer import RMSNorm
from flaxformer.catalog import variants
from flaxformer.core.params import table
from flaxformer.core.paths import replace_at
from flaxformer.model import specs

D, H, V, F = 24, 6, 13, 20  # N heads of width H are D wide
N, K, LAYERS = 4, 2, 2
MODEL = BASELINE.model.replace(d_model=D, layers=LAYERS, vocabulary=V)
MODEL = replace_at(MODEL, {"attention.heads": N, "attention.key_value_heads": K, "feed_forward.d_ff": F})
FEED_FORWARD = 2 * D * F + F + D
PER_LAYER = {
    "path_attention": (
        {"attention.rank": 5},
        5 * (D + K * H) + 3 * K * H + D * K + K,
    ),
    "native_sparse_attention": ({}, 3 * D * N),
    "deepseek_sparse_attention": ({"attention.index_heads": 3, "attention.index_width": 4}, D * (3 * 4 + 4 + 3)),
    "gated_norm": ({"norm_kind.rank": 3}, 2 * (2 * 3 * D)),
    "latent_experts": (
        {"feed_forward.d_latent": 7, "feed_forward.experts": 5, "feed_forward.d_ff": F},
        5 * (2 * 7 * F) + 2 * D * 7 + D * 5 - FEED_FORWARD,
    ),
    "layer_drop": ({}, 0),
}


def count(model):
    return sum(math.prod(spec.shape) for _, spec in table(specs(model)))


@pytest.mark.parametrize("name", PER_LAYER)
def test_weights_per_layer(name):
    changes, expected = PER_LAYER[name]
    [variant] = variants(name).values()
    baseline = MODEL.replace(norm_kind=RMSNorm()) if name == "gated_norm" else MODEL
    model = replace_at(baseline, {path.removeprefix("model."): value for path, value in variant.items()} | changes)
    final = 2 * 3 * D if name == "gated_norm" else 0  # the final norm has a gate too
    assert count(model) - count(baseline) == LAYERS * expected + final


def test_weights_of_adaptive_computation_ngpt_and_engram():
    def of(name, **changes):
        [variant] = variants(name).values()
        model = {path.removeprefix("model."): value for path, value in variant.items() if path.startswith("model.")}
        return count(replace_at(MODEL, model | changes))

    looped = MODEL.replace(distinct_blocks=1)
    assert of("adaptive_computation") - count(looped) == D + 1
    no_biases = {"attention.bias": False, "attention.out_bias": False, "feed_forward.bias": False}
    gains = 2 * D * (2 * LAYERS + 1)  # of all LayerNorms
    plain = count(replace_at(MODEL, no_biases)) - gains + LAYERS * D * F  # a gated network has one matrix more
    assert of("ngpt") - plain == LAYERS * (2 * D + H * N + 2 * F) + V
    model = replace_at(MODEL, {path.removeprefix("model."): v for path, v in variants("engram")["Engram"].items()})
    blocks = [block.feed_forward for block in model.block_configs]
    memory = blocks[1]
    tables = 2 * memory.hashes
    per_memory = tables * memory.rows * memory.slot + 2 * D * tables * memory.slot + 3 * D + memory.width * D
    assert count(model) - count(MODEL) == per_memory
    assert type(blocks[0]) is type(MODEL.feed_forward)
