"""`examples/minimal.py`: short, and it does what it says."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer.model import apply, generate

FILE = Path(__file__).parents[2] / "examples" / "minimal.py"


@pytest.fixture(scope="module")
def minimal():
    spec = importlib.util.spec_from_file_location("minimal", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short_and_without_a_study():
    text = FILE.read_text()
    assert len(text.splitlines()) <= 100
    assert "flaxformer.study" not in text


@pytest.mark.long
def test_it_learns_and_continues_a_prompt(minimal, capsys):
    params, losses = minimal.train(60)
    assert abs(losses[0] - np.log(256)) < 0.6
    assert np.mean(losses[-5:]) < 2.5
    assert "step   59  loss" in capsys.readouterr().out
    text = minimal.continue_text(params, "def ", 40)
    assert text.startswith("def ")
    assert len(text) <= 44
    assert text == minimal.continue_text(params, "def ", 40)
    # The likeliest continuation with a cache is that of the whole forward pass.
    prompt = jnp.asarray([list(b"import ")], jnp.int32)
    tokens = generate(params, minimal.config, prompt, steps=5).tokens
    logits = jax.jit(lambda x: apply(params, minimal.config, x))(jnp.concatenate([prompt, tokens], 1))
    np.testing.assert_array_equal(logits[:, prompt.shape[1] - 1 : -1].argmax(-1), tokens)
