"""What docs/components.md promises to a token mixer with a decoding state, exercised by the package."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float

from flaxformer.components import Attention, Dense, NoPositions, RelativeBuckets, TokenMixer
from flaxformer.config import Block, ModelConfig
from flaxformer.core.params import Parameters, param
from flaxformer.core.pytree import Node
from flaxformer.core.struct import static
from flaxformer.model import Sampling, apply, beam_search, extend, generate, init, new_cache
from flaxformer.model.weights import with_layout
from flaxformer.nn.linear import linear
from flaxformer.system.errors import UserError

V, D = 11, 8


@pytest.fixture(autouse=True)
def broadcasting_as_in_a_users_program():
    with jax.numpy_rank_promotion("allow"):
        yield


PROMPT = np.array([[3, 1, 4, 1, 5, 9, 2], [0, 0, 6, 5, 0, 3, 5]])
VALID = np.array([[True] * 7, [False, False, True, True, False, True, True]])
STEPS = 9
FORMS = ("own pad_to", "array", "dict", "nested", "two per token", "constant", "input history")


class Entries(Node):
    """Inputs so far, which of them are real, and a method that enlarges both."""

    x: Array
    real: Array

    def pad_to(self, capacity):
        more = capacity - self.real.shape[-1]
        x = jnp.pad(self.x, [(0, 0)] * (self.x.ndim - 2) + [(0, more), (0, 0)])
        return Entries(x, jnp.pad(self.real, [(0, 0)] * (self.real.ndim - 1) + [(0, more)]))


class Largest(TokenMixer):
    """y_t = W max_{s ≤ t} x_s over real tokens, with a state of the form `form`."""

    reads_mask: ClassVar[bool] = False
    form: str = static("array", choices=FORMS)

    class Weights(Parameters):
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model", init="branch")

    def init_state(self, weights: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> Any:
        x, real = jnp.zeros((*batch, capacity, D), dtype), jnp.zeros((*batch, capacity), bool)
        lowest = jnp.full((*batch, capacity, D), -jnp.inf, dtype)  # an empty entry is not 0
        return {
            "own pad_to": Entries(x, real),
            "array": lowest,
            "dict": {"x": lowest, "seen": jnp.zeros(batch, jnp.int32)},
            "nested": (Entries(x, real), jnp.zeros(batch, jnp.int32)),
            "two per token": jnp.full((*batch, 2 * capacity, D), -jnp.inf, dtype),
            "constant": jnp.full((*batch, 1, D), -jnp.inf, dtype),
            "input history": None,
        }[self.form]

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Any) -> Array:
        if self.form == "input history":
            return linear(jax.lax.cummax(masked(x, context.valid), axis=x.ndim - 2), weights.out)
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], x.shape[-2], x.dtype), context)[0]

    def step(self, weights: Any, x: Float[Array, "*batch T D"], state: Any, context: Any) -> tuple[Array, Any]:
        start = 0 if context.offset is None else context.offset
        real = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        new = masked(x, context.valid)

        def put(old: Array, new: Array, axis: int, at: Any = start) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), at, old.ndim + axis)

        if self.form == "constant":
            y = jnp.maximum(jax.lax.cummax(new, axis=x.ndim - 2), state)
            return linear(y.astype(x.dtype), weights.out), y[..., -1:, :].astype(state.dtype)
        if self.form in ("own pad_to", "nested"):
            entries = state if self.form == "own pad_to" else state[0]
            entries = Entries(put(entries.x, jnp.where(real[..., None], x, 0), -2), put(entries.real, real, -1))
            every = masked(entries.x, entries.real)
            after = entries if self.form == "own pad_to" else (entries, state[1] + real.sum(-1))
        elif self.form == "dict":
            every = put(state["x"], new, -2)
            after = {"x": every, "seen": state["seen"] + real.sum(-1)}
        elif self.form == "two per token":
            every = put(state, jnp.repeat(new, 2, axis=-2), -2, 2 * start)
            after, every = every, every[..., ::2, :]
        else:
            every = after = put(state, new, -2)
        seen = jnp.arange(every.shape[-2]) <= start + jnp.arange(x.shape[-2])[:, None]
        y = jnp.where(seen[..., None], every[..., None, :, :], -jnp.inf).max(-2)
        return linear(jnp.where(jnp.isfinite(y), y, 0).astype(x.dtype), weights.out), after


def masked(x: Float[Array, "*batch T D"], valid: Bool[Array, "*batch T"] | None) -> Array:
    """The tokens, with −∞ at padding."""
    return x if valid is None else jnp.where(valid[..., None], x, -jnp.inf)


def model(form="array", **changes):
    fields = {"vocabulary": V, "layers": 2, "d_model": D, "feed_forward": Dense(d_ff=12), "positions": NoPositions()}
    return ModelConfig(**(fields | {"attention": Largest(form=form)} | changes))


def weights_of(config, layout="unrolled"):
    dice = np.random.default_rng(0)
    params = init(jax.random.key(0), config)
    noisy = jax.tree.map(lambda x: x + jnp.asarray(0.5 * dice.standard_normal(x.shape), x.dtype), params)
    return with_layout(noisy, layout)


def greedy(params, config, sequence):
    """Tokens and log probabilities of greedy decoding, by a forward pass over the whole sequence for each token."""
    found, sums = list(sequence), []
    run = jax.jit(apply)
    longest = len(sequence) + STEPS
    for _ in range(STEPS):
        padded = jnp.asarray([found + [0] * (longest - len(found))])
        logits = np.asarray(run(params, config, padded)[0, len(found) - 1], np.float64)
        found.append(int(logits.argmax()))
        sums.append(logits.max() - np.log(np.exp(logits).sum()))
    return found[len(sequence) :], sums


@pytest.mark.long
@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("form", "layout"), [*((form, "unrolled") for form in FORMS), ("own pad_to", "scanned"), ("dict", "scanned")]
)
def test_a_state_of_any_form_has_room_for_the_new_tokens(form, layout):
    config = model(form)
    params = weights_of(config, layout)
    for chunk in (None, 3):
        found = generate(params, config, PROMPT, steps=STEPS, valid=VALID, prompt_chunk=chunk, chunk=4)
        for row, valid in enumerate(VALID):
            tokens, log_probabilities = greedy(params, config, PROMPT[row][valid].tolist())
            assert found.tokens[row].tolist() == tokens
            np.testing.assert_allclose(found.log_probabilities[row], log_probabilities, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("form", ["own pad_to", "array", "nested"])
def test_beams_of_a_state_with_an_entry_per_token(form):
    config = model(form, pattern=(Block(), Block(attention=Largest(form="constant"))))
    params = weights_of(config)
    found = beam_search(params, config, PROMPT, steps=STEPS, beams=3, valid=VALID)
    for row, valid in enumerate(VALID):
        sequence = PROMPT[row][valid].tolist()
        for tokens, score in zip(found.tokens[row].tolist(), found.scores[row], strict=True):
            whole = sequence + tokens
            logits = jax.nn.log_softmax(apply(params, config, jnp.asarray([whole])))[0]
            terms = [logits[place - 1, whole[place]] for place in range(len(sequence), len(whole))]
            np.testing.assert_allclose(score, np.mean(terms), atol=1e-5)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("form", FORMS)
def test_the_cache_has_a_limit_if_the_state_has_an_entry_per_token(form):
    config = model(form)
    cache = new_cache(init(jax.random.key(0), config), config, (2,), 5)
    assert cache.capacity == (None if form == "constant" else 5)


@pytest.mark.long
def test_a_method_that_gives_another_room_is_named(monkeypatch):
    monkeypatch.setattr(Entries, "pad_to", lambda self, capacity: self)
    jax.clear_caches()  # a program that was compiled with the method would be used again
    config = model("own pad_to")
    expected = (
        r"Entries.pad_to\(32\) gives arrays of shapes \[\[2, 7, 8\], \[2, 7\]\]; expected \[\[2, 32, 8\], \[2, 32\]\]"
    )
    with pytest.raises(UserError, match=expected):
        generate(init(jax.random.key(0), config), config, PROMPT, steps=3)


class Readable(TokenMixer):
    """y_t = W · mean of the tokens that t may read, recomputed in decoding; with the bias of the position scheme."""

    heads: int = static(1)

    class Weights(Parameters):
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model", init="branch")

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Any) -> Array:
        length = x.shape[-2]
        allowed = context.mask.matrix(length, length)
        allowed = allowed[..., 0, :, :] if allowed.ndim > 2 else allowed
        x = x if context.valid is None else jnp.where(context.valid[..., None], x, 0)
        scores = 0 if context.bias is None else context.bias[..., 0, :, :]
        share = jnp.where(allowed, jnp.exp(scores), 0)
        return linear(share / jnp.maximum(share.sum(-1, keepdims=True), 1e-6) @ x, weights.out)


@pytest.mark.long
@pytest.mark.every(3)
@pytest.mark.parametrize("positions", [NoPositions(), RelativeBuckets(buckets=4, max_distance=3, std=1.0)])
@pytest.mark.parametrize("mixer", [Readable(), Attention(heads=1)], ids=["recomputed", "cached"])
def test_a_prefix_that_all_tokens_read_is_kept_in_decoding(positions, mixer):
    config = model(attention=mixer, positions=positions, mask_pattern="prefix")
    params, tokens = weights_of(config), jnp.asarray(PROMPT)
    expected = apply(params, config, tokens, prefix=jnp.array([4, 3]))
    cache = new_cache(params, config, (2,), 7)
    first, cache = extend(params, config, tokens[:, :4], cache, prefix=jnp.array([4, 3]))
    later, cache = extend(params, config, tokens[:, 4:6], cache)
    last, _ = extend(params, config, tokens[:, 6:], cache)
    np.testing.assert_allclose(jnp.concatenate([first, later, last], 1), expected, atol=1e-5)


class Reporter(TokenMixer):
    """Records the context of each call."""

    calls: ClassVar[list[Any]] = []

    class Weights(Parameters):
        scale: Float[Array, ""] = param(value=1.0, decay=False)

    def init_state(self, weights: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> Array:
        return jnp.zeros((*batch, 1), dtype)

    def apply(self, weights: Any, x: Array, context: Any) -> Array:
        self.calls.append(context)
        return x * weights.scale

    def step(self, weights: Any, x: Array, state: Array, context: Any) -> tuple[Array, Array]:
        return self.apply(weights, x, context), state


def test_the_context_of_each_call_of_a_decoding():
    config = model(attention=Reporter(), layers=1)
    params = init(jax.random.key(0), config)
    tokens, valid = jnp.asarray(PROMPT), jnp.asarray(VALID)
    Reporter.calls.clear()
    cache = new_cache(params, config, (2,), 9)
    _, cache = extend(params, config, tokens[:, :5], cache, valid=valid[:, :5])
    _, cache = extend(params, config, tokens[:, 5:], cache)
    first, second = Reporter.calls
    assert (int(first.offset), int(second.offset)) == (0, 5)
    assert first.valid.tolist() == VALID[:, :5].tolist()
    assert second.valid is None
    assert first.query_positions[1].tolist()[2:4] == [0, 1]
    assert second.query_positions.tolist() == [[5, 6], [2, 3]]
    assert second.key_positions.shape == (2, 9)
    assert second.mask.matrix(2, 9)[1, 0].tolist() == [
        [False, False, True, True, False, True, False, False, False],
        [False, False, True, True, False, True, True, False, False],
    ]
    assert (second.layer, second.layers, second.training, second.key) == (0, 1, False, None)


def test_sampling_repeats_with_a_state_that_is_enlarged():
    config = model("array")
    params, sampling = weights_of(config), Sampling(temperature=1.0)
    one, other = (
        generate(params, config, PROMPT, steps=STEPS, sampling=sampling, key=jax.random.key(1), chunk=chunk).tokens
        for chunk in (2, 9)
    )
    assert one.tolist() == other.tolist()
