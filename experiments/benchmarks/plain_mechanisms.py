"""Ten mechanisms of the catalog, written by hand in plain JAX: what `flaxformer bench catalog` measures ours against.

Each function takes the weights of our component and a batch of sequences without padding, [B, T, D], and returns what
the component returns. Recurrences are computed in chunks: those within chunks together, and the states between them one
after another (Dao and Gu 2024, arXiv:2405.21060, section 6; Yang et al. 2024, arXiv:2406.06484, section 3).
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

CHUNK = 64


def rms(x: jax.Array, epsilon: float = 1e-6) -> jax.Array:
    """Root-mean-square norm without a gain."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon)


def unit(x: jax.Array) -> jax.Array:
    """Vectors of length 1."""
    return x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def heads(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """x W as heads, [B, N, T, d]."""
    return jnp.einsum("btd,dnh->bnth", x, matrix)


def out(y: jax.Array, matrix: jax.Array) -> jax.Array:
    """Heads [B, N, T, d] times W_O."""
    return jnp.einsum("bnth,nhd->btd", y, matrix)


def convolved(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Causal convolution of [B, N, T, d] over T with a kernel [width, N, d]."""
    padded = jnp.pad(x, ((0, 0), (0, 0), (len(kernel) - 1, 0), (0, 0)))
    return sum(padded[:, :, i : i + x.shape[2]] * row[:, None] for i, row in enumerate(kernel))


def chunks_of(x: jax.Array) -> jax.Array:
    """Split T into chunks: [B, N, n, chunk, d]."""
    return x.reshape(*x.shape[:2], -1, min(CHUNK, x.shape[2]), x.shape[3])


def states_of(decay: jax.Array, added: jax.Array) -> jax.Array:
    """States before each chunk, S ← decay S + added, of chunks on axis 2."""

    def step(state: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return pair[0] * state + pair[1], state

    pairs = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), (decay, added))
    return jnp.moveaxis(jax.lax.scan(step, jnp.zeros_like(added[:, :, 0]), pairs)[1], 0, 2)


def recurrence(q: jax.Array, k: jax.Array, v: jax.Array, log_decay: jax.Array) -> jax.Array:
    """Return q_t S_t with S_t = diag(α_t) S_{t−1} + k_tᵀ v_t; one decay per head and token, or one per row of S."""
    shape = v.shape
    q, k, v, log_decay = (chunks_of(x) for x in (q, k, v, log_decay))
    total = jnp.cumsum(log_decay, -2)
    end, causal = total[..., -1:, :], jnp.tri(q.shape[-2], dtype=bool)
    if log_decay.shape[-1] == 1:
        gap = jnp.where(causal, total - jnp.swapaxes(total, -1, -2), -jnp.inf)
        scores = (q @ jnp.swapaxes(k, -1, -2)) * jnp.exp(gap)
    else:  # decays that are near 1, as here, do not overflow in a chunk
        scores = jnp.where(causal, (q * jnp.exp(total)) @ jnp.swapaxes(k * jnp.exp(-total), -1, -2), 0)
    before = states_of(jnp.swapaxes(jnp.exp(end), -1, -2), jnp.swapaxes(k * jnp.exp(end - total), -1, -2) @ v)
    return (scores @ v + (q * jnp.exp(total)) @ before).reshape(shape)


def delta_rule(q: jax.Array, k: jax.Array, v: jax.Array, beta: jax.Array, log_decay: jax.Array) -> jax.Array:
    """Return q_t S_t with S_t = α_t S_{t−1} + β_t k_tᵀ (v_t − α_t k_t S_{t−1}), by the WY form in chunks."""
    shape = v.shape
    q, k, v, beta, log_decay = (chunks_of(x) for x in (q, k, v, beta, log_decay))
    total, size = jnp.cumsum(log_decay, -2), q.shape[-2]
    decay = jnp.exp(jnp.where(jnp.tri(size, dtype=bool), total - jnp.swapaxes(total, -1, -2), -jnp.inf))
    overlap = beta * (k @ jnp.swapaxes(k, -1, -2)) * decay * jnp.tri(size, k=-1)
    written = jnp.concatenate([beta * v, beta * jnp.exp(total) * k], -1)
    solve = jnp.vectorize(
        lambda matrix, right: solve_triangular(matrix, right, lower=True, unit_diagonal=True),
        signature="(t,t),(t,d)->(t,d)",
    )
    u, w = jnp.split(solve(overlap + jnp.eye(size), written), [v.shape[-1]], -1)
    end, scores = total[..., -1:, :], (q @ jnp.swapaxes(k, -1, -2)) * decay
    parts = (q * jnp.exp(total), scores, u, w, jnp.swapaxes(k * jnp.exp(end - total), -1, -2), jnp.exp(end))

    def step(state: jax.Array, parts: Any) -> tuple[jax.Array, jax.Array]:
        q, scores, u, w, k, end = parts
        new = u - w @ state
        return end * state + k @ new, q @ state + scores @ new

    start = jnp.zeros((*shape[:2], k.shape[-1], shape[-1]))
    y = jax.lax.scan(step, start, jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), parts))[1]
    return jnp.moveaxis(y, 0, 2).reshape(shape)


def linear_attention(w: Any, x: jax.Array) -> jax.Array:
    """Positive features, and a column of ones for the divisor."""
    q, k, v = (heads(x, matrix) for matrix in (w.query, w.key, w.value))
    v = jnp.concatenate([v, jnp.ones_like(v[..., :1])], -1)
    y = recurrence(jax.nn.elu(q) + 1, jax.nn.elu(k) + 1, v, jnp.zeros_like(v[..., :1]))
    return out(y[..., :-1] / (y[..., -1:] + 1e-6), w.out)


def retention(w: Any, x: jax.Array) -> jax.Array:
    """Rotated queries and keys, a fixed decay per head, a norm per head and a gate."""
    q, k, v = (heads(x, matrix) for matrix in (w.query, w.key, w.value))
    half = q.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 10_000 ** -jnp.linspace(0, 1, half)

    def rotate(x: jax.Array) -> jax.Array:
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        return jnp.concatenate([even * cos - odd * sin, odd * cos + even * sin], -1)

    log_decay = jnp.log1p(-(2.0 ** (-5 - jnp.arange(q.shape[1]))))[:, None, None]
    y = recurrence(rotate(q), rotate(k) / k.shape[-1] ** 0.5, v, jnp.broadcast_to(log_decay, (*q.shape[:3], 1)))
    return out(rms(y) * jax.nn.silu(heads(x, w.gate)), w.out)


def mamba2(w: Any, x: jax.Array) -> jax.Array:
    """One decay per head and token; all heads share B and C."""
    inputs = jax.nn.silu(convolved(heads(x, w.input), w.input_kernel) + w.input_bias[:, None])
    b, c = (
        jax.nn.silu(convolved((x @ matrix)[:, None], kernel[:, None]) + bias)
        for matrix, kernel, bias in ((w.write, w.write_kernel, w.write_bias), (w.read, w.read_kernel, w.read_bias))
    )
    n = inputs.shape[1]
    first = jnp.log(jnp.expm1(jnp.geomspace(0.001, 0.1, n)))
    delta = jnp.swapaxes(jax.nn.softplus(x @ w.step + first + w.step_bias), 1, 2)[..., None]
    rate = (jnp.linspace(1, 16, n) * jnp.exp(w.log_rate))[:, None, None]
    c, b = (jnp.broadcast_to(maps, (len(x), n, *maps.shape[2:])) for maps in (c, b))
    y = recurrence(c, b, delta * inputs, -delta * rate) + w.skip[:, None, None] * inputs
    y = jnp.swapaxes(y * jax.nn.silu(heads(x, w.gate)), 1, 2)
    y = rms(y.reshape(*x.shape[:2], -1), 1e-5).reshape(y.shape) * w.gain
    return jnp.einsum("btnh,nhd->btd", y, w.out)


def gated_linear_attention(w: Any, x: jax.Array) -> jax.Array:
    """A decay per row of the state."""
    q, k, v = (heads(x, matrix) for matrix in (w.query, w.key, w.value))
    log_decay = jax.nn.log_sigmoid(heads(x, w.decay) + w.decay_bias[:, None]) / 16
    return out(rms(recurrence(q, k, v, log_decay)) * jax.nn.silu(heads(x, w.gate)), w.out)


def delta_net(w: Any, x: jax.Array) -> jax.Array:
    """The delta rule after short convolutions."""
    q, k, v = (
        jax.nn.silu(convolved(heads(x, getattr(w, name)), getattr(w, f"{name}_kernel")))
        for name in ("query", "key", "value")
    )
    beta = jnp.swapaxes(jax.nn.sigmoid(x @ w.strength), 1, 2)[..., None]
    y = delta_rule(unit(q), unit(k), v, beta, jnp.zeros_like(beta))
    return out(rms(y / q.shape[-1] ** 0.5, 1e-5) * w.gain, w.out)


def gated_delta_rule(w: Any, x: jax.Array) -> jax.Array:
    """The delta rule with a decay."""
    q, k = (unit(jax.nn.silu(heads(x, matrix))) for matrix in (w.query, w.key))
    beta = jnp.swapaxes(jax.nn.sigmoid(x @ w.strength), 1, 2)[..., None]
    log_decay = jnp.swapaxes(jax.nn.log_sigmoid(x @ w.decay + w.decay_bias), 1, 2)[..., None]
    y = delta_rule(q, k, heads(x, w.value), beta, log_decay)
    return out(rms(y) * jax.nn.silu(heads(x, w.gate)), w.out)


def attention_weights(q: jax.Array, k: jax.Array) -> jax.Array:
    """Causal softmax(q kᵀ / √d)."""
    logits = jnp.einsum("bnth,bnsh->bnts", q, k) / q.shape[-1] ** 0.5
    return jax.nn.softmax(jnp.where(jnp.tri(q.shape[2], dtype=bool), logits, -jnp.inf))


def latent_attention(w: Any, x: jax.Array) -> jax.Array:
    """Keys and values from a latent vector; a part of the keys with positions is shared by the heads."""
    half = w.key_rotary.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 10_000 ** -(jnp.arange(half) / half)

    def rotate(x: jax.Array) -> jax.Array:
        first, second = jnp.split(x, 2, -1)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    latent = rms(x @ w.down) * w.gain
    query = rms(x @ w.query_down) * w.query_gain
    k, v = heads(latent, w.key_up), heads(latent, w.value_up)
    shared = jnp.broadcast_to(rotate(x @ w.key_rotary)[:, None], (*k.shape[:3], 2 * half))
    q = jnp.concatenate([heads(query, w.query_up), rotate(heads(query, w.query_rotary))], -1)
    return out(attention_weights(q, jnp.concatenate([k, shared], -1)) @ v, w.out)


def differential_attention(w: Any, x: jax.Array) -> jax.Array:
    """The difference of two maps per head."""
    q, k, v = (heads(x, getattr(w, name)) + getattr(w, f"{name}_bias")[:, None] for name in ("query", "key", "value"))
    maps = attention_weights(q, k)
    first, second = jnp.exp((w.lambda_query * w.lambda_key).sum(-1))
    maps = maps[:, 0::2] - (first - second + 0.8) * maps[:, 1::2]
    pairs = jnp.swapaxes(v, 1, 2).reshape(*x.shape[:2], -1, 2 * v.shape[-1])
    y = rms(jnp.einsum("bnts,bsnh->btnh", maps, pairs)) * 0.2
    return jnp.einsum("btnh,nhd->btd", y.reshape(*x.shape[:2], -1, v.shape[-1]), w.out) + w.out_bias


def hyena(w: Any, x: jax.Array) -> jax.Array:
    """Long convolutions by the fast Fourier transform, and products."""
    length, width = x.shape[1], w.skip.shape[-1]
    u = jnp.einsum("btd,dmh->bmth", x, w.input) + w.input_bias[:, None]
    v, *gates = jnp.moveaxis(convolved(u, w.kernel), 1, 0)
    t = jnp.arange(length) / 1023
    angle = 2 * jnp.pi * jnp.arange(1, 17) * t[:, None]
    h = jnp.concatenate([t[:, None], jnp.cos(angle), jnp.sin(angle)], -1)
    h = jnp.sin(10 * (h @ w.first + w.first_bias))
    h = jnp.sin(10 * (h @ w.second + w.second_bias))
    rate = -jnp.log(0.01) / jnp.linspace(1.5, 0.3, width)
    filters = jnp.einsum("th,hod->otd", h, w.last) * jnp.exp(-rate * t[:, None])
    for gate, kernel, skip in zip(gates, filters, w.skip, strict=True):
        spectrum = jnp.fft.rfft(v, 2 * length, axis=1) * jnp.fft.rfft(kernel, 2 * length, axis=0)
        v = gate * (jnp.fft.irfft(spectrum, 2 * length, axis=1)[:, :length] + skip * v)
    return v @ w.out + w.out_bias


def experts(w: Any, x: jax.Array) -> jax.Array:
    """Two of eight experts per token; all experts compute all tokens."""
    gates, chosen = routed(w, x)
    weight = jnp.einsum("bta,btae->bte", gates, jax.nn.one_hot(chosen, len(w.up)))
    hidden = jax.nn.relu(jnp.einsum("btd,edf->btef", x, w.up))
    return jnp.einsum("bte,btef,efd->btd", weight, hidden, w.down)


def ragged_experts(w: Any, x: jax.Array) -> jax.Array:
    """The same by JAX's product of groups of rows of any size."""
    gates, chosen = routed(w, x)
    order, sizes = jnp.argsort(chosen.reshape(-1)), jnp.bincount(chosen.reshape(-1), length=len(w.up))
    rows = x.reshape(-1, x.shape[-1])[order // 2]
    rows = jax.lax.ragged_dot(jax.nn.relu(jax.lax.ragged_dot(rows, w.up, sizes)), w.down, sizes)
    return (rows[jnp.argsort(order)].reshape(*chosen.shape, -1) * gates[..., None]).sum(-2)


def routed(w: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gates and numbers of the two experts of each token."""
    gates, chosen = jax.lax.top_k(jax.nn.softmax(x @ w.router), 2)
    return gates / gates.sum(-1, keepdims=True), chosen


PLAIN: Mapping[str, Callable[[Any, jax.Array], jax.Array]] = {
    "LinearAttention": linear_attention,
    "Retention": retention,
    "Mamba2": mamba2,
    "GatedLinearAttention": gated_linear_attention,
    "DeltaNet": delta_net,
    "GatedDeltaRule": gated_delta_rule,
    "Hyena": hyena,
    "LatentAttention": latent_attention,
    "DifferentialAttention": differential_attention,
    "MixtureOfExperts": experts,
}
"""The plain form of a component of the catalog, by its name."""
