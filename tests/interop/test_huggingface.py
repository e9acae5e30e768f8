"""Hugging Face models: logits, generation, reading and writing of files, and error messages.

The files come from tests/golden/make_huggingface_golden.py, as transformers wrote them.
"""

import functools
import json
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flaxformer.components import (
    SANDWICH,
    Attention,
    Dense,
    Gated,
    LanguageModel,
    LearnedPositions,
    Normal,
    NormPlacement,
    Sinusoidal,
    Tokens,
)
from flaxformer.config import ModelConfig
from flaxformer.core.params import count
from flaxformer.core.paths import get_at, replace_at
from flaxformer.interop import load, load_tokenizer, save
from flaxformer.interop.huggingface import FAMILIES
from flaxformer.interop.huggingface.family import read_attributes, write_attributes
from flaxformer.model import ArrayIndex, apply, init, specs
from flaxformer.model.decoding import generate
from flaxformer.model.weights import with_layout
from flaxformer.system.errors import UserError

GOLDEN = Path(__file__).parents[1] / "golden" / "huggingface"
CASES = sorted(folder.name for folder in GOLDEN.iterdir())
LIKE_OTHERS = ("t5", "llama_biases")  # whose generation differs from another case's in what the logits show
DECODERS = [pytest.param(case, marks=[pytest.mark.slow] * (case in LIKE_OTHERS)) for case in CASES if case != "bert"]
BY_STACK = {"layers": 1, "attention_heads": 2, "ffn_dim": 5}
BERT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 5}
SIZES = {
    "gpt2": {"n_embd": 6, "n_layer": 1, "n_head": 2},
    "bert": BERT,
    "t5": {"d_model": 6, "d_ff": 5, "num_layers": 1, "num_heads": 2},
    "bart": {"d_model": 6} | {f"{s}_{name}": n for s in ("encoder", "decoder") for name, n in BY_STACK.items()},
    "llama": BERT,
}
"""Attributes without a default."""


@functools.cache
def files(case):
    """Return the content of config.json and the tensors."""
    return json.loads((GOLDEN / case / "config.json").read_text()), load_file(GOLDEN / case / "model.safetensors")


@functools.cache
def loaded(case):
    return load(GOLDEN / case)


@functools.cache
def expected(case):
    with np.load(GOLDEN / case / "expected.npz", allow_pickle=False) as file:
        return dict(file)


def given(case):
    """The source; transformers gives its tokens the positions 0, 1, 2 … of the array, whatever the padding."""
    found = {name: expected(case)[name] for name in ("source", "source_valid") if name in expected(case)}
    return found | ({"source_positions": ArrayIndex()} if found else {})


@functools.cache
def compiled(config):
    return jax.jit(lambda params, tokens, given: apply(params, config, tokens, **given))


def logits(case, config, params):
    found = expected(case)
    more = {"token_types": found["types"]} if "types" in found else {}
    return compiled(config)(params, found["tokens"], {"valid": found["valid"], **given(case), **more})


def assert_same(found, wanted):
    """Check that configs are equal and weights are bitwise equal."""
    assert found[0] == wanted[0]
    assert jax.tree.structure(found[1]) == jax.tree.structure(wanted[1])
    for one, other in zip(jax.tree.leaves(found[1]), jax.tree.leaves(wanted[1]), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


# --- what is computed -----------------------------------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case):
    found, valid = expected(case), expected(case)["valid"]
    np.testing.assert_allclose(logits(case, *loaded(case))[valid], found["logits"][valid], rtol=1e-5, atol=1e-5)


@pytest.mark.every(2)
@pytest.mark.parametrize("case", DECODERS)
def test_greedy_generation_equals_that_of_transformers(case):
    config, params = loaded(case)
    found = expected(case)
    steps = found["generated"].shape[1]
    answer = generate(params, config, found["prompt"], steps=steps, valid=found["prompt_valid"], **given(case))
    np.testing.assert_array_equal(answer.tokens, found["generated"])


# --- what is read and written -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_every_number_of_the_file_is_read_once(case):
    config, params = loaded(case)
    tensors = files(case)[1]
    unread = 2 * 2 * 14 if case == "bart" else 0  # the rows before the first position, of both stacks
    assert count(specs(config)) == sum(tensor.size for tensor in tensors.values()) - unread
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    numbers = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    rows = {name: tensor[2:] if "embed_positions" in name else tensor for name, tensor in tensors.items()}
    np.testing.assert_array_equal(np.sort(numbers), np.sort(np.concatenate([np.ravel(row) for row in rows.values()])))


@pytest.mark.parametrize("case", CASES)
def test_saved_files_equal_loaded_ones(case, tmp_path):
    save(tmp_path, *loaded(case))
    assert_same(load(tmp_path), loaded(case))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    written, original = load_file(tmp_path / "model.safetensors"), files(case)[1]
    assert written.keys() == original.keys()
    for name, tensor in written.items():
        read = 2 if "embed_positions" in name else 0
        np.testing.assert_array_equal(tensor[read:], original[name][read:], strict=True)
    assert set(json.loads((tmp_path / "config.json").read_text())) - {"torch_dtype", "rope_theta"} <= set(
        files(case)[0]
    )


@pytest.mark.parametrize("case", ["gpt2", "bart"])
def test_scanned_layers_and_other_initial_values_are_saved(case, tmp_path):
    config, params = loaded(case)
    save(
        tmp_path,
        config.replace(initializer=Normal(), inputs=config.inputs.replace(std=0.5)),
        with_layout(params, "scanned"),
    )
    assert_same(load(tmp_path), (config, params))


def test_own_model_is_saved_with_explicit_widths(tmp_path):
    positions = LearnedPositions(max_length=5)
    norm = NormPlacement(post_residual=True, embedding=True)
    head = LanguageModel(tied=True, bias=True)
    heads = [Attention(heads=count) for count in (2, 3)]
    config = ModelConfig(
        vocabulary=7, layers=1, d_model=6, attention=heads[0], norm=norm, positions=positions, head=head,
        inputs=Tokens(std=0.02),
    )  # fmt: skip
    config = config.with_encoder(inputs=Tokens(shared=True), attention=heads[1])
    params = init(jax.random.key(0), config)
    save(tmp_path, config, params)
    again = load(tmp_path)
    assert_same((again[0].encoder, again[1]), (again[0].encoder, params))
    for stack, d_head in ((again[0], 3), (again[0].encoder, 2)):
        assert (stack.feed_forward.d_ff, stack.attention.d_head) == (24, d_head)
    assert json.loads((tmp_path / "config.json").read_text())["encoder_ffn_dim"] == 24


def test_state_dict_is_read_with_its_config():
    assert_same(load(files("gpt2")[1], files("gpt2")[0]), loaded("gpt2"))
    with pytest.raises(UserError, match=r"config is None; expected the content of config\.json"):
        load(files("gpt2")[1])


def test_weights_may_be_split_into_several_files(tmp_path):
    attributes, tensors = files("llama")
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensor for name, tensor in tensors.items() if places[name] == file}, tmp_path / file)
    (tmp_path / "config.json").write_text(json.dumps(attributes))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert_same(load(tmp_path), loaded("llama"))
    swapped = dict(zip(places, reversed(places.values()), strict=True))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": swapped}))
    with pytest.raises(UserError, match=r"index\.json has '.*' in model-\d\.safetensors; expected it there"):
        load(tmp_path)
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(UserError, match=r"model-1\.safetensors cannot be read"):
        load(tmp_path)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_16_bits_are_kept_on_request(dtype, tmp_path):
    config, params = loaded("llama")
    narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    save(tmp_path, config, narrow)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == dtype
    assert {str(tensor.dtype) for tensor in load_file(tmp_path / "model.safetensors").values()} == {dtype}
    for asked in (dtype, "stored"):
        assert_same(load(tmp_path, dtype=asked), (config, narrow))
    assert_same(load(tmp_path), (config, jax.tree.map(lambda leaf: leaf.astype("float32"), narrow)))
    tokens = jnp.asarray(expected("llama")["tokens"])
    logits = apply(load(tmp_path, dtype=dtype)[1], config, tokens)
    np.testing.assert_allclose(logits, apply(params, config, tokens), atol=0.3)
    with pytest.raises(UserError, match="dtype is 'bf16'; expected float32, bfloat16, float16, stored"):
        load(tmp_path, dtype="bf16")


def test_a_large_model_is_written_as_several_files(tmp_path):
    config, params = loaded("llama")
    save(tmp_path, config, params)
    save(tmp_path, config, params, shard_bytes=4000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    shards = sorted(path for path in tmp_path.iterdir() if path.name.startswith("model-"))
    assert len(shards) > 2
    assert shards[0].name == f"model-00001-of-{len(shards):05}.safetensors"
    assert not (tmp_path / "model.safetensors").exists()
    sizes = {path.name: {name: tensor.nbytes for name, tensor in load_file(path).items()} for path in shards}
    assert all(sum(sizes_of.values()) <= 4000 or len(sizes_of) == 1 for sizes_of in sizes.values())
    assert index["weight_map"] == {name: path for path, names in sizes.items() for name in names}
    assert index["metadata"]["total_size"] == sum(sum(names.values()) for names in sizes.values())
    assert_same(load(tmp_path), (config, params))
    save(tmp_path, config, params)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert_same(load(tmp_path), (config, params))


def test_the_tokenizer_beside_the_weights_is_used(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"a": 0, "model": 1, "reads": 2, "text": 3}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="a"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.save(str(tmp_path / "tokenizer.json"))
    ids = [token for part in load_tokenizer(tmp_path).encode(["a model reads a text"]) for token in part]
    assert ids == [0, 1, 2, 0, 3]
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer.json cannot be read"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_dtypes_are_converted_to_float32(dtype, tmp_path):
    attributes, tensors = files("gpt2")
    narrow = {name: tensor.astype(dtype) for name, tensor in tensors.items()}
    save_file(narrow, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(attributes))
    wide = {name: tensor.astype(np.float32) for name, tensor in narrow.items()}
    assert_same(load(tmp_path), load(wide, attributes))


def test_a_save_replaces_two_files_and_no_others(tmp_path):
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("mine")
    save(tmp_path, *loaded("gpt2"))
    assert_same(load(tmp_path), loaded("gpt2"))
    assert (tmp_path / "tokenizer.json").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_failed_save_leaves_the_old_file(name, monkeypatch, tmp_path):
    save(tmp_path, *loaded("gpt2"))
    before = (tmp_path / name).read_bytes()

    def breaks(path):
        if name in path.name:
            path.write_bytes(b"half")
            raise OSError("the disk is full")

    monkeypatch.setattr("flaxformer.system.files.flush", breaks)
    with pytest.raises(OSError, match="the disk is full"):
        save(tmp_path, *loaded("llama"))
    assert (tmp_path / name).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors"])
def test_unreadable_file_raises_an_error_that_names_it(broken, tmp_path):
    shutil.copytree(GOLDEN / "gpt2", tmp_path, dirs_exist_ok=True)
    (tmp_path / broken).write_bytes((tmp_path / broken).read_bytes()[:100])
    with pytest.raises(UserError, match=f"{broken} cannot be read"):
        load(tmp_path)
    (tmp_path / broken).unlink()
    with pytest.raises(UserError, match=broken):
        load(tmp_path)


def test_missing_safetensors_raises_an_error_that_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(UserError, match=r"pip install 'flaxformer\[weights\]'"):
        load(GOLDEN / "gpt2")
    with pytest.raises(UserError, match=r"pip install 'flaxformer\[weights\]'"):
        save(tmp_path, *loaded("gpt2"))


# --- names of tensors -------------------------------------------------------------------------------------------------


def gpt2_of_old(tensors):
    """No prefix, and the causal mask as a buffer."""
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    return old | {"h.0.attn.bias": np.tri(23)[None, None], "h.1.attn.masked_bias": np.array(-1e4)}


def bert_of_old(tensors):
    """Norms by TensorFlow's names, the head's copies, and parts that the masked language model does not have."""
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {functools.reduce(lambda s, pair: s.replace(*pair), names.items(), n): x for n, x in tensors.items()}
    return old | {
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
        "bert.pooler.dense.weight": np.eye(15),
        "bert.pooler.dense.bias": np.zeros(15),
        "cls.seq_relationship.weight": np.zeros((2, 15)),
        "cls.seq_relationship.bias": np.zeros(2),
        "bert.embeddings.position_ids": np.arange(17)[None],
    }


def t5_of_old(tensors):
    """The table four times, and a bias that cross-attention does not have."""
    copies = dict.fromkeys(("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"))
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    return tensors | dict.fromkeys(copies, tensors["shared.weight"]) | {unused: np.zeros((8, 3))}


def bart_of_old(tensors):
    """No prefix, and the table by another name."""
    old = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    return old | {"encoder.embed_tokens.weight": old.pop("shared.weight"), "encoder.version": np.array([2.0])}


def llama_of_old(tensors):
    return tensors | {"model.layers.1.self_attn.rotary_emb.inv_freq": np.ones(2)}


@pytest.mark.parametrize("old", [gpt2_of_old, bert_of_old, t5_of_old, bart_of_old, llama_of_old])
def test_old_tensor_names_are_supported(old):
    case = old.__name__.removesuffix("_of_old")
    attributes, tensors = files(case)
    assert_same(load(old(tensors), attributes), loaded(case))


def test_missing_logits_bias_is_zero():
    attributes, tensors = files("bart")
    bare = {name: tensor for name, tensor in tensors.items() if name != "final_logits_bias"}
    wanted = load(tensors | {"final_logits_bias": np.zeros((1, 53), np.float32)}, attributes)
    assert_same(load(bare, attributes), wanted)


def test_differing_tied_tensors_are_refused():
    attributes, tensors = files("gpt2")
    head = tensors["transformer.wte.weight"] + 1
    with pytest.raises(UserError, match=r"'lm_head.weight' \(53, 15\) and 'transformer.wte.weight' \(53, 15\) differ"):
        load(tensors | {"lm_head.weight": head}, attributes)
    config, params = load(tensors | {"lm_head.weight": head}, attributes | {"tie_word_embeddings": False})
    np.testing.assert_array_equal(params.head.matrix, head.T)
    assert not config.head.tied


@pytest.mark.parametrize("case", CASES)
def test_missing_misshapen_or_unknown_tensors_raise_an_error_that_names_them(case):
    attributes, tensors = files(case)
    name, tensor = next((name, tensor) for name, tensor in tensors.items() if "0" in name and tensor.ndim == 2)
    less = {other: tensors[other] for other in tensors if other != name}
    shape = str(tensor.shape).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(UserError, match=f"'{name}' is missing; expected {shape}"):
        load(less, attributes)
    rows, columns = tensor.shape
    with pytest.raises(UserError, match=rf"'{name}' is \({columns + 1}, {rows}\); expected {shape}"):
        load(tensors | {name: np.zeros((columns + 1, rows), np.float32)}, attributes)
    with pytest.raises(UserError, match=rf"'{name}x' is {shape}; expected no such tensor; did you mean '{name}'"):
        load(tensors | {f"{name}x": tensor}, attributes)
    with pytest.raises(UserError, match=f"'{name}' is of int8; expected floating-point numbers"):
        load(tensors | {name: tensor.astype(np.int8)}, attributes)


# --- config.json ------------------------------------------------------------------------------------------------------


def read(family, **attributes):
    """Return the config of attributes."""
    return read_attributes(FAMILIES[family], {"model_type": family, "vocab_size": 7, **SIZES[family], **attributes}, {})


EXACT = Dense(d_ff=5, activation="gelu", bias=False)
GATED = Gated(d_ff=5, activation="gelu_tanh", bias=False)
BIASES = dict.fromkeys(("attention.bias", "attention.out_bias", "feed_forward.bias"), False)
MEANINGS = [
    ("gpt2", {"n_positions": 11}, {"positions.max_length": 11}),
    ("gpt2", {"n_inner": None}, {"feed_forward.d_ff": 24}),
    ("gpt2", {"n_inner": 5}, {"feed_forward.d_ff": 5}),
    ("gpt2", {"activation_function": "relu"}, {"feed_forward.activation": "relu"}),
    ("gpt2", {"activation_function": "gelu_new"}, {"feed_forward.activation": "gelu_tanh"}),
    ("gpt2", {"scale_attn_weights": False}, {"attention.scale_exponent": 0.0}),
    ("gpt2", {"tie_word_embeddings": False}, {"head.tied": False}),
    ("gpt2", {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.3}, {"dropout": 0.2}),
    ("gpt2", {"resid_pdrop": 0.0, "embd_pdrop": 0.0}, {"dropout": None}),
    ("gpt2", {"resid_pdrop": 0.2, "embd_pdrop": 0.3}, {"dropout": 0.2}),
    ("gpt2", {"activation_function": "quick_gelu"}, {"feed_forward.activation": "quick_gelu"}),
    ("bert", {"tie_word_embeddings": False}, {"head.tied": False}),
    ("bert", {"hidden_act": "gelu"}, {"feed_forward.activation": "gelu", "head.transform": "gelu"}),
    ("bert", {"hidden_act": "relu"}, {"feed_forward.activation": "relu", "head.transform": "relu"}),
    ("bert", {"type_vocab_size": 3, "layer_norm_eps": 0.5}, {"inputs.token_types": 3, "norm_kind.epsilon": 0.5}),
    ("t5", {"num_decoder_layers": 3}, {"layers": 3, "encoder.layers": 1}),
    ("t5", {"num_decoder_layers": None}, {"layers": 1}),
    ("t5", {"d_kv": 5}, {"attention.d_head": 5, "encoder.attention.d_head": 5}),
    ("t5", {"feed_forward_proj": "gelu"}, {"feed_forward": EXACT, "encoder.feed_forward": EXACT}),
    ("t5", {"feed_forward_proj": "gated-gelu"}, {"encoder.feed_forward": GATED, "feed_forward": GATED}),
    (
        "t5",
        {"feed_forward_proj": "gated-silu"},
        dict.fromkeys(("feed_forward", "encoder.feed_forward"), GATED.replace(activation="silu")),
    ),
    ("t5", {}, {"head.tied": True, "head.scale_exponent": 0.5}),
    ("t5", {"tie_word_embeddings": False}, {"head.tied": False, "head.scale_exponent": None}),
    ("t5", {"scale_decoder_outputs": False}, {"head.tied": True, "head.scale_exponent": None}),
    ("t5", {"relative_attention_num_buckets": 6}, {"positions.buckets": 6, "encoder.positions.buckets": 6}),
    ("bart", {"encoder_attention_heads": 3}, {"encoder.attention.heads": 3, "attention.heads": 2}),
    ("bart", {"decoder_ffn_dim": 11}, {"encoder.feed_forward.d_ff": 5, "feed_forward.d_ff": 11}),
    ("bart", {"scale_embedding": True}, {"inputs.scale_exponent": 0.5, "encoder.inputs.scale_exponent": 0.5}),
    (
        "llama",
        {},
        {"attention.key_value_heads": 2, "attention.d_head": 4, "positions.base": 10_000.0, "head.tied": False},
    ),
    ("llama", {"num_key_value_heads": 1, "head_dim": 6}, {"attention.key_value_heads": 1, "attention.d_head": 6}),
    ("llama", {"rope_theta": 500}, {"positions.base": 500.0}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 7}}, {"positions.base": 7.0}),
    ("llama", {"rope_scaling": None, "rms_norm_eps": 0.25}, {"norm_kind.epsilon": 0.25}),
    ("llama", {"attention_bias": True}, BIASES | {"attention.bias": True, "attention.out_bias": True}),
    ("llama", {"mlp_bias": True}, BIASES | {"feed_forward.bias": True}),
]


@pytest.mark.parametrize(("family", "attributes", "fields"), MEANINGS, ids=str)
def test_attributes_are_converted_to_fields_and_back(family, attributes, fields):
    config = read(family, **attributes)
    assert {path: get_at(config, path) for path in fields} == fields
    assert read(family, **write_attributes(FAMILIES[family], config)) == config


PUBLISHED = [
    ("gpt2", {"n_ctx": 1024, "n_special": 0, "predict_special_tokens": True, "summary_type": "cls_index"}),
    ("gpt2", {"task_specific_params": {"text-generation": {"do_sample": True}}, "_num_labels": 1, "output_past": True}),
    ("bert", {"gradient_checkpointing": False, "position_embedding_type": "absolute", "pooler_type": "first_token"}),
    ("bert", {"directionality": "bidi", "use_cache": True, "pad_token_id": 0, "torch_dtype": "float16"}),
    ("t5", {"n_positions": 512, "output_past": True, "is_gated_act": False, "dense_act_fn": "relu", "eos_token_id": 1}),
    (
        "bart",
        {"add_bias_logits": False, "add_final_layer_norm": False, "normalize_before": False, "classif_dropout": 0},
    ),
    ("bart", {"static_position_embeddings": False, "extra_pos_embeddings": 2, "normalize_embedding": True}),
    ("bart", {"force_bos_token_to_be_generated": True, "prefix": " ", "num_hidden_layers": 12, "num_beams": 4}),
    ("llama", {"pretraining_tp": 1, "rope_scaling": None, "max_sequence_length": 2048, "bos_token_id": 1}),
]


@pytest.mark.parametrize(("family", "attributes"), PUBLISHED, ids=str)
def test_other_attributes_of_published_files_are_ignored(family, attributes):
    config = read(family, **attributes)
    assert config.replace(checkpoint="") == read(family).replace(checkpoint="")


REFUSED = [
    ("gpt2", {"n_embed": 5}, r"'n_embed' 5, an unknown attribute of .* did you mean 'n_embd'"),
    ("gpt2", {"quantization_config": {"bits": 4}}, r"'quantization_config' \{'bits': 4\}, an unknown attribute"),
    ("gpt2", {"auto_map": {}}, "'auto_map'"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, r"_layer_idx' True; expected False, the only supported value"),
    ("gpt2", {"add_cross_attention": True}, r"'add_cross_attention' True; expected False"),
    ("gpt2", {"pruned_heads": {"0": [1]}}, r"'pruned_heads' \{'0': \[1\]\}; expected \{\}"),
    ("gpt2", {"activation_function": "mish"}, r"'activation_function' 'mish'; expected one of 'gelu', "),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, r"'scale_attn_by_inverse_layer_idx' True; expected False, the"),
    ("gpt2", {"n_embd": None}, r"config.json has no 'n_embd'"),
    ("gpt2", {"n_embd": 7}, "heads is 2; expected a divisor of d_model 7"),
    ("bert", {"position_embedding_type": "relative_key"}, r"'relative_key'; expected 'absolute'"),
    ("bert", {"is_decoder": True}, r"'is_decoder' True; expected False"),
    ("bert", {"position_embedding_type": "relative_key"}, r"'relative_key'; expected 'absolute', the only supported"),
    ("t5", {"feed_forward_proj": "gated-mish"}, r"'feed_forward_proj' 'gated-mish'; expected one of"),
    ("t5", {"feed_forward_proj": "relu", "is_gated_act": True}, r"'is_gated_act' True; expected False, as"),
    ("t5", {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}, r"'dense_act_fn' 'gelu'; expected 'gelu_new'"),
    ("t5", {"is_encoder_decoder": False}, r"'is_encoder_decoder' False; expected True"),
    ("bart", {"normalize_before": True}, r"'normalize_before' True; expected False"),
    ("bart", {"tie_word_embeddings": False}, r"'tie_word_embeddings' False; expected True"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, r"type 'dynamic', which is not supported"),
    ("llama", {"rope_scaling": {"type": "longrope", "long_factor": []}}, r"type 'longrope', which is not supported"),
    ("llama", {"rope_scaling": {"type": "linear", "scale": 2}}, r"'scale' 2 in the parameters of rotary positions"),
    ("llama", {"rope_scaling": {"type": "linear"}}, r"no 'factor' of rotary positions of the type 'linear'"),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, r"no 'low_freq_factor' of rotary positions"),
    ("llama", {"rope_theta": 5.0, "rope_parameters": {"rope_theta": 7.0}}, r"'rope_theta' 5.0, and 7.0 elsewhere"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, r"'partial_rotary_factor' 0.5; expected 1.0"),
    ("llama", {"sliding_window": 5}, r"'sliding_window' 5, an unknown attribute"),
]


@pytest.mark.parametrize(("family", "attributes", "message"), REFUSED, ids=str)
def test_unsupported_attributes_are_refused(family, attributes, message):
    assert read(family)
    with pytest.raises(UserError, match=message):
        read(family, **attributes)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"model_type": "gpt_2"}, r"'model_type' 'gpt_2', which is not supported; did you mean 'gpt2'"),
        ({"model_type": None}, r"'model_type' None, which is not supported; supported: gpt2, bert, t5, bart, llama, m"),
        ({"model_type": "bloom"}, r"'bloom', which is not supported; supported: gpt2, bert"),
        ({"architectures": ["GPT2ForQuestionAnswering"]}, r"Answering', which is not supported; supported: GPT2LMHead"),
    ],
)
def test_other_models_are_refused(attributes, message):
    with pytest.raises(UserError, match=message):
        load(files("gpt2")[1], files("gpt2")[0] | attributes)


def test_t5_version_1_1_of_transformers_4_and_5_is_supported():
    attributes, tensors = files("t5_v1_1")
    assert (attributes["tie_word_embeddings"], attributes["scale_decoder_outputs"]) == (True, False)
    old = {name: value for name, value in attributes.items() if name != "scale_decoder_outputs"}
    assert_same(load(tensors, old | {"tie_word_embeddings": False}), loaded("t5_v1_1"))
    assert not loaded("t5_v1_1")[0].head.tied
    with pytest.raises(UserError, match=r"'lm_head.weight' .* and 'shared.weight' .* differ"):
        load(tensors, old | {"tie_word_embeddings": True})


# --- what cannot be saved ---------------------------------------------------------------------------------------------


class OwnDense(Dense):
    """User component, which no file can describe."""


UNLIKE = [
    ("gpt2", {"feed_forward": None}, "'feed_forward.d_ff': None has no fields"),
    (
        "gpt2",
        {"feed_forward": OwnDense(d_ff=19, activation="gelu_tanh")},
        r'feed_forward\.kind: ".*OwnDense" -> "Dense"',
    ),
    ("bart", {"cross_attention": Attention(heads=2, d_head=3)}, "cross_attention.d_head: 3 -> "),
    ("gpt2", {"norm": SANDWICH}, r'norm\.post_branch\.kind: "ModelNorm" -> \(absent\)'),
    ("gpt2", {"positions": Sinusoidal()}, "'positions.max_length': Sinusoidal has no field 'max_length'"),
    ("gpt2", {"attention.window": 3}, r"attention\.window: 3 -> null"),
    (
        "gpt2",
        {"attention.scale_exponent": 1.0},
        r"attention\.scale_exponent is 1.0; expected the fields of a value of 'scale_attn_weights'",
    ),
    ("gpt2", {"attention.key_value_heads": 1}, r"attention\.key_value_heads: 1 -> 3"),
    ("gpt2", {"attention.d_head": 7}, r"attention\.d_head: 7 -> 5"),
    (
        "llama",
        {"feed_forward.activation": "squared_relu", "attention.logit_cap": 3.0},
        r"attention\.logit_cap: 3.0 -> null",
    ),
    ("llama", {"attention.out_bias": True}, "expected the fields of a value of 'attention_bias'"),
    (
        "t5",
        {"feed_forward": Gated(d_ff=19, activation="gelu", bias=False)},
        "expected the fields of a value of 'feed_forward_proj'",
    ),
]


@pytest.mark.parametrize(("family", "changes", "message"), UNLIKE, ids=str)
def test_config_of_another_model_is_not_saved(family, changes, message, tmp_path):
    config, params = loaded(family)
    with pytest.raises(UserError, match=message):
        save(tmp_path / "it", replace_at(config, changes), params, family=family)
    assert not (tmp_path / "it").exists()


def test_rounded_logits_are_no_obstacle(tmp_path):
    config, params = loaded("gpt2")
    save(tmp_path / "it", replace_at(config, {"head.wide_logits": False}), params)
    assert load(tmp_path / "it")[0] == config


def test_config_of_no_family_raises_an_error_with_the_reasons_of_each(tmp_path):
    with pytest.raises(UserError, match=r"no family has models with this config:\n  gpt2: (.*\n)+  llama: "):
        save(tmp_path, ModelConfig(positions=LearnedPositions(max_length=3), norm=SANDWICH), loaded("gpt2")[1])
    with pytest.raises(UserError, match="family is 'gpt'; did you mean 'gpt2'"):
        save(tmp_path, *loaded("gpt2"), family="gpt")
    with pytest.raises(UserError, match=r"'embedding/tokens' is \(53, 15\); expected \(47, 15\)"):
        save(tmp_path, loaded("gpt2")[0].replace(vocabulary=47), loaded("gpt2")[1])
