"""Published architectures: exact numbers of parameters, and the configs that their checkpoints have."""

import re

import jax
import pytest

from flaxformer import model
from flaxformer.components import RelativeBuckets, Xavier
from flaxformer.config import PUBLISHED, ModelConfig
from flaxformer.core import params
from flaxformer.core.canonical import canonical
from flaxformer.core.overrides import override
from flaxformer.interop.huggingface.families import bert, gpt2, llama, t5
from flaxformer.interop.huggingface.family import WIDTHS, read_attributes
from flaxformer.interop.widths import with_explicit_widths
from flaxformer.system.errors import UserError
from flaxformer.system.json_differences import differences
from flaxformer.training import Run

COUNTS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-65b": 65_285_660_672,
    "llama-2-70b": 68_976_648_192,
}
"""Parameters of the published checkpoints, with the head of the masked language model for BERT."""
ROUNDED = {"transformer-base": 65e6, "transformer-big": 213e6}
"""Parameters as table 3 of Vaswani et al. 2017 has them."""


def _of_gpt2(layers, width, heads):
    return gpt2.FAMILY, {"vocab_size": 50257, "n_positions": 1024, "n_embd": width, "n_layer": layers, "n_head": heads}


def _of_bert(layers, width, heads):
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return bert.FAMILY, {"vocab_size": 30522, "intermediate_size": 4 * width} | sizes


def _of_t5(layers, width, heads, d_ff):
    sizes = {"d_model": width, "num_layers": layers, "num_heads": heads, "d_ff": d_ff}
    return t5.FAMILY, {"vocab_size": 32128, "d_kv": 64, "feed_forward_proj": "relu"} | sizes


def _of_llama(layers, width, heads, d_ff, epsilon, key_value_heads=None):
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": d_ff}
    more = {"num_key_value_heads": key_value_heads} if key_value_heads else {}
    return llama.FAMILY, {"vocab_size": 32000, "rms_norm_eps": epsilon} | sizes | more


CHECKPOINTS = {
    "gpt2": _of_gpt2(12, 768, 12),
    "gpt2-medium": _of_gpt2(24, 1024, 16),
    "gpt2-large": _of_gpt2(36, 1280, 20),
    "gpt2-xl": _of_gpt2(48, 1600, 25),
    "bert-base": _of_bert(12, 768, 12),
    "bert-large": _of_bert(24, 1024, 16),
    "t5-small": _of_t5(6, 512, 8, 2048),
    "t5-base": _of_t5(12, 768, 12, 3072),
    "t5-large": _of_t5(24, 1024, 16, 4096),
    "llama-7b": _of_llama(32, 4096, 32, 11008, 1e-6),
    "llama-13b": _of_llama(40, 5120, 40, 13824, 1e-6),
    "llama-65b": _of_llama(80, 8192, 64, 22016, 1e-5),
    "llama-2-70b": _of_llama(80, 8192, 64, 28672, 1e-5, 8),
}
"""The family of each published checkpoint, and the sizes of its config.json."""


def without_initializers(config):
    """A config with the initial values of configs that are read from checkpoints."""
    encoder = config.encoder and without_initializers(config.encoder)
    positions = config.positions
    positions = positions.replace(std=0.02) if isinstance(positions, RelativeBuckets) else positions
    return config.replace(initializer=Xavier(), initial=(), positions=positions, encoder=encoder)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_number_of_parameters_is_the_published_one(name):
    count = params.count(model.specs(PUBLISHED[name]))
    if name in COUNTS:
        assert count == COUNTS[name]
    else:
        assert count == pytest.approx(ROUNDED[name], rel=0.04)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_config_is_that_of_the_published_checkpoint(name):
    family, attributes = CHECKPOINTS[name]
    found = with_explicit_widths(without_initializers(PUBLISHED[name]), *WIDTHS)
    assert differences(canonical(read_attributes(family, attributes, {})), canonical(found)) == []


def deviations(config):
    """The standard deviation of each matrix of a model, by its name without the number of the layer."""
    weights = model.init(jax.random.key(0), config)
    return {
        re.sub(r"blocks/\d+/", "", path): float(leaf.std()) for path, leaf in params.table(weights) if leaf.ndim > 1
    }


def test_gpt2_starts_as_its_publication_says():
    measured = deviations(PUBLISHED["gpt2"].replace(layers=2, vocabulary=200))
    outputs = {"attention/out", "feed_forward/down"}
    assert outputs < measured.keys()
    for name, deviation in measured.items():
        if "bias" not in name and name != "positions/table":
            assert deviation == pytest.approx(0.02 / 2 if name in outputs else 0.02, rel=0.02), name


@pytest.mark.long
def test_t5_starts_as_its_code_does():
    """The deviations of T5PreTrainedModel._init_weights of transformers 5.24, with a factor of 1."""
    d_model, heads, d_head, d_ff = 512, 8, 64, 2048
    measured = deviations(PUBLISHED["t5-small"].replace(layers=1))
    expected = {"query": (d_model * d_head) ** -0.5, "key": d_model**-0.5, "value": d_model**-0.5}
    expected |= {"out": (heads * d_head) ** -0.5, "up": d_model**-0.5, "down": d_ff**-0.5, "tokens": 1.0}
    expected |= {"table": d_model**-0.5}
    for name, deviation in measured.items():
        rel = 0.2 if name.endswith("table") else 0.02  # of 256 numbers
        assert deviation == pytest.approx(expected[name.rpartition("/")[2]], rel=rel), name


@pytest.mark.every(3)
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_forward_pass_has_the_shape_of_the_vocabulary(name):
    config = PUBLISHED[name]
    tokens = jax.ShapeDtypeStruct((1, 8), "int32")
    given = {} if config.encoder is None else {"source": tokens}
    weights = jax.eval_shape(lambda: model.init(jax.random.key(0), config, "scanned"))
    found = jax.eval_shape(lambda *own: model.apply(own[0], config, own[1], **own[2]), weights, tokens, given)
    assert found.shape == (1, 8, config.vocabulary)


def test_a_name_stands_for_a_config_in_python_and_on_the_command_line():
    assert Run(model="gpt2").model == PUBLISHED["gpt2"]
    changed = override(Run(), ["model=gpt2", "model.layers=2"])
    assert changed.model == PUBLISHED["gpt2"].replace(layers=2)
    with pytest.raises(UserError, match="did you mean 'gpt2'"):
        override(Run(), ["model=gpt-2"])
    assert isinstance(PUBLISHED["bert-base"], ModelConfig)
