"""What every model has, whatever stands between its inputs and its head."""

from typing import Any, ClassVar

from jaxtyping import Array

from flaxformer.config.heads import Classifier, LanguageModel, NoHead, Regressor
from flaxformer.config.initializers import LeCun, Normal, Xavier
from flaxformer.config.inputs import Patches, Stream, Tokens, Vectors
from flaxformer.config.norms import LayerNorm
from flaxformer.config.positions import NoPositions, Positions
from flaxformer.params import Spec
from flaxformer.struct import Config, leaf, part, static


class SequenceModel(Config):
    """Inputs, a stack of layers of width d_model, a head."""

    vocabulary: int = static(256, at_least=1)
    inputs: Tokens | Vectors | Stream | Patches = part(Tokens())
    layers: int = static(6, at_least=0)
    d_model: int = static(64, at_least=1)
    head: LanguageModel | Classifier | Regressor | NoHead = part(LanguageModel())
    initializer: Xavier | LeCun | Normal = part(Xavier())
    embedding_std: float = leaf(1.0, at_least=0)
    dropout: float | None = leaf(None, at_least=0, below=1)

    # What a model that has no such field answers.
    positions: ClassVar[Any] = NoPositions()
    norm_kind: ClassVar[Any] = LayerNorm()
    activation: ClassVar[str]

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every named axis of the parameters."""
        positions: Positions = self.positions  # a field of the Transformer's config
        return {
            "layers": self.layers,
            "vocabulary": self.vocabulary,
            "token_types": self.inputs.token_types or 0,
            "d_input": self.inputs.d_input,
            "d_embedding": self.d_model - positions.width,
            "d_model": self.d_model,
            "max_length": positions.max_length or 0,
            "outputs": self.head.outputs(self.vocabulary),
            "d_transform": self.d_model,
        }

    @property
    def max_length(self) -> int | None:
        """The longest sequence that it can read, where there is one."""
        return self.positions.max_length

    @property
    def initial_constants(self) -> dict[str, float | Array]:
        """The values of weights that start as constants, by their declared kind."""
        return {"zeros": 0.0, "ones": 1.0}

    def initial_std(self, spec: Spec) -> float | Array:
        """Standard deviation of a random weight's initial values, by its declared kind."""
        if spec.init == "embedding":
            return self.embedding_std
        if spec.init == "positions":
            return self.positions.std  # declared for schemes with learned weights alone
        return self.initializer.std(spec)
