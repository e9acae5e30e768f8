"""`flaxformer.load`: one object for a kept trial, a checkpoint of Hugging Face, or a name of its hub."""

import shutil
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from study.tiny import RATE, tiny

import flaxformer
from flaxformer import Attention, Copy, Dense, From, LanguageModel, LearnedPositions, ModelConfig, Run, Tokens, cli
from flaxformer.data.tokenizer import make_character_file
from flaxformer.interop import huggingface
from flaxformer.model import apply, init
from flaxformer.study import initial_weights
from flaxformer.system.errors import UserError

TEXT = "to be or not"
GPT2 = ModelConfig(
    vocabulary=len(set(TEXT)),
    layers=2,
    d_model=8,
    attention=Attention(heads=2),
    feed_forward=Dense(activation="gelu_tanh"),
    positions=LearnedPositions(max_length=16),
    head=LanguageModel(tied=True, bias=False),
    inputs=Tokens(std=0.4),
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint of GPT-2's kind, with a tokenizer of characters."""
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    huggingface.save(folder, GPT2, init(jax.random.key(3), GPT2), family="gpt2")
    (folder / "tokenizer.json").write_bytes(make_character_file([TEXT]))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The results of a study whose weights were kept."""
    study = tiny(axes=(RATE,), seeds=range(2), claims=())
    return flaxformer.run(study, tmp_path_factory.mktemp("kept"), keep="final", devices=1)


def naive(params, config, tokens, steps):
    """The most probable continuation, token by token, without a cache."""
    tokens = list(tokens)
    for _ in range(steps):
        tokens.append(int(apply(params, config, jnp.asarray(tokens)[None])[0, -1].argmax()))
    return tokens[len(tokens) - steps :]


@pytest.mark.long
def test_a_checkpoint_of_hugging_face_is_a_model_with_a_tokenizer(checkpoint):
    model = flaxformer.load(checkpoint)
    config, params = huggingface.load(checkpoint)
    assert model.run is None
    tokens = model.encode("not to be")
    np.testing.assert_array_equal(model.logits("not to be"), apply(params, config, jnp.asarray(tokens)[None])[0])
    assert model.generate("not to", tokens=5) == "not to" + model.tokenizer.decode(
        naive(params, config, model.encode("not to"), 5)
    )
    assert len(model.generate("not to")) == 16 + 1  # as many as have a position, and the last one


def test_weights_have_the_norms_of_a_loop_in_float64(checkpoint):
    model = flaxformer.load(checkpoint)
    norms = {weight.path: weight.norm for weight in model.weights}
    shapes = {weight.path: weight.shape for weight in model.weights}
    query = np.asarray(model.params.blocks[1].attention.query, np.float64)
    assert norms["blocks/1/attention/query"] == pytest.approx(sum(x * x for x in query.ravel()) ** 0.5, rel=1e-12)
    assert shapes["blocks/1/attention/query"] == query.shape
    leaves = jax.tree.leaves(model.params)
    assert sum(weight.parameters for weight in model.weights) == sum(leaf.size for leaf in leaves)
    total = sum(float(np.sum(np.square(leaf, dtype=np.float64))) for leaf in leaves)
    assert sum(part.norm**2 for part in model.parts) == pytest.approx(total)
    assert [part.path for part in model.parts] == ["embedding", "positions", "blocks/0", "blocks/1", "final_norm"]


def test_a_model_shows_itself(checkpoint):
    model = flaxformer.load(checkpoint)
    assert "2 layers; d_model 8" in repr(model)
    assert "blocks/1/attention/query" in repr(model.weights)
    assert model.parts._repr_html_() in model._repr_html_() or "blocks/1" in model._repr_html_()


@pytest.mark.long
def test_a_kept_trial_is_the_model_of_the_results(trained):
    model = flaxformer.load(trained.store.root, "rate=high", seed=1)
    params, run = trained.weights({"rate": "high"}, 1)
    assert model.run == run
    jax.tree.map(np.testing.assert_array_equal, model.params, params)
    jax.tree.map(np.testing.assert_array_equal, trained.run_of({"rate": "high"}, 1).model.params, params)
    assert run.optimizer.learning_rate == 0.01
    rows = np.asarray([[1, 2, 3], [3, 2, 0]])
    new = model.generate(rows, tokens=4)
    assert new.tolist() == [naive(params, run.model, row, 4) for row in rows]
    np.testing.assert_array_equal(model.logits(rows)[0], model.logits(rows[0]))


def test_draws_depend_on_the_seed_alone(checkpoint):
    model = flaxformer.load(checkpoint)
    texts = [model.generate("to", temperature=2.0, seed=seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("path", "settings", "message"),
    [
        ("nowhere", {}, "path is 'nowhere', which does not exist; .* hub is 'hf://nowhere'"),
        ("CHECKPOINT", {"step": 3}, "a checkpoint of Hugging Face, and step is 3"),
        ("CHECKPOINT", {"arm": {"rate": "low"}}, "which is not a study, and arm or trial_seed is given"),
        ("STUDY", {"arm": "rate"}, "arm is 'rate', where 'rate' has no ="),
        ("STUDY", {"arm": "rate=low", "seed": 7}, "seed is 7; expected one of 0 and 1"),
        ("STUDY", {"arm": "rate=low", "step": 4}, "step is 4; expected one of the steps in .*: 6"),
        ("EMPTY", {}, "which holds no weights"),
    ],
)
def test_a_mistake_is_one_message(path, settings, message, checkpoint, trained, tmp_path):
    places = {"CHECKPOINT": checkpoint, "STUDY": trained.store.root, "EMPTY": tmp_path}
    with pytest.raises(UserError, match=message):
        flaxformer.load(places.get(path, path), **settings)


def test_a_text_needs_a_tokenizer(trained, checkpoint):
    model = flaxformer.load(trained.store.root, "rate=low")
    for call in (model.logits, model.generate):
        with pytest.raises(UserError, match="has no tokenizer; expected token ids"):
            call("text")
    with pytest.raises(UserError, match="prompt is empty"):
        flaxformer.load(checkpoint).generate("")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([99], r"prompt has token 99 at \(0,\); expected ids from 0 to 5"),
        ([0.5], "prompt has dtype float64; expected integers"),
        ([], "prompt is empty"),
    ],
)
def test_wrong_tokens_are_refused(trained, prompt, message):
    """Outside the vocabulary, a look-up would give the vector of another token."""
    model = flaxformer.load(trained.store.root, "rate=low")
    for call in (model.logits, model.generate):
        with pytest.raises(UserError, match=message):
            call(prompt)


def test_a_run_starts_from_a_checkpoint_of_hugging_face(checkpoint, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    config, params = huggingface.load(copy)
    run = Run(model=config, task=Copy(symbols=5, length=3, batch_size=2), init=From(path=str(copy)))
    digest = initial_weights.digest(run)
    initial = initial_weights.read(run, digest)
    jax.tree.map(np.testing.assert_array_equal, initial.values, params)
    assert all(jax.tree.leaves(initial.is_loaded))
    huggingface.save(copy, GPT2, init(jax.random.key(4), GPT2), family="gpt2")
    with pytest.raises(UserError, match="which has changed since it was declared"):
        initial_weights.read(run, digest)


def test_the_command_generates_from_a_checkpoint_of_hugging_face(checkpoint, capsys):
    assert cli.main(["generate", str(checkpoint), "--prompt", "not to", "--tokens", "5"]) == 0
    assert capsys.readouterr().out == flaxformer.load(checkpoint).generate("not to", tokens=5, temperature=0.8) + "\n"


def test_a_name_of_the_hub_is_downloaded(checkpoint, monkeypatch, tmp_path):
    calls = []

    def snapshot_download(repository, revision, allow_patterns):
        calls.append((repository, revision))
        if repository == "owner/none":
            raise OSError("404\nnot there")
        return str(checkpoint)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    monkeypatch.chdir(tmp_path)
    for name in ("owner/tiny", "hf://owner/tiny@main", "hf://tiny"):
        assert flaxformer.load(name).config == flaxformer.load(checkpoint).config
    assert calls == [("owner/tiny", None), ("owner/tiny", "main"), ("tiny", None)]
    with pytest.raises(UserError, match=r"'owner/none', which is not a folder, and cannot be downloaded: 404$"):
        flaxformer.load("owner/none")
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match="'runs/inducton', which does not exist"):
        flaxformer.load("runs/inducton")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"needs huggingface_hub .* pip install 'flaxformer\[weights\]'"):
        flaxformer.load("hf://owner/tiny")
