"""Every family against logits, tokens and files of transformers: golden files of `drawn_checkpoints.py write`."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from flaxformer.components import NoPositions, Rotary, YaRN
from flaxformer.core.paths import replace_at
from flaxformer.interop import load, save
from flaxformer.interop.huggingface import FAMILIES
from flaxformer.interop.huggingface.attributes import IGNORED
from flaxformer.interop.huggingface.family import read_attributes, write_attributes
from flaxformer.model import ArrayIndex, apply, generate
from flaxformer.system.errors import UserError

GOLDEN = Path(__file__).parents[1] / "golden" / "families"
CASES = sorted(folder.name for folder in GOLDEN.iterdir())
SLIDING, FULL = "sliding_attention", "full_attention"
UNREAD = {"opt": 2, "roberta": 2}
"""Rows of the table of positions that are not read."""


@functools.cache
def attributes_of(case):
    return json.loads((GOLDEN / case / "config.json").read_text())


@functools.cache
def loaded(case):
    return load(GOLDEN / case)


@functools.cache
def expected(case):
    with np.load(GOLDEN / case / "expected.npz", allow_pickle=False) as file:
        return {name: jnp.asarray(array) for name, array in file.items()}


def read(case, **changes):
    return read_attributes(FAMILIES[case], attributes_of(case) | changes, {})


def source(case):
    found = {name: array for name, array in expected(case).items() if name.startswith("source")}
    return found | ({"source_positions": ArrayIndex()} if found else {})


def test_every_family_has_golden_files():
    assert {*CASES} == {*FAMILIES} - {"gpt2", "bert", "t5", "bart"}


@pytest.mark.every(5, "long")
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case):
    config, params = loaded(case)
    wanted = expected(case)
    given = source(case) | {name: wanted[name] for name in ("valid",) if name in wanted}
    logits = jax.jit(lambda params, x, given: apply(params, config, x, **given))(params, wanted["inputs"], given)
    valid = np.asarray(wanted.get("valid", True))
    np.testing.assert_allclose(np.asarray(logits)[valid], wanted["logits"][valid], rtol=3e-5, atol=3e-5)


@pytest.mark.every(2, "long")
@pytest.mark.every(4)
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("roberta", "distilbert", "modernbert", "vit")])
def test_greedy_tokens_equal_those_of_transformers(case):
    config, params = loaded(case)
    wanted = expected(case)
    steps = wanted["generated"].shape[1]
    answer = generate(params, config, wanted["prompt"], steps=steps, valid=wanted["prompt_valid"], **source(case))
    is_end = np.asarray(answer.tokens) == 2
    tokens = np.where(np.cumsum(is_end, -1) - is_end > 0, 0, answer.tokens)
    np.testing.assert_array_equal(tokens, wanted["generated"])


@pytest.mark.parametrize("case", CASES)
def test_saved_files_equal_those_of_transformers(case, tmp_path):
    config, params = loaded(case)
    save(tmp_path, config, params)
    original, written = (load_file(folder / "model.safetensors") for folder in (GOLDEN / case, tmp_path))
    assert written.keys() == original.keys()
    for name, tensor in written.items():
        rows = UNREAD.get(case, 0) if "position" in name else 0
        np.testing.assert_array_equal(tensor[rows:], original[name][rows:], strict=True)
    attributes = json.loads((tmp_path / "config.json").read_text())
    assert attributes["model_type"] == case
    assert load(tmp_path)[0] == config


def other(value):
    """Another value of the type of an attribute."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2
    if isinstance(value, list):
        return [*value[1:], value[0]] if value[1:] != value[:-1] else [*value, *value]
    if isinstance(value, dict):
        return (
            value | {"rope_theta": 77.0}
            if "rope_theta" in value
            else {key: other(inner) for key, inner in value.items()}
        )
    return "another" if value is None or isinstance(value, str) else value


@pytest.mark.parametrize("case", CASES)
def test_no_attribute_is_without_an_effect_unless_it_is_listed(case):
    family = FAMILIES[case]
    listed = {name for words in {**IGNORED, **family.ignored}.values() for name in words.split()}
    listed |= {attribute.name for attribute in family.attributes if attribute.is_kept}
    listed |= {name for group in family.groups for name in getattr(group, "read_by_types", ())}
    listed |= {
        "no_rope_layer_interval",
        "_remove_final_layer_norm",
    }  # beside others of their values, as in transformers
    if SLIDING not in attributes_of(case).get("layer_types", [SLIDING]):
        listed |= {"sliding_window", "use_sliding_window"}
    plain = read(case).replace(checkpoint="")
    for name, value in attributes_of(case).items():
        if name in listed:
            continue
        for changed in (other(value), 3):
            try:
                config = read(case, **{name: changed}).replace(checkpoint="")
            except (UserError, TypeError):
                break
            if config != plain:
                break
        else:
            pytest.fail(f"'{name}' changes nothing")
    with pytest.raises(UserError, match="'a_new_option' 3, an unknown attribute"):
        read(case, a_new_option=3)


TYPES = {"layer_types": [SLIDING, FULL]}
BASES = {"rope_parameters": {SLIDING: {"rope_theta": 3.0}, FULL: {"rope_theta": 4.0}}}
OLD_BASES = {"rope_parameters": None, "rope_theta": 8.0, "rope_local_base_freq": 5.0, "sliding_window_pattern": 2}
SWITCHED = {"use_sliding_window": True, "sliding_window": 5}
BY_DEFAULT = {"sliding_window": 9, "layer_types": None}
MEANINGS = {
    "mistral": ({"sliding_window": None}, [(None, 7.0), (None, 7.0)]),
    "qwen2": (SWITCHED | TYPES, [(5, 7.0), (None, 7.0)]),
    "qwen3": (SWITCHED | {"layer_types": None, "max_window_layers": 1}, [(None, 7.0), (5, 7.0)]),
    "gemma2": (BY_DEFAULT, [(9, 7.0), (None, 7.0)]),
    "gemma3_text": (BY_DEFAULT | OLD_BASES, [(9, 5.0), (None, 8.0)]),
    "olmo3": ({"sliding_window": 9} | TYPES | BASES, [(9, 3.0), (None, 4.0)]),
    "smollm3": (SWITCHED | {"no_rope_layers": [0, 1], "layer_types": None}, [(5, None), (None, 7.0)]),
    "gpt_oss": (BY_DEFAULT, [(9, 7.0), (None, 7.0)]),
}
"""Attributes of two layers, and the window and the rotary base of each."""


@pytest.mark.parametrize("case", MEANINGS)
def test_each_layer_has_its_window_and_its_positions(case):
    changes, layers = MEANINGS[case]
    base = {"num_hidden_layers": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}
    config = read(case, **(base | changes))
    kinds = [(layer.attention.window, layer.attention_scheme) for layer in config.layer_configs]
    assert [(window, getattr(scheme, "base", None)) for window, scheme in kinds] == layers
    assert {type(scheme) for _, scheme in kinds} <= {Rotary, NoPositions}
    assert read_attributes(FAMILIES[case], write_attributes(FAMILIES[case], config), {}) == config


REFUSED = [
    ("gemma3_text", {"attn_logit_softcapping": 30.0}, "'attn_logit_softcapping' 30.0; expected None"),
    ("gemma2", {"use_bidirectional_attention": True}, "'use_bidirectional_attention' True; expected False"),
    ("gemma2", {"sliding_window": None}, "layers of the type 'sliding_attention' with 'sliding_window' None"),
    ("gemma2", {"query_pre_attn_scalar": 2.5}, "'query_pre_attn_scalar' 2.5; expected an integer"),
    ("qwen2", {"use_sliding_window": False, "layer_types": [SLIDING] * 2, "num_hidden_layers": 2}, "window' False and"),
    ("qwen3", {"layer_types": ["linear_attention"]}, "'layer_types' .*; expected 'full_attention' or 'sliding_att"),
    ("olmo3", {"rope_parameters": {"rope_theta": 5.0}}, "'rope_parameters' of .*; expected .'full_attention', 'slid"),
    ("smollm3", {"no_rope_layers": [1]}, "'no_rope_layers' .1.; expected 0 or 1 for each of"),
    ("mistral", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1.0}}, "the type 'dynamic'"),
    ("opt", {"word_embed_proj_dim": 512}, "'word_embed_proj_dim' 512; expected"),
    ("roberta", {"pad_token_id": 0}, "'pad_token_id' 0; expected 1"),
    ("roberta", {"tie_word_embeddings": False}, "'tie_word_embeddings' False; expected True"),
    ("marian", {"share_encoder_decoder_embeddings": False}, "'share_encoder_decoder_embeddings' False; expected True"),
    ("marian", {"decoder_vocab_size": 5}, "'decoder_vocab_size' 5; expected the vocabulary of another attribute"),
    ("vit", {"patch_size": [2, 3]}, "'patch_size' .2, 3.; expected square patches"),
    ("gpt_oss", {"quantization_config": {"quant_method": "mxfp4"}}, "'quantization_config' .*, an unknown attribute"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "changes", "message"), REFUSED, ids=str)
def test_options_that_cannot_be_expressed_are_refused_by_name(case, changes, message):
    with pytest.raises(UserError, match=message):
        read(case, **changes)


def test_other_tables_of_positions_than_sines_are_refused():
    state = load_file(GOLDEN / "marian" / "model.safetensors")
    width = attributes_of("marian")["d_model"]
    angles = np.arange(29)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    name = "model.encoder.embed_positions.weight"
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    jax.tree.map(
        np.testing.assert_array_equal, load(state | {name: table}, attributes_of("marian"))[1], loaded("marian")[1]
    )
    with pytest.raises(UserError, match=r"'model\.encoder\.embed_positions\.weight' differs from sines"):
        load(state | {name: table[::-1]}, attributes_of("marian"))


@pytest.mark.parametrize(
    ("parameters", "magnitude"),
    [
        ({}, 0.1 * np.log(4) + 1),
        ({"attention_factor": 1.7}, 1.7),
        ({"mscale": 0.7, "mscale_all_dim": 0.5}, (0.07 * np.log(4) + 1) / (0.05 * np.log(4) + 1)),
    ],
)
def test_yarn_has_the_attention_factor_of_its_parameters(parameters, magnitude):
    scaling = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0} | parameters
    config = read("llama", rope_parameters=scaling, max_position_embeddings=64)
    assert isinstance(config.positions.scaling, YaRN)
    assert config.positions.scaling.original_length == 64
    np.testing.assert_allclose(config.positions.scaling.magnitude(), magnitude, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions.scaling.magnitude_slope": 0.3}, r"positions\.scaling\.magnitude_slope: 0.3 -> 0.1"),
        ({"positions": NoPositions()}, "positions are NoPositions; expected Rotary"),
        ({"attention.window": 3}, r"attention\.window: 3 -> null"),
    ],
)
def test_what_a_family_lacks_is_not_written(changes, message, tmp_path):
    config, params = loaded("llama")
    with pytest.raises(UserError, match=message):
        save(tmp_path, replace_at(config, changes), params, family="llama")
