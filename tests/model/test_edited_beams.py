"""Beam search with edits: scores are those of `apply` under the same edits, and a search of everything finds it all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grid import BASE, encoder_decoder
from model.test_edited_decoding import OTHERS, SMALL, inputs_of, weights

from flaxformer.components import Attention
from flaxformer.interpret import ablate, combine, patch, resample
from flaxformer.model import activations_at, apply, beam, beam_search, generate
from flaxformer.system.errors import UserError

STEPS, BEAMS = 4, 3


def edits_of(prompt):
    """Return edits of branches at positions of prompt and continuation, with values per row."""
    rows, length = prompt.shape
    per_row = jnp.arange(1.0, rows + 1)[:, None, None]
    return combine(
        ablate("blocks/1/*/output", positions=[1, length + 1], value=0.3 * per_row),
        {"blocks/0/*/output": lambda x: 1.5 * x, "final": jnp.negative},
    )


def log_probability(params, config, prompt, tokens, edit, **whole):
    """Return log P(tokens | prompt) of each row, from one forward pass with the edits."""
    sequence = jnp.concatenate([prompt, tokens], 1)
    logits = apply(params, config, sequence[:, :-1], edit=edit, **whole)[:, prompt.shape[1] - 1 :]
    return np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), np.asarray(tokens)[..., None], -1)[..., 0].sum(-1)


def check_scores(params, config, prompt, edit, given, whole):
    """Check the score of every continuation that is found, and that one hypothesis is greedy decoding."""
    found = beam_search(params, config, prompt, steps=STEPS, beams=BEAMS, length_penalty=0.0, edit=edit, **given)
    for rank in range(BEAMS):
        expected = log_probability(params, config, prompt, found.tokens[:, rank], edit, **whole)
        np.testing.assert_allclose(found.scores[:, rank], expected, atol=5e-4, rtol=1e-4)
    one = beam_search(params, config, prompt, steps=STEPS, beams=1, edit=edit, **given)
    greedy = generate(params, config, prompt, steps=STEPS, edit=edit, **given)
    np.testing.assert_array_equal(one.tokens[:, 0], greedy.tokens)
    assert len({tuple(np.asarray(row).ravel()) for row in found.tokens}) > 1


CASES = {"attention": (SMALL, "unrolled"), "prefix": (SMALL.replace(mask_pattern="prefix"), "unrolled")} | OTHERS


@pytest.mark.long
@pytest.mark.every(2)
@pytest.mark.parametrize(
    "name", [name if name in ("attention", "scanned") else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_scores_are_those_of_apply_with_the_same_edits(name):
    config, layout = CASES[name]
    prompt, given, whole = inputs_of(config)
    edit = edits_of(prompt)
    if config.encoder is not None:
        edit = combine(
            edit, {"encoder/final": lambda x: 0.5 * x}, ablate("blocks/1/cross_attention/key", positions=[0])
        )
    check_scores(weights(config, layout), config, prompt, edit, given, whole)


@pytest.mark.long
def test_a_search_of_all_continuations_finds_all_with_their_probabilities():
    config = BASE.replace(vocabulary=5, layers=1, attention=Attention(heads=2))
    params, prompt = weights(config), inputs_of(config)[0] % config.vocabulary
    edit = ablate(
        "blocks/0/attention", heads=[0], positions=[0, prompt.shape[1]], value=jnp.arange(3.0)[:, None, None, None]
    )
    found = beam_search(params, config, prompt, steps=2, beams=25, length_penalty=0.0, edit=edit)
    for row in np.asarray(found.tokens):
        assert len({tuple(words) for words in row}) == 25
    np.testing.assert_allclose(np.exp(found.scores).sum(-1), 1, rtol=1e-5)
    for rank in (0, 7, 24):
        expected = log_probability(params, config, prompt, found.tokens[:, rank], edit)
        np.testing.assert_allclose(found.scores[:, rank], expected, atol=1e-4)


@pytest.mark.long
def test_padding_is_counted_in_positions():
    params, (prompt, _, _) = weights(SMALL), inputs_of(SMALL)
    valid = jnp.arange(prompt.shape[1])[None] >= jnp.array([[2], [0], [1]])
    whole = {"valid": jnp.concatenate([valid, jnp.ones((len(prompt), STEPS - 1), bool)], 1)}
    check_scores(params, SMALL, prompt, edits_of(prompt), {"valid": valid}, whole)


@pytest.mark.slow
def test_resampling_takes_the_activations_of_another_prompt():
    """One hypothesis per prompt, so that the sequences of the batch are those of greedy decoding."""
    params, (prompt, _, _) = weights(SMALL), inputs_of(SMALL)
    edit = resample("blocks/0/attention/output", jax.random.key(3), positions=[2, prompt.shape[1] + 1])
    found = beam_search(params, SMALL, prompt, steps=STEPS, beams=1, length_penalty=0.0, edit=edit)
    expected = log_probability(params, SMALL, prompt, found.tokens[:, 0], edit)
    np.testing.assert_allclose(found.scores[:, 0], expected, atol=5e-4, rtol=1e-4)
    plain = log_probability(params, SMALL, prompt, found.tokens[:, 0], None)
    assert not np.allclose(plain, expected, atol=1e-2)


@pytest.mark.slow
def test_an_activation_that_does_not_depend_on_the_prompt_is_edited():
    """An edit that returns a constant makes the next one read an array without axes of prompts."""
    config = encoder_decoder(SMALL)
    params, (prompt, given, whole) = weights(config), inputs_of(config)
    path = "blocks/1/attention/stream"
    clean = activations_at(params, config, prompt, path, **given)[path][:, :1]
    edit = combine({path: jnp.zeros_like}, {path: lambda x: x + 0.25}, patch({path: clean}, positions=[0]))
    check_scores(params, config, prompt, edit, given, whole)


@pytest.mark.long
def test_values_of_edits_are_arguments_of_the_compiled_search(monkeypatch):
    params, (prompt, _, _) = weights(SMALL), inputs_of(SMALL)

    def call(value, position):
        edit = ablate("blocks/0/attention/heads", heads=[1], positions=[position], value=value)
        return beam_search(params, SMALL, prompt, steps=STEPS, beams=2, edit=edit).scores

    first = call(4.0, 2)

    def refused(*_, **__):
        raise AssertionError("traced anew")

    monkeypatch.setattr(beam, "extend_edited", refused)
    assert not np.allclose(call(-4.0, 2), first)
    assert not np.allclose(call(4.0, prompt.shape[1] + 1), first)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"blocks/0/attention/haeds": jnp.zeros_like}, "did you mean 'blocks/0/attention/heads'"),
        (ablate("final", positions=[-1]), "positions has -1 for .*; expected at least 0"),
        ({"final": lambda x: x - x.mean(1, keepdims=True)}, "depends on the number of a token or on other tokens"),
        (patch({"final": jnp.ones((2, 1, 12))}), r"have shape \[2, 1, 12\]; expected one that broadcasts to \[3, "),
    ],
)
def test_edits_that_have_no_meaning_token_by_token_are_refused(edit, message):
    prompt, _, _ = inputs_of(SMALL)
    with pytest.raises(UserError, match=message):
        beam_search(weights(SMALL), SMALL, prompt, steps=STEPS, beams=2, edit=edit)
