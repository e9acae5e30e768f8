"""The same model in Flax NNX, with the attention of NNX, and Optax; one jitted training step with donated state."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from device_limits import device_memory, of_peak
from flax import nnx
from sizes import BETA2, CLIP, DECAY, LEARNING_RATE, Size

from flaxformer.bench import Work, rate


class Block(nnx.Module):
    """Pre-norm."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        width, dtype = size.width, jnp.dtype(size.precision)
        options: dict[str, Any] = {"dtype": dtype, "use_bias": False, "rngs": rngs}
        self.norm_1, self.norm_2 = (nnx.LayerNorm(width, **options) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(size.heads, width, decode=False, **options)
        self.up, self.down = nnx.Linear(width, 4 * width, **options), nnx.Linear(4 * width, width, **options)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm_1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm_2(x)), approximate=False))


class Model(nnx.Module):
    """Tokens [B, T] to logits [B, T, V]."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        dtype = jnp.dtype(size.precision)
        self.tokens = nnx.Embed(size.vocabulary, size.width, dtype=dtype, rngs=rngs)
        self.positions = nnx.Embed(size.length, size.width, dtype=dtype, rngs=rngs)
        self.blocks = nnx.List([Block(size, rngs) for _ in range(size.layers)])
        self.norm = nnx.LayerNorm(size.width, use_bias=False, dtype=dtype, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(jnp.arange(length))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.tokens.attend(self.norm(x))


def trainer(size: Size) -> Callable[[], Any]:
    """A function that trains one step each time it is called, on random tokens that lie on the device."""
    text = jax.random.randint(jax.random.key(1), (1_000_000,), 0, size.vocabulary)
    graph, params = nnx.split(Model(size, nnx.Rngs(0)))
    decayed = jax.tree.map(lambda p: p.ndim >= 2, params)
    adamw = optax.adamw(LEARNING_RATE, b2=BETA2, weight_decay=DECAY, mask=decayed)
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), adamw)

    def step(params: Any, moments: Any, key: jax.Array, text: jax.Array) -> Any:
        key, drawn = jax.random.split(key)
        starts = jax.random.randint(drawn, (size.batch,), 0, text.size - size.length - 1)
        windows = text[starts[:, None] + jnp.arange(size.length + 1)[None]]

        def loss(params: Any) -> jax.Array:
            logits = nnx.merge(graph, params)(windows[:, :-1]).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        updates, moments = optimizer.update(gradient, moments, params)
        return optax.apply_updates(params, updates), moments, key, value

    jitted = jax.jit(step, donate_argnums=(0, 1))
    state: Any = (params, optimizer.init(params), jax.random.key(0))

    def call() -> Any:
        nonlocal state
        *state, value = jitted(*state, text)
        return state, value

    return call


def train(work: Work, size: Size) -> dict[str, Any]:
    """Tokens and FLOPs a second of training."""
    found: Any = rate(
        work,
        trainer(size),
        units=size.tokens,
        name="tokens_per_second",
        ready=jax.block_until_ready,
        seconds=work["seconds"],
    )
    flops = found["tokens_per_second"] * size.flops_per_token
    return {**found, "flops_per_second": flops, **of_peak(flops, size.precision), **device_memory()}
