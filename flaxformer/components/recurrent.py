"""Recurrent cells as token mixers, with a decoding state of constant size."""

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from flaxformer.components.branch import TokenMixer
from flaxformer.components.component import Context, OwnWeights
from flaxformer.components.norms import without_padding
from flaxformer.core.params import Parameters, param
from flaxformer.core.struct import static
from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.nn.linear import linear
from flaxformer.nn.recurrent import elman_step, gru_step, lstm_step, scan_tokens

RecurrentState = tuple[Float[Array, "*batch D"], ...]
"""Decoding state of a cell: h, and for an LSTM the cell state c."""


class Recurrent(TokenMixer):
    """Base of the recurrent cells: h_t = f(h_{t−1}, x_t), with h_0 = 0 and a state of width d_model.

    A subclass sets `gates` and overrides `next_state`. Padding, on either side, does not change the state.
    """

    is_abstract: ClassVar[bool] = True
    reads_mask: ClassVar[bool] = False
    gates: ClassVar[int] = 1
    """Number of gates, in the order of `nn.recurrent`."""
    arrays: ClassVar[int] = 1
    """Number of arrays in the state, h first."""

    class Weights(Parameters):
        """Matrices of the input and of the state, [D, gates, D], and their biases."""

        input: Float[Array, "d_model gates d_hidden"] = param(fan_in="d_model")
        recurrent: Float[Array, "d_state gates d_hidden"] = param(fan_in="d_state")
        bias: Float[Array, "gates d_hidden"] = param(init="zeros", decay=False)

    def sizes(self, model: Mapping[str, int]) -> dict[str, int]:
        return {"gates": self.gates, "d_state": model["d_model"], "d_hidden": model["d_model"]}

    def next_state(
        self, weights: OwnWeights, state: RecurrentState, inputs: Float[Array, "*batch gates D"]
    ) -> RecurrentState:
        """Return the state after one token, from the state before it and the token's U x_t + b."""
        raise NotImplementedError(f"{type(self).__name__} does not define `next_state`")

    def init_state(self, weights: Weights, batch: tuple[int, ...], capacity: int, dtype: DTypeLike) -> RecurrentState:
        return (jnp.zeros((*batch, weights.recurrent.shape[0]), dtype),) * self.arrays

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(
        self, weights: Weights, x: Float[Array, "*batch T D"], state: RecurrentState, context: Context
    ) -> tuple[Array, RecurrentState]:
        inputs = linear(without_padding(x, context), weights.input, weights.bias)
        y, last = scan_tokens(lambda *token: self.next_state(weights, *token), state, inputs, context.valid)
        return y, jax.tree.map(lambda new, old: new.astype(old.dtype), last, state)


class Elman(Recurrent):
    """Elman network, h_t = σ(W h_{t−1} + U x_t + b), with the activation σ.

    Sources: Elman 1990; "Self-Attention and Transformers", problems with RNN (without b).
    """

    activation: str = static("tanh", choices=("tanh", "sigmoid", "relu"))

    def next_state(
        self, weights: Recurrent.Weights, state: RecurrentState, inputs: Float[Array, "*batch gates D"]
    ) -> RecurrentState:
        return (elman_step(state[0], inputs, weights.recurrent, ACTIVATIONS[self.activation]),)


class GRU(Recurrent):
    """Gated recurrent unit, with the equations of `nn.recurrent.gru_step`.

    Source: Cho et al. 2014; the reset gate is applied after the recurrent matrix, as in torch.nn.GRU.
    """

    class Weights(Recurrent.Weights):
        """Matrices, biases, and the candidate's recurrent bias c."""

        candidate_bias: Float[Array, "d_hidden"] = param(init="zeros", decay=False)

    gates: ClassVar[int] = 3

    def next_state(
        self, weights: Weights, state: RecurrentState, inputs: Float[Array, "*batch gates D"]
    ) -> RecurrentState:
        return (gru_step(state[0], inputs, weights.recurrent, weights.candidate_bias),)


class LSTM(Recurrent):
    """Long short-term memory, with the equations of `nn.recurrent.lstm_step`.

    Sources: Hochreiter & Schmidhuber 1997; Gers et al. 2000.
    """

    gates: ClassVar[int] = 4
    arrays: ClassVar[int] = 2

    def next_state(
        self, weights: Recurrent.Weights, state: RecurrentState, inputs: Float[Array, "*batch gates D"]
    ) -> RecurrentState:
        hidden, cell = state
        return lstm_step(hidden, cell, inputs, weights.recurrent)
