"""Recurrent cells: one step of each, and the scan over tokens.

The input products U x_t of all tokens are one matrix product before the scan; a step adds the terms that depend on the
state. D is the width of the state. Inputs are [*batch, gates, D], and recurrent matrices W [D, gates, D].
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer.nn.linear import linear

StateT = TypeVar("StateT", bound=tuple[Array, ...])


def elman_step(
    hidden: Float[Array, "*batch D"],
    inputs: Float[Array, "*batch 1 D"],
    recurrent: Float[Array, "D 1 D"],
    activation: Callable[[Array], Array] = jnp.tanh,
) -> Float[Array, "*batch D"]:
    """Return h_t = σ(W h_{t−1} + U x_t + b), where inputs are U x_t + b.

    Sources: Elman 1990; "Self-Attention and Transformers", problems with RNN (without b).
    """
    return activation(inputs + linear(hidden, recurrent))[..., 0, :]


def gru_step(
    hidden: Float[Array, "*batch D"],
    inputs: Float[Array, "*batch 3 D"],
    recurrent: Float[Array, "D 3 D"],
    candidate_bias: Float[Array, "D"],
) -> Float[Array, "*batch D"]:
    """Return h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}, with the sigmoid S and, in the order of the gates axis,

        reset r = S(W_r h_{t−1} + U_r x_t + b_r)
        update z = S(W_z h_{t−1} + U_z x_t + b_z)
        candidate n = tanh(r ⊙ (W_n h_{t−1} + c) + U_n x_t + b_n)

    where inputs are the three U x_t + b, and c is `candidate_bias`, which differs from b_n because r multiplies it.

    The reset gate is applied after the recurrent matrix, as in torch.nn.GRU and cuDNN. In Cho et al. 2014, equation 8,
    it is applied before, W (r ⊙ h_{t−1}), which needs a second matrix product per step.
    """
    mapped = linear(hidden, recurrent)
    reset, update = jnp.unstack(jax.nn.sigmoid(inputs[..., :2, :] + mapped[..., :2, :]), axis=-2)
    bias = jnp.expand_dims(candidate_bias, range(hidden.ndim - 1))
    candidate = jnp.tanh(inputs[..., 2, :] + reset * (mapped[..., 2, :] + bias).astype(mapped.dtype))
    return (1 - update) * candidate + update * hidden


def lstm_step(
    hidden: Float[Array, "*batch D"],
    cell: Float[Array, "*batch D"],
    inputs: Float[Array, "*batch 4 D"],
    recurrent: Float[Array, "D 4 D"],
) -> tuple[Float[Array, "*batch D"], Float[Array, "*batch D"]]:
    """Return h_t = o ⊙ tanh(c_t) and the cell state c_t = f ⊙ c_{t−1} + i ⊙ g, with the sigmoid S and, in order,

        input i = S(W_i h_{t−1} + U_i x_t + b_i)
        forget f = S(W_f h_{t−1} + U_f x_t + b_f)
        candidate g = tanh(W_g h_{t−1} + U_g x_t + b_g)
        output o = S(W_o h_{t−1} + U_o x_t + b_o)

    where inputs are the four U x_t + b. There are no peepholes, as in torch.nn.LSTM.

    Sources: Hochreiter & Schmidhuber 1997; Gers et al. 2000 (the forget gate).
    """
    sigmoid = jax.nn.sigmoid
    input_gate, forget, candidate, output_gate = jnp.unstack(inputs + linear(hidden, recurrent), axis=-2)
    cell = sigmoid(forget) * cell + sigmoid(input_gate) * jnp.tanh(candidate)
    return sigmoid(output_gate) * jnp.tanh(cell), cell


def scan_tokens(
    step: Callable[[StateT, Array], StateT],
    state: StateT,
    inputs: Float[Array, "*batch T gates D"],
    valid: Bool[Array, "*batch T"] | None = None,
) -> tuple[Float[Array, "*batch T D"], StateT]:
    """Compute state_t = step(state_{t−1}, inputs_t) token by token.

    Args:
      step: maps a state, which is a tuple of arrays [*batch, D] with h first, and inputs [*batch, gates, D] to the next
        state.
      state: the state before the first token.
      valid: False at padding, which does not change the state; its inputs must be finite, or gradients will not be.

    Returns:
      h after each token, and the state after the last token.
    """

    def body(state: StateT, token: tuple[Array, Array | None]) -> tuple[StateT, Array]:
        inputs, valid = token
        after = step(state, inputs)
        if valid is not None:
            after = jax.tree.map(lambda new, old: jnp.where(valid[..., None], new, old), after, state)
        return after, after[0]

    state = jax.tree.map(lambda x: x.astype(inputs.dtype), state)
    by_token = jnp.moveaxis(inputs, -3, 0), None if valid is None else jnp.moveaxis(valid, -1, 0)
    state, hidden = jax.lax.scan(body, state, by_token)
    return jnp.moveaxis(hidden, 0, -2), state
