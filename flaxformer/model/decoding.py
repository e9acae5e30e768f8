"""Decoding: one call reads the prompt into a cache, whole or in parts, and a compiled loop continues it in chunks.

>>> generate(params, config, prompt, steps=20, sampling=Sampling(temperature=0.8), key=key).tokens
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Unpack, cast

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.core.points import Edit
from flaxformer.core.pytree import Node
from flaxformer.devices.sharding import mesh_for_rows, shard_map_batch
from flaxformer.model.cache import Cache
from flaxformer.model.call import PrefixInputs
from flaxformer.model.decoding_edits import EditArguments, check_edits
from flaxformer.model.interface import extend_edited
from flaxformer.model.prefill import read_prompt
from flaxformer.model.prompt import check_count, check_prompt, check_prompt_chunk
from flaxformer.model.sampling import Sampling, sample
from flaxformer.model.weights import Transformer
from flaxformer.nn.widen import widen
from flaxformer.system.errors import UserError, did_you_mean, quote

CAPACITY_MULTIPLE = 32
"""Divisor of the capacity of a cache, so that similar lengths share a compiled loop."""


class Generation(Node):
    """Continuations of a batch of prompts."""

    tokens: Int[Array, "B steps"]
    """Token ids; `end` after the end of a row."""
    lengths: Int[Array, "B"]
    """Number of tokens up to and including `end`."""
    log_probabilities: Float[Array, "B steps"]
    """log softmax(logits) of each token, in nats, before temperature, top-k and top-p; 0 after the end of a row."""


class Decoder(Node):
    """Arguments that all rows of a decoding share."""

    params: Transformer
    config: ModelConfig
    edits: EditArguments = EditArguments()
    sampling: Sampling = Sampling()
    end: Int[Array, ""] | int | None = None
    key: Array | None = None


class _State(Node):
    """State of the loop; between two chunks, each leaf has a leading axis of devices, which share the rows."""

    cache: Cache
    logits: Float[Array, "B V"]
    """Logits of the next token of each row."""
    step: Int[Array, ""]
    ended: Bool[Array, "B"]
    row: Int[Array, "B"]
    """Number of each row in the whole batch, which determines its random numbers."""


class PromptSettings(PrefixInputs, total=False):
    """Optional keyword arguments of `generate`, `stream` and `beam_search`; those of the encoder are as for `apply`."""

    valid: Bool[ArrayLike, "B T"] | None
    """False at padding, on either side; the positions of a row count only its other tokens."""
    end: int | None
    """Token that ends a row; None for none."""
    edit: Mapping[str, Edit] | None
    """Functions of activations by path, as for `apply`: each token is the one that follows from `apply` with the same
    edits, on the sequence before it. A function must edit each token on its own. `positions` of the edits of
    `flaxformer.interpret` count from the first token of the prompt, padding included; negative ones are refused. The
    encoder, and keys and values of cross-attention, are edited once."""


class DecodingSettings(PromptSettings, total=False):
    """Optional keyword arguments of `generate` and `stream`."""

    sampling: Sampling
    """Rule that chooses a token; by default greedy."""
    key: Array | None
    """Random key for a temperature; the random numbers of a token depend only on the key, its step and its row."""
    chunk: int
    """Number of tokens, 32 by default, after which the loop checks whether all rows have ended; does not change the
    result."""
    prompt_chunk: int | None
    """Number of tokens of the prompt that are read at a time, which bounds the memory of a long prompt; it changes the
    logits by rounding only. None reads all together."""


def generate(
    params: Transformer,
    config: ModelConfig,
    prompt: Int[ArrayLike, "B T"],
    *,
    steps: int,
    **settings: Unpack[DecodingSettings],
) -> Generation:
    """Continue each prompt by `steps` tokens, w_t ~ softmax(f(w_1 … w_{t−1})), chosen by `sampling`.

    Within a mesh of several devices along data (`jax.set_mesh(Devices(data=2).mesh())`), each device decodes a part of
    the rows if their number is divisible; with one device per core of a CPU, this is up to twice as fast.

    Args:
      params: weights of a language model.
      config: config of these weights.
      prompt: token ids with at least one token per row; for an encoder-decoder, the start token. All tokens of a
        prefix-LM attend to the whole prompt.
      steps: number of new tokens per row.
      settings: see `DecodingSettings`.

    Raises:
      UserError: a model that does not decode tokens; a prompt that is empty, only padding, outside the vocabulary or
        too long; a number out of range; `prompt_chunk` with mask_pattern "prefix"; or an edit that matches no point, or
        that depends on the number of a token or on other tokens.
    """
    parts = list(stream(params, config, prompt, steps=steps, **settings))
    return _concatenate(parts, settings.get("end") or 0, steps)


def stream(
    params: Transformer,
    config: ModelConfig,
    prompt: Int[ArrayLike, "B T"],
    *,
    steps: int,
    **settings: Unpack[DecodingSettings],
) -> Iterator[Generation]:
    """Yield the result of `generate` in parts, each a `Generation` with at most `chunk` further tokens per row.

    Parts may differ in length; the last one ends when all rows have ended. The arguments are those of `generate`, and
    are checked before the first part is computed.
    """
    chunk, end, edit = settings.get("chunk", 32), settings.get("end"), settings.get("edit")
    key, sampling = settings.get("key"), settings.get("sampling", Sampling())
    prefix_inputs = prefix_inputs_of(settings, DecodingSettings)
    tokens, is_valid = check_prompt(config, prompt, settings.get("valid"), steps, end, prefix_inputs)
    check_count("chunk", chunk)
    if not isinstance(sampling, Sampling):
        raise UserError(f"sampling is {quote(sampling)}; expected Sampling(...), or to be left out for greedy decoding")
    if key is None and sampling.temperature is not None:
        raise UserError(f"key is None with temperature {sampling.temperature}; expected a random key")
    check_prompt_chunk(config, settings.get("prompt_chunk"))
    check_edits(params, config, edit, len(tokens), tokens.shape[1] + steps - 1, prefix_inputs)
    decoder = Decoder(params, config, EditArguments.of(edit))
    mesh = None if edit else mesh_for_rows(len(tokens))  # edits may have values per row
    capacity = cache_capacity(config, tokens.shape[1] + steps)
    state = begin_decoding(decoder, tokens, is_valid, prefix_inputs, capacity, settings.get("prompt_chunk"), mesh)
    return _decode_in_chunks(decoder.replace(sampling=sampling, end=end, key=key), state, steps, chunk, mesh)


def prefix_inputs_of(settings: PromptSettings, kind: type[PromptSettings]) -> PrefixInputs:
    """Return the arguments that are not settings of decoding: those of the encoder.

    Raises:
      UserError: an argument is unknown.
    """
    known = list(kind.__annotations__)
    for name in settings.keys() - known:
        if name in Sampling.__annotations__ and "sampling" in known:
            raise UserError(f"unknown argument '{name}'; expected sampling=Sampling({name}=…)")
        raise UserError(f"unknown argument '{name}'{did_you_mean(name, known)}")
    names = kind.__annotations__.keys() - PrefixInputs.__annotations__.keys()
    return cast(PrefixInputs, {name: value for name, value in settings.items() if name not in names})


@functools.partial(jax.jit, static_argnums=2)
def _concatenate(parts: list[Generation], fill: Int[Array, ""], steps: int) -> Generation:
    """Concatenate parts, and append `fill` up to `steps` tokens."""
    tokens = jnp.concatenate([part.tokens for part in parts], axis=1)
    after = ((0, 0), (0, steps - tokens.shape[1]))
    return Generation(
        tokens=jnp.pad(tokens, after, constant_values=fill),
        lengths=functools.reduce(jnp.add, [part.lengths for part in parts]),
        log_probabilities=jnp.pad(jnp.concatenate([part.log_probabilities for part in parts], axis=1), after),
    )


@functools.partial(jax.jit, static_argnums=1)
def _truncate(part: Generation, steps: int) -> Generation:
    return Generation(part.tokens[:, :steps], jnp.minimum(part.lengths, steps), part.log_probabilities[:, :steps])


def _decode_in_chunks(
    decoder: Decoder, state: _State, steps: int, chunk: int, mesh: AbstractMesh | None
) -> Iterator[Generation]:
    """Decode in chunks of equal length, so that they share one program; surplus tokens of the last are dropped."""
    chunks = -(-steps // chunk)
    length = -(-steps // chunks)
    for done in range(0, steps, length):
        state, part = _continue(decoder, state, length, mesh)
        left = steps - done
        yield part if left >= length else _truncate(part, left)
        if decoder.end is not None and bool(state.ended.all()):
            return


@functools.partial(jax.jit, static_argnums=(4, 5, 6))
def begin_decoding(
    decoder: Decoder,
    prompt: Int[Array, "B T"],
    valid: Bool[Array, "B T"],
    prefix_inputs: PrefixInputs,
    capacity: int,
    prompt_chunk: int | None,
    mesh: AbstractMesh | None,
) -> _State:
    """Return the state of the loop after the prompt."""

    def begin(decoder: Decoder, rows: tuple[Array, Array, Array, PrefixInputs]) -> _State:
        params, config, edits = decoder.params, decoder.config, decoder.edits.edits()
        row, prompt, valid, prefix_inputs = rows
        cache, logits = read_prompt(params, config, prompt, valid, prefix_inputs, capacity, prompt_chunk, edits)
        return _add_device_axis(_State(cache, logits, jnp.int32(0), jnp.zeros(len(row), bool), row))

    return shard_map_batch(begin, decoder, (jnp.arange(len(prompt)), prompt, valid, prefix_inputs), mesh)


def decode_chunk(decoder: Decoder, state: _State, length: int, mesh: AbstractMesh | None) -> tuple[_State, Generation]:
    """Decode the next `length` tokens.

    If the cache is full, its last entry is overwritten. This happens only for surplus tokens and for the last token of
    the result, and the logits after these are not used.
    """

    def decode(decoder: Decoder, state: _State) -> tuple[_State, Generation]:
        step = functools.partial(_step, decoder)
        state, (tokens, log_probabilities, counted) = jax.lax.scan(step, _drop_device_axis(state), length=length)
        part = Generation(tokens=tokens.T, lengths=counted.sum(0), log_probabilities=log_probabilities.T)
        return _add_device_axis(state), part

    return shard_map_batch(decode, decoder, state, mesh)


# The state is donated, so that the cache, which is most of the memory, is updated in place.
_continue = jax.jit(decode_chunk, static_argnums=(2, 3), donate_argnums=1)


def _step(decoder: Decoder, state: _State, _: None) -> tuple[_State, tuple[Array, Array, Array]]:
    """Choose the next token of each row; return it, its log probability, and whether it counts as part of the row."""
    end, edits = decoder.end, decoder.edits.edits()
    step_key = None if decoder.key is None else jax.random.fold_in(decoder.key, state.step)
    token = sample(step_key, state.logits, decoder.sampling, state.row)
    log_probability = _log_probability(state.logits, token)
    if end is not None:
        token = jnp.where(state.ended, end, token)
        log_probability = jnp.where(state.ended, 0, log_probability)
    logits, cache = extend_edited(decoder.params, decoder.config, token[:, None], {}, state.cache, edits)
    ended = state.ended if end is None else token == end
    state_after = _State(cache, logits[:, 0], state.step + 1, ended, state.row)
    return state_after, (token, log_probability, ~state.ended)


def _add_device_axis(state: _State) -> _State:
    """Return the state of a device in the form that it has between two chunks."""
    return jax.tree.map(lambda x: x[None], state)


def _drop_device_axis(state: _State) -> _State:
    """Return the state of a device in the form that it has within a chunk."""
    return jax.tree.map(lambda x: x[0], state)


def _log_probability(logits: Float[Array, "B V"], token: Int[Array, "B"]) -> Float[Array, "B"]:
    """Return the log probability of one token per row."""
    logits = widen(logits)
    return jnp.take_along_axis(logits, token[:, None], axis=-1)[:, 0] - jax.nn.logsumexp(logits, axis=-1)


def log_softmax(logits: Float[Array, "*batch V"]) -> Float[Array, "*batch V"]:
    """Return log softmax(logits), in float32 or wider."""
    return jax.nn.log_softmax(widen(logits))


def cache_capacity(config: ModelConfig, length: int) -> int:
    """Return the capacity of a cache for `length` tokens: rounded up, but at most the model's max_length."""
    rounded = -(-length // CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE
    return rounded if config.max_length is None else min(rounded, config.max_length)
