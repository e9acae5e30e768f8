"""`generate` without options: as many tokens as fit, at most 200, sampled as in training; greedy on request."""

import numpy as np
import pytest
from jobs.small import FILE, TEXT

from flaxformer.checkpoint.weights import read_weights
from flaxformer.cli import main
from flaxformer.jobs.samples import TEMPERATURE
from flaxformer.model import Sampling, generate
from flaxformer.report.loaded_model import most_tokens
from flaxformer.study.copied_code import load_run

POSITIONS = "positions=LearnedPositions(max_length=12)"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The folder with a trained job of at most 12 positions."""
    folder = tmp_path_factory.mktemp("job")
    text = FILE.replace("attention=Attention(heads=2)", f"attention=Attention(heads=2), {POSITIONS}")
    (folder / "tiny.py").write_text(text.replace("import ModelConfig", "import LearnedPositions, ModelConfig"))
    (folder / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "tiny.py", "--samples", "0"]) == 0
    return folder


@pytest.fixture
def call(job, monkeypatch, capsysbinary):
    monkeypatch.chdir(job)
    capsysbinary.readouterr()

    def run(*words):
        code = main(["generate", "runs/tiny", "--prompt", "to be", *words])
        return code, *capsysbinary.readouterr()

    return run


def expected(job, steps, sampling):
    """The bytes that `model.generate` continues the prompt with, at the command's seed 0."""
    import jax

    run = load_run(job / "runs/tiny")
    params = read_weights(job / "runs/tiny", run)
    prompt = np.frombuffer(b"to be", np.uint8)[None].astype(np.int32)
    tokens = generate(params, run.model, prompt, steps=steps, sampling=sampling, key=jax.random.key(0)).tokens
    return bytes(np.asarray(tokens)[0].tolist()).decode(errors="replace")


@pytest.mark.long
def test_the_default_is_what_fits_sampled_as_in_training(job, call):
    code, out, err = call()
    assert (code, err) == (0, b"")
    assert out.decode() == f"to be{expected(job, 12 + 1 - 5, Sampling(temperature=TEMPERATURE))}\n"


def test_top_k_of_1_is_greedy(job, call):
    greedy = expected(job, 4, Sampling())
    assert call("--tokens", "4", "--top-k", "1")[1].decode() == f"to be{greedy}\n"


def test_more_tokens_than_fit_are_refused_with_the_number_that_does(call):
    code, _, err = call("--tokens", "9")
    text = " ".join(err.decode().split())
    assert (code, text) == (
        2,
        "error: tokens is 9 after a prompt of 5; expected at most 8, since the model's max_length is 12",
    )
    assert call("--tokens", "8")[0] == 0


@pytest.mark.parametrize(("length", "prompt", "tokens"), [(None, 5, 200), (1000, 5, 200), (12, 5, 8), (12, 12, 1)])
def test_the_number_of_tokens_by_the_longest_sequence(length, prompt, tokens):
    config = type("Model", (), {"max_length": length})
    assert most_tokens(config, prompt) == tokens
