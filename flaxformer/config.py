"""ModelConfig: the architecture as data.

To change an architecture choice, change one line of a config; to add a choice, add a row to the table beside its
mathematics (`ACTIVATIONS`), a constant (`PRE`, `POST`), or a small class beside its alternatives (`Sinusoidal`).
"""

from collections.abc import Iterator
from typing import ClassVar

from jaxtyping import Array, Float, Int

from flaxformer.nn.activations import ACTIVATIONS
from flaxformer.nn.masks import Causal, Mask, Window
from flaxformer.nn.norms import layer_norm, rms_norm
from flaxformer.nn.positions import sinusoidal
from flaxformer.params import Spec
from flaxformer.struct import Config, leaf, part, static


class NormSlots(Config):
    """Where a residual branch is normalised: stream(x + post(branch(pre(x)))), and `final` after the last block."""

    pre: bool = static(False)
    post: bool = static(False)
    stream: bool = static(False)
    final: bool = static(False)


PRE = NormSlots(pre=True, final=True)
"""x + f(norm(x)), with a norm before the head (Xiong et al. 2020; "An Introduction to Transformers")."""
POST = NormSlots(stream=True)
"""norm(x + f(x)) (Vaswani et al. 2017)."""
SANDWICH = NormSlots(pre=True, post=True, final=True)
"""x + norm(f(norm(x))) (Ding et al. 2021; Peri-LN, Kim et al. 2025)."""
NO_NORM = NormSlots()
"""x + f(x)."""
NormSlots.named = {"pre": PRE, "post": POST, "sandwich": SANDWICH, "none": NO_NORM}


class LayerNorm(Config):
    """(x − μ) / √(σ² + ε), times a gain, plus a bias; affine says which of the two are learned."""

    affine: str = static("gain+bias", choices=("none", "gain", "gain+bias"))
    epsilon: float = leaf(1e-5, above=0)
    apply: ClassVar = staticmethod(layer_norm)

    has_gain = property(lambda self: self.affine != "none")
    has_bias = property(lambda self: self.affine == "gain+bias")


class RMSNorm(Config):
    """x / √(mean(x²) + ε), times a gain."""

    affine: str = static("gain", choices=("none", "gain"))
    epsilon: float = leaf(1e-6, above=0)
    apply: ClassVar = staticmethod(rms_norm)

    has_gain = property(lambda self: self.affine != "none")
    has_bias = False


class NoPositions(Config):
    """Nothing is added: order enters through the causal mask alone, or not at all."""

    max_length: ClassVar = None
    learned = False

    def encode(self, positions: Int[Array, "*batch T"], d_model: int) -> None:
        """Nothing to add."""
        return


class Sinusoidal(Config):
    """Sines and cosines of geometric wavelengths from 2π to base · 2π."""

    base: float = leaf(10_000.0, above=0)
    max_length: ClassVar = None
    learned = False

    def encode(self, positions: Int[Array, "*batch T"], d_model: int) -> Float[Array, "*batch T D"]:
        """What is added to the embeddings."""
        return sinusoidal(positions, d_model, base=self.base)


class LearnedPositions(Config):
    """One learned vector a position, up to max_length; std is that of its initial values."""

    max_length: int = static(at_least=1)
    std: float = leaf(0.02, at_least=0)
    learned = True


class Xavier(Config):
    """Initial matrices of variance gain² · 2 / (fan-in + fan-out) (Glorot & Bengio 2010)."""

    gain: float = leaf(1.0, at_least=0)

    def std(self, spec: Spec) -> float | Array:
        """Standard deviation of a matrix."""
        return self.gain * (2 / (spec.fan_in + spec.fan_out)) ** 0.5


class LeCun(Config):
    """Initial matrices of variance gain² / fan-in (LeCun et al. 1998)."""

    gain: float = leaf(1.0, at_least=0)

    def std(self, spec: Spec) -> float | Array:
        """Standard deviation of a matrix."""
        return self.gain * spec.fan_in**-0.5


class Normal(Config):
    """Initial matrices of one standard deviation whatever their shape (GPT-2: 0.02)."""

    deviation: float = leaf(0.02, at_least=0)

    def std(self, spec: Spec) -> float | Array:
        """Standard deviation of a matrix."""
        return self.deviation


class ModelConfig(Config):
    """A decoder-only Transformer language model.

    The logit scale is width ** −logit_scale_exponent: exponent 0 is unscaled, ½ is 1/√d, 1 is 1/d, and
    `logit_scale_width` says whether d is the width of a head (the truth of Vaswani et al.) or of the model.
    """

    vocabulary: int = static(256, at_least=1)
    layers: int = static(6, at_least=0)
    d_model: int = static(64, at_least=1)
    heads: int = static(4, at_least=1)
    key_value_heads: int | None = static(None, at_least=1)
    d_head: int | None = static(None, at_least=1)
    d_value: int | None = static(None, at_least=1)
    d_ff: int = static(256, at_least=1)

    norm: NormSlots = part(PRE)
    norm_kind: LayerNorm | RMSNorm = part(LayerNorm())
    positions: NoPositions | Sinusoidal | LearnedPositions = part(Sinusoidal())
    activation: str = static("relu", choices=ACTIVATIONS)

    causal: bool = static(True)
    window: int | None = leaf(None, at_least=1)
    logit_scale_exponent: float = leaf(0.5)
    logit_scale_width: str = static("head", choices=("head", "model"))
    logit_cap: float | None = leaf(None, above=0)

    attention_bias: bool = static(True)
    feed_forward_bias: bool = static(True)
    tied_head: bool = static(False)
    head_bias: bool = static(False)

    initializer: Xavier | LeCun | Normal = part(Xavier())
    embedding_std: float = leaf(1.0, at_least=0)
    dropout: float | None = leaf(None, at_least=0, below=1)

    def problems(self) -> Iterator[str]:
        if self.d_head is None and self.d_model % self.heads:
            yield f"heads is {self.heads}; expected a divisor of d_model {self.d_model}, or d_head to be given"
        if self.heads % (self.key_value_heads or self.heads):
            yield f"key_value_heads is {self.key_value_heads}; expected a divisor of heads {self.heads}"

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every named axis of the parameters."""
        d_head = self.d_head or self.d_model // self.heads
        return {
            "layers": self.layers,
            "vocabulary": self.vocabulary,
            "d_model": self.d_model,
            "heads": self.heads,
            "key_value_heads": self.key_value_heads or self.heads,
            "d_head": d_head,
            "d_value": self.d_value or d_head,
            "d_ff": self.d_ff,
            "max_length": self.positions.max_length or 0,
        }

    @property
    def untied_head(self) -> bool:
        """Whether the head has a matrix of its own."""
        return not self.tied_head

    def initial_std(self, spec: Spec) -> float | Array:
        """Standard deviation of a random weight's initial values, by its declared kind."""
        if spec.init == "embedding":
            return self.embedding_std
        if spec.init == "positions":
            return self.positions.std  # type: ignore[union-attr]  # declared for LearnedPositions alone
        return self.initializer.std(spec)

    def mask(self) -> Mask | None:
        """Which keys a query may attend to, by the architecture; data adds its padding."""
        mask = Causal() if self.causal else None
        return mask if self.window is None else Window(self.window) & mask
