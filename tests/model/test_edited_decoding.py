"""Generation with edits: every token is the one that `apply` gives under the same edits, on the sequence before it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grid import BASE, encoder_decoder, random_weights, sparse_grid
from jaxtyping import Array, Float

from flaxformer.components import GRU, Attention, Rotary
from flaxformer.components.branch import TokenMixer
from flaxformer.config import Block
from flaxformer.core.params import Parameters, param
from flaxformer.interpret import ablate, combine, patch, resample
from flaxformer.model import activations_at, apply, decoding, generate
from flaxformer.model.weights import with_layout
from flaxformer.nn.linear import linear
from flaxformer.system.errors import UserError

ROWS, PROMPT, STEPS, SOURCE = 3, 5, 6, 7
SMALL = BASE.replace(positions=Rotary())


class Average(TokenMixer):
    """Mean over the tokens so far, without a decoding state, with a point of its own."""

    class Weights(Parameters):
        """One matrix."""

        map: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def apply(self, weights, x, context):
        projected = context.edit("projected", linear(x, weights.map))
        rows, length = x.shape[:-1]
        allowed = jnp.broadcast_to(context.mask.matrix(length, length), (rows, 1, length, length))[:, 0]
        return jnp.where(allowed[..., None], projected[..., None, :, :], 0).sum(-2) / 3


class Slow(Attention):
    """Attention without a decoding state."""

    def apply(self, weights, x, context):
        return super().apply(weights, x, context)


class OwnCross(Attention):
    """Cross-attention that reads the source again at every step."""

    def read(self, weights, x, read, context):
        return super().read(weights, x, read, context)


def prompt_of(rows=ROWS, length=PROMPT):
    return jax.random.randint(jax.random.key(3), (rows, length), 0, SMALL.vocabulary)


def weights(config, layout="unrolled"):
    """Return weights under which tokens vary."""
    return with_layout(jax.tree.map(lambda x: 1.5 * x, random_weights(config)), layout)


def inputs_of(config):
    """Return a prompt, and the arguments of `generate` and of `apply` that go with it."""
    given = {}
    if config.encoder is not None:
        valid = jnp.arange(SOURCE)[None] < jnp.array([[3], [SOURCE], [4]])
        given = {"source": jax.random.randint(jax.random.key(2), (ROWS, SOURCE), 0, config.vocabulary)}
        given["source_valid"] = valid
    prefix = {"prefix": jnp.full(ROWS, PROMPT)} if config.mask_pattern == "prefix" else {}
    return prompt_of(), given, given | prefix


def check_greedy(params, config, edit, prompt, given, whole, **more):
    """Check that each token and its log probability are those of `apply` with the edit on the sequence before it.

    The model is causal, so that one forward pass over all tokens has the outputs of every sequence before a token.
    """
    result = generate(params, config, prompt, steps=STEPS, edit=edit, chunk=4, **given, **more)
    tokens = jnp.concatenate([prompt, result.tokens[:, :-1]], 1)
    logits = jax.jit(lambda tokens: apply(params, config, tokens, edit=edit, **whole))(tokens)[:, prompt.shape[1] - 1 :]
    np.testing.assert_array_equal(result.tokens, logits.argmax(-1))
    np.testing.assert_allclose(result.log_probabilities, jax.nn.log_softmax(logits).max(-1), atol=2e-4, rtol=1e-4)
    return result


def every_point(factor):
    """Return edits of every point by a factor, and of heads and branches at positions of prompt and continuation."""
    scale = {"*": lambda x: jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), x)}
    heads = ablate("blocks/*/attention/heads", heads=[0], positions=[1, PROMPT + 2])
    return combine(scale, heads, ablate("blocks/1/*/output", positions=[0, PROMPT, PROMPT + 3], value=0.5))


def is_decodable(config):
    return config.is_causal or config.mask_pattern == "prefix"


@pytest.mark.long
@pytest.mark.every(2)
@sparse_grid
def test_greedy_generation_with_edits_equals_the_argmax_of_apply(config):
    if not is_decodable(config):
        with pytest.raises(UserError, match="expected a causal model"):
            generate(weights(config), config, prompt_of(), steps=2, edit={"final": jnp.negative})
        return
    prompt, given, whole = inputs_of(config)
    check_greedy(weights(config), config, every_point(0.9), prompt, given, whole)


OTHERS = {
    "no state": (SMALL.replace(attention=Slow(heads=3)), "unrolled"),
    "own mixer": (SMALL.replace(attention=Average()), "scanned"),
    "scanned": (encoder_decoder(SMALL.replace(layers=3)), "scanned"),
    "own cross-attention": (encoder_decoder(SMALL).replace(cross_attention=OwnCross(heads=3)), "unrolled"),
    "recurrent": (SMALL.replace(pattern=(Block(attention=GRU()), Block(attention=Attention(heads=2)))), "unrolled"),
}


@pytest.mark.long
@pytest.mark.every(2)
@pytest.mark.parametrize(
    "name",
    [name if name in ("no state", "scanned") else pytest.param(name, marks=pytest.mark.slow) for name in OTHERS],
)
def test_generation_with_edits_in_other_mixers_and_layouts(name):
    """Mixers that read the whole prefix again edit all its tokens; a scan edits the layers that a path names."""
    config, layout = OTHERS[name]
    prompt, given, whole = inputs_of(config)
    inner = "projected" if name == "own mixer" else "value"
    edit = combine(
        {} if name == "recurrent" else ablate(f"blocks/1/attention/{inner}", positions=[1, PROMPT + 1]),
        {"blocks/0/*/output": lambda x: 1.5 * x, "final": lambda x: -x},
        {"encoder/final": lambda x: 0.5 * x} if config.encoder is not None else {},
        ablate("blocks/1/cross_attention/key", positions=[-1, 0]) if config.encoder is not None else {},
    )
    check_greedy(weights(config, layout), config, edit, prompt, given, whole)


@pytest.mark.long
@pytest.mark.parametrize("prompt_chunk", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_positions_count_padding_and_the_output_is_edited(prompt_chunk):
    """As in `apply`, position 0 is the first entry of the prompt, also if it is padding."""
    params, prompt = weights(SMALL), prompt_of()
    valid = jnp.arange(PROMPT)[None] >= jnp.array([[2], [0], [1]])
    edit = ablate("blocks/0/attention/output", positions=[2, PROMPT + 1], value=jnp.arange(12.0))
    edit |= ablate("output", positions=[PROMPT - 1, PROMPT + 2], value=jnp.arange(13.0))
    after = jnp.ones((ROWS, STEPS - 1), bool)
    whole = {"valid": jnp.concatenate([valid, after], 1)}
    result = check_greedy(params, SMALL, edit, prompt, {}, whole, valid=valid, prompt_chunk=prompt_chunk)
    assert (result.tokens[:, [0, 3]] == 12).all()
    moved = combine(edit, ablate("blocks/0/attention/output", positions=[PROMPT + 1], value=-jnp.arange(12.0)))
    other = generate(params, SMALL, prompt, steps=STEPS, valid=valid, edit=moved, chunk=4, prompt_chunk=prompt_chunk)
    np.testing.assert_array_equal(other.log_probabilities[:, :2], result.log_probabilities[:, :2])
    assert (other.log_probabilities != result.log_probabilities).any()


@pytest.mark.slow
def test_activations_of_another_prompt_are_patched_and_a_continuation_follows():
    params, prompt = weights(SMALL), prompt_of()
    path = "blocks/0/attention/stream"
    clean = activations_at(params, SMALL, jnp.roll(prompt, 1, axis=1), path)[path]
    edit = combine(*(patch({path: clean[:, t : t + 1]}, positions=[t]) for t in (1, 4)))
    edit = combine(edit, resample("blocks/1/attention", jax.random.key(5), positions=[3, PROMPT + 1]))
    result = check_greedy(params, SMALL, edit, prompt, {}, {})
    whole = apply(params, SMALL, jnp.concatenate([prompt, result.tokens[:, :-1]], 1))[:, PROMPT - 1 :]
    assert (result.tokens != whole.argmax(-1)).any()


@pytest.mark.long
def test_values_of_edits_are_arguments_of_the_compiled_loop(monkeypatch):
    params, prompt = weights(SMALL), prompt_of()

    def call(value, position):
        edit = ablate("blocks/0/attention/heads", heads=[1], positions=[position], value=value)
        return generate(params, SMALL, prompt, steps=STEPS, edit=edit).log_probabilities

    first = call(4.0, 2)

    def refused(*_, **__):
        raise AssertionError("traced anew")

    monkeypatch.setattr(decoding, "extend_edited", refused)
    assert not np.allclose(call(-4.0, 2), first)
    assert not np.allclose(call(4.0, PROMPT + 1), first)


HEADS = "blocks/0/attention/heads"
MISTAKES = {
    "typo": ({"blocks/0/attention/haeds": jnp.zeros_like}, "did you mean 'blocks/0/attention/heads'"),
    "shape": ({HEADS: lambda x: x[..., 0]}, r"returns float32\[3, 10, 3\] at blocks/0/attention/heads; expected"),
    "last position": (
        ablate(HEADS, positions=[0, -1]),
        "positions has -1 for .*; expected at least 0",
    ),
    "booleans": (ablate(HEADS, positions=[True] * 10), "positions has 10 booleans for .* expected numbers"),
    "too late": (ablate(HEADS, positions=[10]), "positions has 10 for .* which has 10 of them; expected 0 to 9"),
    "head": (ablate("blocks/0/attention", heads=[3]), "heads has 3 for .* expected 0 to 2"),
    "source": (ablate("encoder/final", positions=[7]), "positions has 7 for 'encoder/final', which has 7 of them"),
    "values": (patch({"final": jnp.ones((3, 5, 12))}), r"have shape \[3, 5, 12\]; expected one that broadcasts"),
    "index": ({HEADS: lambda x: x.at[:, 8].set(0)}, "depends on the number of a token or on other tokens"),
    "last": ({"final": lambda x: x.at[:, -1].set(0)}, r"edit\['final'\] at final depends on the number of a token"),
    "mean": ({"fin*": lambda x: x - x.mean(1, keepdims=True)}, r"edit\['fin\*'\] at final depends on .* other tokens"),
    "uniform": (
        {"blocks/*/attention/weights": lambda x: jnp.ones_like(x) / x.shape[-1]},
        r"at blocks/0/attention/weights depends on",
    ),
}


@pytest.mark.every(4, "long")
@pytest.mark.every(2)
@pytest.mark.parametrize("name", MISTAKES)
def test_edits_that_have_no_meaning_token_by_token_are_refused(name):
    edit, message = MISTAKES[name]
    config = encoder_decoder(SMALL)
    prompt, given, _ = inputs_of(config)
    with pytest.raises(UserError, match=message):
        generate(random_weights(config), config, prompt, steps=STEPS, edit=edit, **given)
