"""Linear recurrences over a state of one matrix per head, and causal convolutions over a few tokens.

Both take the state before the first token and return the one after the last, so that a sequence may be read in parts;
neither changes at padding.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.nn.formulations import decays as fast
from flaxformer.nn.formulations import with_formulations
from flaxformer.nn.triangular import solve_unit_lower
from flaxformer.nn.widen import widen


def linear_recurrence(
    query: Float[Array, "*batch T N d_k"],
    key: Float[Array, "*batch T N d_k"],
    value: Float[Array, "*batch T N d_v"],
    log_decay: Float[Array, "*batch T N d"] | None,
    state: Float[Array, "*batch N d_k d_v"],
    *,
    update: tuple[Float[Array, "*batch T N d_k"], Float[Array, "*batch T N d_k"]] | None = None,
    valid: Bool[Array, "*batch T"] | None = None,
    chunk: int = 16,
) -> tuple[Float[Array, "*batch T N d_v"], Float[Array, "*batch N d_k d_v"]]:
    """Return y_t = q_t S_t for every token, and the last S, where for each head

        S_t = diag(α_t) S_{t−1} + b_tᵀ (a_t S_{t−1}) + k_tᵀ v_t

    Within a chunk of tokens, with G_t = Σ_{r≤t} log α_r, and S_0 the state before the chunk, all tokens are computed
    together: u_t = a_t S_{t−1} solves the triangular system

        u_t = (a_t ⊙ e^{G_{t−1}}) S_0 + Σ_{s<t} (a_t ⊙ e^{G_{t−1} − G_s}) (k_sᵀ v_s + b_sᵀ u_s)
        y_t = (q_t ⊙ e^{G_t}) S_0 + Σ_{s≤t} (q_t ⊙ e^{G_t − G_s}) (k_sᵀ v_s + b_sᵀ u_s)

    No exponent is positive if no decay is above 1.

    Source: Yang et al. 2024, arXiv:2406.06484 (the form in chunks, without a decay).

    Args:
      log_decay: log α, whose last axis is d_k, or 1 for one decay per head; None for α = 1.
      state: S before the first token.
      update: the pair (a, b); None for no such term.
      valid: False at padding, whose keys and decays are not used; queries and values must be finite there.
      chunk: number of tokens that are computed together.
    """
    keep = None if valid is None else valid[..., None, None]
    log_decay = jnp.zeros_like(key[..., :1]) if log_decay is None else log_decay
    arrays = [query, key, value, log_decay, *(update or ())]
    dtype = jnp.result_type(jnp.float32, *arrays)
    if keep is not None:
        arrays = [x if i in (0, 2) else jnp.where(keep, x, 0) for i, x in enumerate(arrays)]
    length = query.shape[-3]
    chunk = max(1, min(chunk, length))

    def by_chunk(x: Float[Array, "*batch T N d"]) -> Float[Array, "n *batch N chunk d"]:
        x = jnp.pad(x.astype(dtype), [(0, 0)] * (x.ndim - 3) + [(0, -length % chunk), (0, 0), (0, 0)])
        x = x.reshape(*x.shape[:-3], -1, chunk, *x.shape[-2:])
        return jnp.moveaxis(jnp.swapaxes(x, -3, -2), -4, 0)

    after, y = jax.lax.scan(_chunk, state.astype(dtype), list(map(by_chunk, arrays)))
    y = jnp.swapaxes(jnp.moveaxis(y, 0, -4), -3, -2)
    return y.reshape(*y.shape[:-4], -1, *y.shape[-2:])[..., :length, :, :], after.astype(state.dtype)


def _chunk(state: Float[Array, "*batch N d_k d_v"], tokens: list[Array]) -> tuple[Array, Array]:
    """Return the state after a chunk, and y of its tokens [*batch, N, chunk, d_v], by the equations above.

    Args:
      state: S_0.
      tokens: q, k, v, log α, and a and b if there are.
    """
    query, key, value, log_decay, *update = tokens
    total = jnp.cumsum(log_decay, axis=-2)
    y = (query * jnp.exp(total)) @ state + decayed_products(query, key, total, total, False) @ value
    end = total[..., -1:, :]
    after = jnp.matrix_transpose(jnp.exp(end)) * state
    after += jnp.matrix_transpose(key * jnp.exp(end - total)) @ value
    if update:
        a, b = update
        before = total - log_decay
        u = (a * jnp.exp(before)) @ state + decayed_products(a, key, before, total, True) @ value
        u = solve_unit_lower(-decayed_products(a, b, before, total, True), u)
        y += decayed_products(query, b, total, total, False) @ u
        after += jnp.matrix_transpose(b * jnp.exp(end - total)) @ u
    return after, y


@with_formulations("decayed products", fast.FORMULATIONS)
def decayed_products(
    query: Float[Array, "*batch T d_k"],
    key: Float[Array, "*batch T d_k"],
    before: Float[Array, "*batch T d"],
    total: Float[Array, "*batch T d"],
    is_strict: bool,
) -> Float[Array, "*batch T T"]:
    """Return A_ts = Σ_i q_ti k_si e^{b_ti − G_si} for s ≤ t, for s < t if strict, and 0 for other tokens.

    Args:
      before: b, the logarithm of the decays up to token t or t − 1, whose last axis is d_k, or 1 for equal decays.
      total: G, that of the decays up to token s.
      is_strict: leave s = t out.
    """
    gap = before[..., :, None, :] - total[..., None, :, :]
    mask = jnp.tri(query.shape[-2], k=-1 if is_strict else 0, dtype=bool)[..., None]
    gap = jnp.where(jnp.broadcast_to(mask, gap.shape), gap, -jnp.inf)
    if gap.shape[-1] == 1:
        return (query @ jnp.matrix_transpose(key)) * jnp.exp(gap[..., 0])
    return jnp.einsum("...td,...sd,...tsd->...ts", query, key, jnp.exp(gap))


def previous_tokens(
    x: Float[Array, "*batch T D"], state: Float[Array, "*batch n D"], valid: Bool[Array, "*batch T"] | None = None
) -> tuple[list[Float[Array, "*batch T D"]], Float[Array, "*batch n D"]]:
    """Return, for each token, the n tokens before it and itself, and the n last tokens; padding is skipped.

    Args:
      state: the n tokens before the first.
      valid: False at padding.

    Returns:
      n + 1 arrays, the token n places earlier first, and the state.
    """
    count, length = state.shape[-2], x.shape[-2]
    if valid is None:
        tokens = jnp.concatenate([state.astype(x.dtype), x], axis=-2)
        return [tokens[..., i : i + length, :] for i in range(count + 1)], tokens[..., length:, :].astype(state.dtype)
    x = jnp.where(valid[..., None], x, 0)
    order = jnp.argsort(~valid, axis=-1, stable=True)  # padding last
    tokens = jnp.concatenate([state.astype(x.dtype), jnp.take_along_axis(x, order[..., None], axis=-2)], axis=-2)
    before, total = jnp.cumsum(valid, axis=-1) - 1, valid.sum(-1)  # number of tokens before each, and of all

    def take(indices: Array) -> Array:
        return jnp.take_along_axis(tokens, indices[..., None], axis=-2)

    before = jnp.maximum(before, 0)
    last = jnp.stack([total + i for i in range(count)], axis=-1)
    return [take(before + i) for i in range(count + 1)], take(last).astype(state.dtype)


def initial_steps(number: int) -> Float[Array, "d"]:
    """Return b with softplus(b) = Δ, steps of a recurrence whose logarithms are spaced evenly from 0.001 to 0.1.

    Source: Gu and Dao 2023, arXiv:2312.00752, section 3.6, who draw log Δ at random.
    """
    return jnp.log(jnp.expm1(jnp.geomspace(0.001, 0.1, number)))


def normalize_length(x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """Scale vectors to length 1; 0 stays 0."""
    return x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6)


def short_convolution(
    x: Float[Array, "..."],
    kernel: Float[Array, "width ..."],
    state: Float[Array, "..."],
    valid: Bool[Array, "*batch T"] | None = None,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return y_t = Σ_{i < width} w_i ⊙ x_{t−i} over tokens that are not padding, and the last width − 1 tokens.

    Args:
      x: tokens [*batch, T, *features].
      kernel: w, one kernel per feature; its last row is for the token itself.
      state: the width − 1 tokens before the first, [*batch, width − 1, *features]; zeros at the start of a sequence.
      valid: False at padding.
    """
    batch = x.shape[: x.ndim - kernel.ndim + 1]
    flat = widen(x).reshape(*batch, -1)
    window, after = previous_tokens(flat, state.reshape(*batch[:-1], state.shape[len(batch) - 1], -1), valid)
    rows = widen(kernel).reshape(kernel.shape[0], *(1 for _ in batch), -1)
    y = sum(row * tokens for row, tokens in zip(rows, window, strict=True))
    return jnp.reshape(y, x.shape), after.reshape(state.shape)
