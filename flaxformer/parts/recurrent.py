"""Recurrent cells as token mixers: each token changes a state of constant size."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.component import Context
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.nn.linear import linear
from flaxformer.nn.recurrent import elman_step, gru_step, lstm_step, scan_tokens
from flaxformer.params import Parameters, param
from flaxformer.parts.mixers import TokenMixer
from flaxformer.parts.norms import without_padding
from flaxformer.struct import static

RecurrentState = tuple[Float[Array, "*batch D"], ...]
"""Decoding state of a cell: h, and the cell state c of an LSTM."""


class Recurrent(TokenMixer):
    """Base of the recurrent cells: h_t = f(h_{t−1}, x_t), with h_0 = 0 and a state as wide as the model.

    A subclass says how many gates its matrices have, and overrides `next_state`. Padding leaves the state unchanged,
    on whichever side it is; its output is the state before it.
    """

    is_abstract: ClassVar[bool] = True
    reads_mask: ClassVar[bool] = False
    gates: ClassVar[int] = 1
    """Blocks of each matrix, in the order of `nn.recurrent`."""
    arrays: ClassVar[int] = 1
    """Arrays in the state, h first."""
    has_candidate_bias: ClassVar[bool] = False

    class Weights(Parameters):
        """The maps of the input and of the state, [D, gates, D], and their biases."""

        input: Float[Array, "d_model gates d_hidden"] = param(fan_in="d_model")
        recurrent: Float[Array, "d_state gates d_hidden"] = param(fan_in="d_state")
        bias: Float[Array, "gates d_hidden"] = param(init="zeros", decay=False)
        candidate_bias: Float[Array, "d_hidden"] | None = param(init="zeros", decay=False, when="has_candidate_bias")

    def sizes(self, model: Any) -> dict[str, int]:
        return {"gates": self.gates, "d_state": model["d_model"], "d_hidden": model["d_model"]}

    def next_state(self, weights: Any, state: RecurrentState, inputs: Float[Array, "*batch gates D"]) -> RecurrentState:
        """The state after one token, from the state before it and the token's U x_t + b."""
        raise NotImplementedError

    def init_state(self, weights: Any, batch: tuple[int, ...], capacity: int, dtype: Any) -> RecurrentState:
        return (jnp.zeros((*batch, weights.recurrent.shape[0]), dtype),) * self.arrays

    def apply(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(
        self, weights: Any, x: Float[Array, "*batch T D"], state: RecurrentState, context: Context
    ) -> tuple[Array, RecurrentState]:
        inputs = linear(without_padding(x, context), weights.input, weights.bias)
        y, last = scan_tokens(lambda *token: self.next_state(weights, *token), state, inputs, context.valid)
        return y, jax.tree.map(lambda new, old: new.astype(old.dtype), last, state)


class Elman(Recurrent):
    """h_t = σ(W h_{t−1} + U x_t + b), with σ the activation.

    Sources: Elman 1990; "Self-Attention and Transformers", problems with RNN (without b).
    """

    activation: str = static("tanh", choices=("tanh", "sigmoid", "relu"))

    def next_state(self, weights: Any, state: RecurrentState, inputs: Float[Array, "*batch gates D"]) -> RecurrentState:
        return (elman_step(state[0], inputs, weights.recurrent, ACTIVATIONS[self.activation]),)


class GRU(Recurrent):
    """Gated recurrent unit, with the reset gate after the recurrent map: see `nn.recurrent.gru_step`.

    Source: Cho et al. 2014, with the order of the reset gate of torch.nn.GRU.
    """

    gates: ClassVar[int] = 3
    has_candidate_bias: ClassVar[bool] = True

    def next_state(self, weights: Any, state: RecurrentState, inputs: Float[Array, "*batch gates D"]) -> RecurrentState:
        return (gru_step(state[0], inputs, weights.recurrent, weights.candidate_bias),)


class LSTM(Recurrent):
    """Long short-term memory with a forget gate: see `nn.recurrent.lstm_step`.

    Sources: Hochreiter & Schmidhuber 1997; Gers et al. 2000.
    """

    gates: ClassVar[int] = 4
    arrays: ClassVar[int] = 2

    def next_state(self, weights: Any, state: RecurrentState, inputs: Float[Array, "*batch gates D"]) -> RecurrentState:
        hidden, cell = state
        return lstm_step(hidden, cell, inputs, weights.recurrent)
