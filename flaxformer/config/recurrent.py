"""RecurrentConfig: the network that the Transformer replaced, as data."""

from collections.abc import Iterator

from flaxformer.config.base import SequenceModel
from flaxformer.parts.heads import LanguageModel
from flaxformer.parts.inputs import Tokens
from flaxformer.struct import static

GATES = {"elman": 1, "gru": 3, "lstm": 4}
"""Blocks in the matrices of each cell."""


class RecurrentConfig(SequenceModel):
    """A stack of recurrent layers with the inputs and the head of a Transformer; causal by construction.

    cell: "elman", h_t = σ(W h_{t−1} + U x_t + b) ("Self-Attention and Transformers", problems with
    RNN), σ the `activation`;
    "gru" (Cho et al. 2014, with the reset gate after the recurrent map); "lstm" (Hochreiter & Schmidhuber 1997, with
    the forget gate of Gers et al. 2000).

    dropout acts on the embeddings and on what each layer says, never from token to token (Zaremba et al. 2014).
    """

    cell: str = static("elman", choices=GATES)
    activation: str = static("tanh", choices=("tanh", "sigmoid", "relu"))  # type: ignore[misc]
    layers: int = static(1, at_least=0)

    @property
    def sizes(self) -> dict[str, int]:
        """Every layer is of the model's width: d_state is the state that a step reads, d_hidden the one it makes."""
        widths = {"d_hidden": self.d_model, "d_state": self.d_model}
        return super().sizes | {"gates": GATES[self.cell]} | widths

    has_candidate_bias = property(lambda self: self.cell == "gru")

    def problems(self) -> Iterator[str]:
        if self.cell != "elman" and self.activation != "tanh":
            yield f"activation is '{self.activation}' with cell '{self.cell}'; expected 'tanh': only elman has a choice"
        if isinstance(self.head, LanguageModel) and self.head.transform is not None:
            yield f"head.transform is '{self.head.transform}'; expected None, for a recurrent model has no norm"
        if self.head.tied and not isinstance(self.inputs, Tokens):
            yield "head.tied is True; expected inputs Tokens, whose table it shares"
        if isinstance(self.inputs, Tokens) and self.inputs.shared:
            yield "inputs.shared is True; expected False, for a recurrent model has no decoder whose table to read"
