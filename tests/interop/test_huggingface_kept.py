"""What a checkpoint says beside the architecture survives reading and writing: every attribute of every family."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from flaxformer.interop.huggingface import FAMILIES, load, save
from flaxformer.interop.huggingface.family import read_attributes, rows_of, write_attributes
from flaxformer.interop.tensors import declared_rows, to_tensors
from flaxformer.model import init, specs
from flaxformer.system.errors import UserError

SIZES = {
    "gpt2": {"vocab_size": 11, "n_embd": 4, "n_layer": 1, "n_head": 2, "n_positions": 6},
    "bert": {
        "vocab_size": 11, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 5,
    },
    "t5": {"vocab_size": 11, "d_model": 4, "d_kv": 2, "d_ff": 5, "num_layers": 1, "num_heads": 2},
    "bart": {
        "vocab_size": 11, "d_model": 4, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 5, "decoder_ffn_dim": 5, "is_encoder_decoder": True,
    },
    "llama": {
        "vocab_size": 11, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 5,
    },
}  # fmt: skip
SIZES["t5"]["is_encoder_decoder"] = True


def checkpoint(folder, name, architecture=None, **attributes):
    """Write a checkpoint with random weights, and return the attributes of its config.json."""
    family = FAMILIES[name]
    given = {
        "model_type": name,
        "architectures": [architecture or family.architectures[0]],
        **SIZES[name],
        **attributes,
    }

    config = read_attributes(family, given, {})
    declarations = specs(config)
    rows = declared_rows(rows_of(family, config), declarations)
    folder.mkdir()
    save_file(
        dict(to_tensors(rows, declarations, init(jax.random.key(0), config), "weights")), folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(given))
    return given


@pytest.mark.every(5, "long")
@pytest.mark.parametrize("name", SIZES)
def test_attributes_that_change_no_number_are_written_as_they_were_read(name, tmp_path):
    kept = FAMILIES[name].kept_names - {"problem_type", "num_hidden_layers", "is_gated_act", "dense_act_fn"}
    values = {attribute: f"value of {attribute}" for attribute in kept if "label" not in attribute}
    values |= {"pad_token_id": 3, "decoder_start_token_id": 7, "id2label": {"0": "a", "1": "b"}}
    checkpoint(tmp_path / "one", name, **values)
    (tmp_path / "one" / "generation_config.json").write_text('{"max_new_tokens": 9}')
    config, params = load(tmp_path / "one")
    save(tmp_path / "two", config.replace(dropout=0.25), params)
    written = json.loads((tmp_path / "two" / "config.json").read_text())
    assert {attribute: written.get(attribute) for attribute in values} == values
    assert json.loads((tmp_path / "two" / "generation_config.json").read_text()) == {"max_new_tokens": 9}
    again = load(tmp_path / "two")
    assert again[0].checkpoint == config.checkpoint
    jax.tree.map(np.testing.assert_array_equal, again[1], params)


def test_names_of_labels_are_kept_while_the_number_of_classes_is(tmp_path):
    labels = {"id2label": {"0": "bad", "1": "ok", "2": "good"}, "label2id": {"bad": 0, "ok": 1, "good": 2}}
    checkpoint(tmp_path / "one", "gpt2", "GPT2ForSequenceClassification", pad_token_id=0, **labels)
    config, params = load(tmp_path / "one")
    save(tmp_path / "two", config, params)
    written = json.loads((tmp_path / "two" / "config.json").read_text())
    assert {name: written[name] for name in (*labels, "pad_token_id")} == labels | {"pad_token_id": 0}
    larger = config.replace(head=config.head.replace(classes=4))
    assert write_attributes(FAMILIES["gpt2"], larger)["id2label"] == {str(i): f"LABEL_{i}" for i in range(4)}


@pytest.mark.every(5)
@pytest.mark.parametrize("architecture", ["BertModel", "BertForTokenClassification", "BertForMaskedLM"])
@pytest.mark.parametrize("activation", ["gelu", "relu", "gelu_new", "silu"])
def test_bert_is_saved_with_any_activation_and_head(architecture, activation, tmp_path):
    checkpoint(tmp_path / "one", "bert", architecture, hidden_act=activation)
    config, params = load(tmp_path / "one")
    save(tmp_path / "two", config, params)
    assert load(tmp_path / "two")[0] == config


def test_a_model_of_this_package_is_written_with_the_tokens_that_t5_needs(tmp_path):
    checkpoint(tmp_path / "one", "t5")
    config, params = load(tmp_path / "one")
    save(tmp_path / "two", config.replace(checkpoint=""), params)
    written = json.loads((tmp_path / "two" / "config.json").read_text())
    assert (written["decoder_start_token_id"], written["eos_token_id"], written["pad_token_id"]) == (0, 1, 0)


@pytest.mark.parametrize("text", ["[1]", "nothing", '{"config.json": 3}'])
def test_a_checkpoint_that_is_not_json_is_refused(text, tmp_path):
    checkpoint(tmp_path / "one", "gpt2")
    config, params = load(tmp_path / "one")
    with pytest.raises(UserError, match=r"checkpoint is .*; expected a JSON object"):
        save(tmp_path / "two", config.replace(checkpoint=text), params)
