"""The same model in plain JAX and Optax, its layers unrolled or scanned; one jitted step with donated state."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from sizes import BETA2, CLIP, DECAY, LEARNING_RATE, Size


def init(size: Size) -> dict[str, Any]:
    """Weights; those of the layers are stacked."""
    width, keys = size.width, iter(jax.random.split(jax.random.key(0), 6))

    def normal(*shape: int) -> jax.Array:
        return 0.02 * jax.random.normal(next(keys), shape, size.precision)

    gains = {name: jnp.ones((size.layers, width), size.precision) for name in ("norm_1", "norm_2")}
    maps = {
        "qkv": normal(size.layers, width, 3, size.heads, width // size.heads),
        "out": normal(size.layers, width, width),
    }
    maps |= {"up": normal(size.layers, width, 4 * width), "down": normal(size.layers, 4 * width, width)}
    tables = {"tokens": normal(size.vocabulary, width), "positions": normal(size.length, width)}
    return {"layers": gains | maps, "norm": jnp.ones(width, size.precision), **tables}


def norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    """Layer norm with a gain alone."""
    return jax.nn.standardize(x, epsilon=1e-5) * gain


def block(x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    """One layer, pre-norm."""
    q, k, v = jnp.einsum("btd,dcnh->cbtnh", norm(x, w["norm_1"]), w["qkv"])
    logits = jnp.einsum("btnh,bsnh->bnts", q, k) / q.shape[-1] ** 0.5
    maps = jax.nn.softmax(jnp.where(jnp.tri(x.shape[1], dtype=bool), logits, -jnp.inf))
    x = x + jnp.einsum("bnts,bsnh->btnh", maps, v).reshape(x.shape) @ w["out"]
    return x + jax.nn.gelu(norm(x, w["norm_2"]) @ w["up"], approximate=False) @ w["down"]


def logits(params: dict[str, Any], tokens: jax.Array, scanned: bool) -> jax.Array:
    """Tokens [B, T] to logits [B, T, V]."""
    x = params["tokens"][tokens] + params["positions"][: tokens.shape[1]]
    if scanned:
        x = jax.lax.scan(lambda x, w: (block(x, w), None), x, params["layers"])[0]
    else:
        for layer in range(len(params["layers"]["up"])):
            x = block(x, jax.tree.map(lambda w, layer=layer: w[layer], params["layers"]))
    return norm(x, params["norm"]) @ params["tokens"].T


def trainer(size: Size, scanned: bool) -> Callable[[], Any]:
    """A function that trains one step each time it is called, on random tokens that lie on the device."""
    text = jax.random.randint(jax.random.key(1), (1_000_000,), 0, size.vocabulary)
    params = init(size)
    decayed = jax.tree.map(lambda p: p.ndim >= 2, params)
    adamw = optax.adamw(LEARNING_RATE, b2=BETA2, weight_decay=DECAY, mask=decayed)
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), adamw)

    def step(params: Any, moments: Any, key: jax.Array, text: jax.Array) -> Any:
        key, drawn = jax.random.split(key)
        starts = jax.random.randint(drawn, (size.batch,), 0, text.size - size.length - 1)
        windows = text[starts[:, None] + jnp.arange(size.length + 1)]

        def loss(params: Any) -> jax.Array:
            scores = logits(params, windows[:, :-1], scanned).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(scores, windows[:, 1:]).mean()

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
