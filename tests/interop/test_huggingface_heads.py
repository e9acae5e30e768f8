"""Hugging Face models with other heads: final vectors and classes, by the logits that transformers computed."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from flaxformer.components import Classifier, NoHead
from flaxformer.interop import load, save
from flaxformer.model import apply
from flaxformer.system.errors import UserError

GOLDEN = Path(__file__).parents[1] / "golden" / "huggingface"


def files(case, architecture):
    """The content of config.json with another architecture, the tensors, and the values that transformers computed."""
    attributes = json.loads((GOLDEN / case / "config.json").read_text()) | {"architectures": [architecture]}
    with np.load(GOLDEN / case / "expected.npz", allow_pickle=False) as expected:
        values = {name: jnp.asarray(x) if name in ("tokens", "types") else x for name, x in expected.items()}
    return attributes, load_file(GOLDEN / case / "model.safetensors"), values


def outputs(config, params, expected):
    return np.asarray(
        jax.jit(lambda params: apply(params, config, expected["tokens"], valid=expected["valid"]))(params)
    )


def close(found, wanted, valid=...):
    np.testing.assert_allclose(found[valid], wanted[valid], rtol=3e-5, atol=3e-5)


def test_llama_without_a_head_returns_the_final_vectors(tmp_path):
    attributes, tensors, expected = files("llama", "LlamaModel")
    head = tensors.pop("lm_head.weight", tensors["model.embed_tokens.weight"])
    config, params = load({name.removeprefix("model."): x for name, x in tensors.items()}, attributes)
    assert config.head == NoHead()
    close(outputs(config, params, expected) @ head.T, expected["logits"], expected["valid"])
    save(tmp_path, config, params)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LlamaModel"]
    again, same = load(tmp_path)
    assert again == config
    assert jax.tree.all(jax.tree.map(jnp.array_equal, params, same))


@pytest.mark.every(2)
@pytest.mark.parametrize("tied", [True, False])
def test_bert_without_a_head_returns_the_final_vectors(tmp_path, tied):
    attributes, tensors, expected = files("bert", "BertModel")
    config, params = load({name: x for name, x in tensors.items() if not name.startswith("cls.")}, attributes)
    given = {"token_types": expected["types"]} if "types" in expected else {}
    x = jax.jit(lambda params: apply(params, config, expected["tokens"], valid=expected["valid"], **given))(params)
    part = "cls.predictions.transform."
    x = np.asarray(x) @ tensors[f"{part}dense.weight"].T + tensors[f"{part}dense.bias"]
    x = x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + attributes["layer_norm_eps"])
    x = x * tensors[f"{part}LayerNorm.weight"] + tensors[f"{part}LayerNorm.bias"]
    table = tensors["bert.embeddings.word_embeddings.weight"]
    close(x @ table.T + tensors["cls.predictions.bias"], expected["logits"], expected["valid"])
    if not tied:
        own = tensors | {"cls.predictions.decoder.weight": 2 * table}
        attributes |= {"architectures": ["BertForMaskedLM"], "tie_word_embeddings": False}
        config, params = load(own, attributes)
        logits = apply(params, config, expected["tokens"], valid=expected["valid"], **given)
        bias = tensors["cls.predictions.bias"]
        wanted = 2 * (expected["logits"] - bias) + bias
        close(np.asarray(logits), wanted, expected["valid"])
        config, params = load(
            own | {"cls.predictions.decoder.bias": bias + 3}, attributes
        )  # as transformers 5 saves it
        logits = apply(params, config, expected["tokens"], valid=expected["valid"], **given)
        close(np.asarray(logits), wanted + 3, expected["valid"])
        save(tmp_path, config, params)
        np.testing.assert_array_equal(
            load_file(tmp_path / "model.safetensors")["cls.predictions.decoder.bias"], bias + 3
        )


@pytest.mark.parametrize("case", ["gpt2", "llama"])
def test_a_classifier_reads_the_last_valid_token(tmp_path, case):
    name = {"gpt2": "GPT2ForSequenceClassification", "llama": "LlamaForSequenceClassification"}[case]
    attributes, tensors, expected = files(case, name)
    embedding = {"gpt2": "transformer.wte.weight", "llama": "model.embed_tokens.weight"}[case]
    head = tensors.pop("lm_head.weight", tensors[embedding])
    # Classes are the first three words, so that their logits are those of the language model.
    config, params = load(
        tensors | {"score.weight": head[:3]}, attributes | {"id2label": {"0": "a", "1": "b", "2": "c"}}
    )
    assert config.head == Classifier(classes=3, pool="last", bias=False)
    valid = expected["valid"]
    last = valid.shape[1] - 1 - valid[:, ::-1].argmax(-1)
    close(outputs(config, params, expected), expected["logits"][np.arange(len(last)), last, :3])
    save(tmp_path, config, params)
    assert load(tmp_path)[0] == config


def test_other_problems_of_classification_are_refused():
    attributes, tensors, _ = files("gpt2", "GPT2ForSequenceClassification")
    for change in ({"problem_type": "regression"}, {"num_labels": 1}):
        with pytest.raises(UserError, match="expected single_label_classification of at least 2 labels"):
            load(tensors, attributes | change)


class Tensor:
    """Stand-in for a tensor of torch that NumPy refuses to read."""

    def __init__(self, data, dtype="torch.bfloat16", is_leaf=False):
        self.data, self.dtype, self.is_leaf = data, dtype, is_leaf

    def detach(self):
        return Tensor(self.data, self.dtype, is_leaf=True)

    def cpu(self):
        return self

    def float(self):
        return Tensor(self.data, "torch.float32", self.is_leaf)

    def __array__(self, dtype=None, copy=None):
        if not self.is_leaf or self.dtype == "torch.bfloat16":
            raise TypeError("no")
        return np.asarray(self.data, dtype)


def test_tensors_of_torch_with_gradients_or_of_bfloat16_are_read():
    attributes, tensors, _ = files("llama", "LlamaForCausalLM")
    rounded = {name: np.asarray(x.astype(jnp.bfloat16), np.float32) for name, x in tensors.items()}
    config, params = load({name: Tensor(x) for name, x in rounded.items()}, attributes)
    jax.tree.map(np.testing.assert_array_equal, params, load(rounded, attributes)[1])
    kept = load({name: Tensor(x) for name, x in rounded.items()}, attributes, dtype="stored")[1]
    assert {leaf.dtype for leaf in jax.tree.leaves(kept)} == {jnp.dtype(jnp.bfloat16)}
    torch = pytest.importorskip("torch")
    own = {name: torch.nn.Parameter(torch.from_numpy(x).bfloat16()) for name, x in tensors.items()}
    assert load(own, attributes)[0] == config
