"""What every model has, whatever stands between its inputs and its head."""

from collections.abc import Callable
from typing import Any, ClassVar

from jaxtyping import Array

from flaxformer.params import Spec
from flaxformer.parts.heads import Head, LanguageModel
from flaxformer.parts.initializers import Initializer, Xavier
from flaxformer.parts.inputs import Inputs, Tokens
from flaxformer.parts.norms import LayerNorm
from flaxformer.parts.positions import NoPositions
from flaxformer.struct import Config, leaf, part, static


class SequenceModel(Config):
    """Inputs, a stack of layers of width d_model, a head."""

    vocabulary: int = static(256, at_least=1)
    inputs: Inputs = part(Tokens())
    layers: int = static(6, at_least=0)
    d_model: int = static(64, at_least=1)
    head: Head = part(LanguageModel())
    initializer: Initializer = part(Xavier())
    dropout: float | None = leaf(None, at_least=0, below=1)

    # What a model that has no such field answers.
    positions: ClassVar[Any] = NoPositions()
    norm_kind: ClassVar[Any] = LayerNorm()

    @property
    def embedding(self) -> Inputs:
        """The inputs, with the defaults of a shared table where the head is tied."""
        return self.inputs.for_tied_head(self.d_model) if self.head.tied else self.inputs

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every named axis of the parameters."""
        return {
            "layers": self.layers,
            "vocabulary": self.vocabulary,
            "d_embedding": self.d_model - self.positions.width,
            "d_model": self.d_model,
            "d_source": self.d_model,
            "d_norm": self.d_model,
            "max_length": self.positions.max_length or 0,
            "outputs": self.head.outputs(self.vocabulary),
            "d_transform": self.d_model,
        }

    @property
    def max_length(self) -> int | None:
        """The longest sequence that it can read, where there is one."""
        return self.positions.max_length

    @property
    def mixes_batch(self) -> bool:
        """Whether a sequence's result depends on others of its batch in training."""
        return bool(self.norm_kind.mixes_batch)

    @property
    def initial_std(self) -> Callable[[Spec], float | Array]:
        """Standard deviation of a random weight's initial values, by its declaration."""
        return self.initializer.std
