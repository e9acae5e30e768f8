"""Greedy decoding in JAX: ours with and without a cache, Flax NNX's, and the limit of the memory."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from decoding_bytes import step_bytes
from flax import nnx
from nnx_model import Block, Model
from our_runs import run_of
from sizes import Size

from flaxformer.devices.sharding import Devices, replicated
from flaxformer.model import apply, init
from flaxformer.model.decoding import generate

Decode = Callable[[], jax.Array]
"""Function that generates the tokens after a prompt, [B, steps]."""


def ours(size: Size, prompt: jax.Array, steps: int, most: int | None = None) -> Decode:
    """`generate`, as `flaxformer generate` does it: each device decodes rows of its own; `most` devices, or all."""
    config, devices = run_of(size).model, math.gcd(size.batch, most or jax.device_count())
    mesh = Devices(data=devices).mesh()
    jax.set_mesh(mesh)
    params = jax.device_put(narrow(init(jax.random.key(0), config), size), replicated(mesh))
    return lambda: generate(params, config, prompt, steps=steps).tokens


def narrow(params: Any, size: Size) -> Any:
    """Weights in the precision of a size."""
    return jax.tree.map(lambda x: x.astype(size.precision) if jnp.issubdtype(x.dtype, jnp.floating) else x, params)


ours_on_one_device = functools.partial(ours, most=1)


def ours_without_cache(size: Size, prompt: jax.Array, steps: int) -> Decode:
    """The whole sequence read anew for each token: one compiled loop over a buffer that has room for all."""
    config = run_of(size).model
    params = narrow(init(jax.random.key(0), config), size)
    begun = jnp.pad(prompt, ((0, 0), (0, steps)))

    @jax.jit
    def decode(params: Any, tokens: jax.Array) -> jax.Array:
        def step(tokens: jax.Array, at: jax.Array) -> tuple[jax.Array, None]:
            said = apply(params, config, tokens)[:, at - 1].argmax(-1).astype(tokens.dtype)
            return tokens.at[:, at].set(said), None

        return jax.lax.scan(step, tokens, prompt.shape[1] + jnp.arange(steps))[0][:, prompt.shape[1] :]

    return lambda: decode(params, begun)


def flax_nnx(size: Size, prompt: jax.Array, steps: int, read_whole: bool = False) -> Decode:
    """The cache of `nnx.MultiHeadAttention`, which takes one token per call, in one compiled loop.

    read_whole: read the prompt in one call nevertheless, and write its keys and values to the cache ourselves.
    """
    batch, length = prompt.shape
    model = Model(size, nnx.Rngs(0))
    for block in model.blocks:
        block.attention.init_cache((batch, length + steps, size.width))
    graph, *parts = nnx.split(model, nnx.Param, nnx.Cache)
    whole = narrow(parts, size)

    @jax.jit
    def decode(params: Any, cache: Any, prompt: jax.Array) -> jax.Array:
        model = nnx.merge(graph, params, cache)

        def say(cache: Any, token: jax.Array, at: jax.Array) -> tuple[Any, jax.Array]:
            model = nnx.merge(graph, params, cache)
            x = model.tokens(token)[:, None] + model.positions(at)[None, None]
            for block in model.blocks:
                x = _after(block, x, block.attention(block.norm_1(x), decode=True))
            return nnx.state(model, nnx.Cache), model.tokens.attend(model.norm(x))[:, 0].argmax(-1)

        def read(carry: Any, each: Any) -> tuple[Any, None]:
            return say(carry[0], *each), None

        def step(carry: Any, at: jax.Array) -> tuple[Any, jax.Array]:
            cache, token = carry
            return say(cache, token, at), token

        if read_whole:
            said = _read(model, prompt).argmax(-1)
            start = (nnx.state(model, nnx.Cache), said)
        else:
            start, _ = jax.lax.scan(read, (cache, prompt[:, 0]), (prompt.T, jnp.arange(length)))
        return jax.lax.scan(step, start, length + jnp.arange(steps))[1].T

    return lambda: decode(*whole, prompt)


def flax_nnx_read_whole(size: Size, prompt: jax.Array, steps: int) -> Decode:
    """The same, its prompt read in one call."""
    return flax_nnx(size, prompt, steps, read_whole=True)


def _read(model: Model, prompt: jax.Array) -> jax.Array:
    """The logits after a prompt, whose keys and values are written to the caches."""
    length = prompt.shape[1]
    x = model.tokens(prompt) + model.positions(jnp.arange(length))[None]
    mask = nnx.make_causal_mask(prompt)
    for block in model.blocks:
        attention: Any = block.attention
        y = block.norm_1(x)
        attention.cached_key[...] = attention.cached_key[...].at[:, :length].set(attention.key(y))
        attention.cached_value[...] = attention.cached_value[...].at[:, :length].set(attention.value(y))
        attention.cache_index[...] = jnp.int32(length)
        x = _after(block, x, attention(y, mask=mask))
    return model.tokens.attend(model.norm(x[:, -1]))


def _after(block: Block, x: jax.Array, attended: jax.Array) -> jax.Array:
    x = x + attended
    return x + block.down(nnx.gelu(block.up(block.norm_2(x)), approximate=False))


def memory_passes(size: Size, prompt: int, steps: int) -> list[Decode]:
    """`steps` times as many bytes as a step reads: by a product that reads a matrix, and by an array that is negated.

    The one is the faster where a cache holds them, for it writes nothing; the other where none does. Half of the bytes
    are read and half are written there.
    """
    length, numbers = 1024, math.ceil(step_bytes(size, prompt, steps) / 4)
    matrix, vector = jnp.ones((math.ceil(numbers / length), length)), jnp.ones(length)
    half = jnp.ones(math.ceil(numbers / 2))

    @jax.jit
    def read(x: jax.Array, matrix: jax.Array) -> jax.Array:
        rows = len(matrix)
        return jax.lax.fori_loop(0, steps, lambda _, x: jnp.resize(x, (rows,)) @ matrix / rows, x)

    @jax.jit
    def negate(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, steps, lambda _, x: -x, x)

    return [lambda: read(vector, matrix), lambda: negate(half)]
