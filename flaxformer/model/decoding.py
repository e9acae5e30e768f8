"""Decoding: a prompt is read into a cache in one call, and continued token by token, in chunks of one compiled loop.

>>> generate(params, config, prompt, steps=20, sampling=Sampling(temperature=0.8), key=key).tokens
"""

import functools
from collections.abc import Iterator
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.model.call import PrefixInputs
from flaxformer.model.interface import extend
from flaxformer.model.prompt import checked
from flaxformer.model.sampling import Sampling, sample
from flaxformer.model.transformer import new_cache, run
from flaxformer.pytree import Node
from flaxformer.sharding import mesh_for_rows, shard_map_batch
from flaxformer.struct import UserError

SLOTS = 32
"""The capacity of a cache is a multiple of this, so that similar lengths share a compiled loop."""


class Generation(Node):
    """Continuation of each prompt of a batch."""

    tokens: Int[Array, "B steps"]
    """After a row's end, `end` again and again."""
    lengths: Int[Array, "B"]
    """Number of tokens that are real, `end` among them."""
    log_probabilities: Float[Array, "B steps"]
    """log softmax(logits) of each token under the model itself, in nats, whatever was sampled; 0 after a row's end."""


class _State(Node):
    """Between two chunks, each leaf has a leading axis: the devices that the rows are divided among."""

    cache: Any
    logits: Float[Array, "B V"]
    """Choose the next token of each row."""
    step: Int[Array, ""]
    ended: Bool[Array, "B"]
    row: Int[Array, "B"]
    """The number of each row in the whole batch, of which its randomness is."""


def generate(
    params: Any,
    config: ModelConfig,
    prompt: Int[ArrayLike, "B T"],
    *,
    steps: int,
    valid: Bool[ArrayLike, "B T"] | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008 (immutable)
    end: int | None = None,
    key: Array | None = None,
    chunk: int = 32,
    **given: Unpack[PrefixInputs],
) -> Generation:
    """`steps` tokens after each prompt, w_t ~ softmax(f(w_1 … w_{t−1})), each by `sampling`.

    Within a mesh of several devices along data (`jax.set_mesh(Devices(data=2).mesh())`), each decodes its own rows,
    where their number can be divided: with a device for each of two cores, up to twice as fast as one device.

    Args:
      prompt: at least one token a row; for an encoder-decoder, that of a start. A prefix-LM sees it whole.
      valid: False at padding, on either side: a row goes on at its own next position, as if it were alone.
      end: the token after which a row says no more; None for none.
      key: for a temperature. A token's randomness is of the key, its step and its row alone.
      chunk: the most tokens between two looks at whether all rows have ended; it changes no token.
      given: source, source_valid, memory, memory_valid, as `apply` takes them.

    Raises:
      UserError: a model that does not decode tokens, a prompt that is empty, padding alone, out of the vocabulary or
        too long to be continued, or a number out of range; the message says which.
    """
    parts = list(
        stream(
            params, config, prompt, steps=steps, valid=valid, sampling=sampling, end=end, key=key, chunk=chunk, **given
        )
    )
    return _joined(parts, 0 if end is None else end, steps)


def stream(
    params: Any,
    config: ModelConfig,
    prompt: Int[ArrayLike, "B T"],
    *,
    steps: int,
    valid: Bool[ArrayLike, "B T"] | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008 (immutable)
    end: int | None = None,
    key: Array | None = None,
    chunk: int = 32,
    **given: Unpack[PrefixInputs],
) -> Iterator[Generation]:
    """Yield the result of `generate` in pieces: each `Generation` holds the next tokens, at most `chunk` of each row.

    The pieces have lengths of their own, and end when all rows have. Mistakes are raised here, not at the first piece.
    """
    tokens, real = checked(config, prompt, valid, steps, end, given)
    if chunk < 1:
        raise UserError(f"chunk is {chunk}; expected at least 1")
    if key is None and sampling.temperature is not None:
        raise UserError(f"key is None with temperature {sampling.temperature}; expected a key to draw with")
    mesh = mesh_for_rows(len(tokens))
    state = _begin(params, config, tokens, real, given, cache_capacity(config, tokens.shape[1] + steps), mesh)
    return _pieces(params, config, state, sampling, end, key, steps, chunk, mesh)


@functools.partial(jax.jit, static_argnums=2)
def _joined(parts: list[Generation], fill: Int[Array, ""], steps: int) -> Generation:
    """Pieces as one, with `fill` from their end up to `steps` tokens."""
    tokens = jnp.concatenate([part.tokens for part in parts], axis=1)
    after = ((0, 0), (0, steps - tokens.shape[1]))
    return Generation(
        tokens=jnp.pad(tokens, after, constant_values=fill),
        lengths=sum(part.lengths for part in parts),  # type: ignore[arg-type]
        log_probabilities=jnp.pad(jnp.concatenate([part.log_probabilities for part in parts], axis=1), after),
    )


@functools.partial(jax.jit, static_argnums=1)
def _first(piece: Generation, steps: int) -> Generation:
    return Generation(piece.tokens[:, :steps], jnp.minimum(piece.lengths, steps), piece.log_probabilities[:, :steps])


def _pieces(
    params: Any,
    config: ModelConfig,
    state: _State,
    sampling: Sampling,
    end: int | None,
    key: Array | None,
    steps: int,
    chunk: int,
    mesh: Mesh | None,
) -> Iterator[Generation]:
    """Chunks of one length, so of one program: as equal as can be, the last one's surplus dropped."""
    chunks = -(-steps // chunk)
    length = -(-steps // chunks)
    for done in range(0, steps, length):
        state, piece = _continue(params, config, state, sampling, end, key, length, mesh)
        left = steps - done
        yield piece if left >= length else _first(piece, left)
        if end is not None and bool(state.ended.all()):
            return


def read_prompt(
    params: Any,
    config: ModelConfig,
    prompt: Int[Array, "*batch T"],
    valid: Bool[Array, "*batch T"],
    given: PrefixInputs,
    capacity: int,
) -> tuple[Any, Float[Array, "*batch V"]]:
    """The cache with a prompt in it, and the logits at its last real token.

    The prompt attends to itself alone: the positions for what follows come after.
    """
    batch, length = prompt.shape[:-1], prompt.shape[-1]
    cache = new_cache(params, config, batch, length, **given)
    read = run(params, config, prompt, {"valid": valid, "prefix": jnp.full(batch, length)}, cache=cache, last_only=True)
    return read.cache.pad_to(capacity), read.output.squeeze(-2)


@functools.partial(jax.jit, static_argnums=(5, 6))
def _begin(
    params: Any,
    config: ModelConfig,
    prompt: Int[Array, "B T"],
    valid: Bool[Array, "B T"],
    given: PrefixInputs,
    capacity: int,
    mesh: Mesh | None,
) -> _State:
    def begin(shared: Any, rows: Any) -> _State:
        (params, config), (row, prompt, valid, given) = shared, rows
        cache, logits = read_prompt(params, config, prompt, valid, given, capacity)
        return _outside(_State(cache, logits, jnp.int32(0), jnp.zeros(len(row), bool), row))

    return shard_map_batch(begin, (params, config), (jnp.arange(len(prompt)), prompt, valid, given), mesh)


def _go_on(
    params: Any,
    config: ModelConfig,
    state: _State,
    sampling: Sampling,
    end: Int[Array, ""] | None,
    key: Array | None,
    length: int,
    mesh: Mesh | None,
) -> tuple[_State, Generation]:
    """The next `length` tokens.

    A cache that is full is written to in its last slot: only surplus tokens, and the last one asked for, come there,
    and what the model says after those is dropped.
    """

    def go_on(shared: Any, state: _State) -> tuple[_State, Generation]:
        step = functools.partial(_step, *shared)
        state, (tokens, numbers, real) = jax.lax.scan(step, _inside(state), length=length)
        return _outside(state), Generation(tokens=tokens.T, lengths=real.sum(0), log_probabilities=numbers.T)

    return shard_map_batch(go_on, (params, config, sampling, end, key), state, mesh)


# The state is donated: the cache, most of the memory, is written in place from chunk to chunk.
_continue = jax.jit(_go_on, static_argnums=(6, 7), donate_argnums=2)


def _step(
    params: Any,
    config: ModelConfig,
    sampling: Sampling,
    end: Int[Array, ""] | None,
    key: Array | None,
    state: _State,
    _: None,
) -> tuple[_State, tuple[Array, Array, Array]]:
    """The next token of each row, its log probability, and whether it is real."""
    own_key = None if key is None else jax.random.fold_in(key, state.step)
    token = sample(own_key, state.logits, sampling, state.row)
    number = _log_probability(state.logits, token)
    if end is not None:
        token, number = jnp.where(state.ended, end, token), jnp.where(state.ended, 0, number)
    logits, cache = extend(params, config, token[:, None], state.cache)
    ended = state.ended if end is None else token == end
    return _State(cache, logits[:, 0], state.step + 1, ended, state.row), (token, number, ~state.ended)


def _outside(state: _State) -> _State:
    """A device's state, as it is between two chunks."""
    return jax.tree.map(lambda x: x[None], state)


def _inside(state: _State) -> _State:
    """The same, as it is within one."""
    return jax.tree.map(lambda x: x[0], state)


def _log_probability(logits: Float[Array, "B V"], token: Int[Array, "B"]) -> Float[Array, "B"]:
    """`log_softmax` of one token per row."""
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return jnp.take_along_axis(logits, token[:, None], axis=-1)[:, 0] - jax.nn.logsumexp(logits, axis=-1)


def log_softmax(logits: Float[Array, "*batch V"]) -> Float[Array, "*batch V"]:
    """log softmax(logits), in float32 or wider."""
    return jax.nn.log_softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))


def cache_capacity(config: ModelConfig, length: int) -> int:
    """Slots of a cache for that many tokens, rounded up as far as the model reaches."""
    rounded = -(-length // SLOTS) * SLOTS
    return rounded if config.max_length is None else min(rounded, config.max_length)
