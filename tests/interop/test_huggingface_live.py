"""Hugging Face models made afresh, of architectures that the golden files do not have; where torch is installed."""

import importlib
import importlib.util
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from flaxformer.interop import load, save
from flaxformer.model import apply

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[1] / "golden" / "make_huggingface_golden.py"
FAMILIES = sorted(folder.name for folder in (Path(__file__).parents[1] / "golden" / "families").iterdir())
CASES = {
    "gpt2": ("GPT2", {"scale_attn_weights": False, "n_inner": None, "activation_function": "relu"}),
    "gpt2_untied": ("GPT2", {"tie_word_embeddings": False, "reorder_and_upcast_attn": True}),
    "bert": ("BERT", {"hidden_act": "relu", "type_vocab_size": 2}),
    "t5_gated": ("T5", {"feed_forward_proj": "gated-silu"}),
    "t5_exact": ("T5", {"feed_forward_proj": "gelu", "num_decoder_layers": None, "tie_word_embeddings": False}),
    "bart": ("BART", {"scale_embedding": True, "activation_function": "gelu_new"}),
    "llama": ("LLAMA", {"num_key_value_heads": None, "attention_bias": True, "rope_parameters": None}),
    "llama_mlp": ("LLAMA", {"mlp_bias": True, "head_dim": None, "hidden_size": 24, "hidden_act": "gelu"}),
}


@pytest.fixture(scope="module")
def golden():
    """The script, for its models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for library in ("torch", "transformers"):
            pytest.importorskip(library)
        spec = importlib.util.spec_from_file_location("make_huggingface_golden", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_logits_agree_both_ways(golden, case, tmp_path):
    make, changes = CASES[case]
    golden.FEWEST, golden.CLEAREST, golden.ROUGHEST = 0, 0, 2e-5
    model, wanted = golden.drawn(getattr(golden, make)(vocab_size=53, **changes))
    model.save_pretrained(tmp_path / "theirs")
    config, params = load(tmp_path / "theirs")
    names = {"valid": "valid", "source": "source", "source_valid": "source_valid", "types": "token_types"}
    given = {ours: wanted[theirs] for theirs, ours in names.items() if theirs in wanted}
    found = jax.jit(lambda params: apply(params, config, wanted["tokens"], **given))(params)
    valid = wanted["valid"]
    np.testing.assert_allclose(found[valid], wanted["logits"][valid], rtol=2e-5, atol=2e-5)

    save(tmp_path / "ours", config, params)
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    for name, weight in model.state_dict().items():
        read = 2 if "embed_positions" in name else 0
        np.testing.assert_array_equal(again.state_dict()[name][read:].numpy(), weight[read:].numpy())
    same = ("scale_decoder_outputs", "scale_embedding", "scale_attn_weights", "rms_norm_eps", "rope_parameters")
    for name in same:
        assert getattr(again.config, name, None) == getattr(model.config, name, None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [101, 102, 103, 104])
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_models_agree_both_ways(family, seed):
    for library in ("torch", "transformers"):
        pytest.importorskip(library)
    drawn = importlib.import_module("drawn_checkpoints")
    difference, largest = drawn.compare(family, seed)
    assert difference < 1e-4, f"{difference} of logits up to {largest}"
