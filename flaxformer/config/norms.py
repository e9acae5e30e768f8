"""Which norm, and where in a block it stands."""

from typing import ClassVar

from jaxtyping import Array, Bool, Float

from flaxformer.nn.norms import layer_norm, rms_norm, sequence_norm
from flaxformer.struct import Config, leaf, static


class NormSlots(Config):
    """Where a residual branch is normalised: stream(x + post(branch(pre(x)))).

    `embedding` stands after the embedding, and `final` after the last block.
    """

    pre: bool = static(False)
    post: bool = static(False)
    stream: bool = static(False)
    embedding: bool = static(False)
    final: bool = static(False)


PRE = NormSlots(pre=True, final=True)
"""x + f(norm(x)), with a norm before the head (Xiong et al. 2020; "An Introduction to Transformers")."""
POST = NormSlots(stream=True)
"""norm(x + f(x)) (Vaswani et al. 2017)."""
SANDWICH = NormSlots(pre=True, post=True, final=True)
"""x + norm(f(norm(x))) (Ding et al. 2021; Peri-LN, Kim et al. 2025)."""
BRANCH_POST = NormSlots(post=True, final=True)
"""x + norm(f(x)) (Liu et al. 2022, "res-post"; OLMo 2)."""
NO_NORM = NormSlots()
"""x + f(x)."""
NormSlots.named = {"pre": PRE, "post": POST, "sandwich": SANDWICH, "branch_post": BRANCH_POST, "none": NO_NORM}


class LayerNorm(Config):
    """(x − μ) / √(σ² + ε), times a gain, plus a bias; affine says which of the two are learned.

    μ and σ² are over a token's numbers. over="sequence" takes them over all tokens of the sequence too, which leaks
    the future past any causal mask: a counter-example, kept to be measured.
    """

    affine: str = static("gain+bias", choices=("none", "gain", "gain+bias"))
    over: str = static("token", choices=("token", "sequence"))
    epsilon: float = leaf(1e-5, above=0)
    running: ClassVar = False

    has_gain = property(lambda self: self.affine != "none")
    has_bias = property(lambda self: self.affine == "gain+bias")
    leaks = property(lambda self: self.over == "sequence")

    def apply(
        self,
        x: Float[Array, "*batch T D"],
        gain: Array | None,
        bias: Array | None,
        valid: Bool[Array, "*batch T"] | None = None,
    ) -> Float[Array, "*batch T D"]:
        """The normalised tokens."""
        if self.over == "sequence":
            return sequence_norm(x, gain, bias, valid=valid, epsilon=self.epsilon)
        return layer_norm(x, gain, bias, epsilon=self.epsilon)


class RMSNorm(Config):
    """x / √(mean(x²) + ε), times a gain."""

    affine: str = static("gain", choices=("none", "gain"))
    epsilon: float = leaf(1e-6, above=0)
    running: ClassVar = False
    leaks: ClassVar = False
    has_bias: ClassVar = False

    has_gain = property(lambda self: self.affine != "none")

    def apply(
        self, x: Float[Array, "*batch T D"], gain: Array | None, bias: Array | None, valid: Array | None = None
    ) -> Float[Array, "*batch T D"]:
        """The normalised tokens."""
        return rms_norm(x, gain, bias, epsilon=self.epsilon)


class BatchNorm(Config):
    """(x − μ) / √(σ² + ε), times a gain, plus a bias, with μ and σ² of each feature over all tokens of the batch.

    Training normalises by the batch's own statistics and keeps running means of them, momentum to the new one;
    evaluation normalises by those. The running statistics are weights that no gradient trains (Ioffe & Szegedy 2015).
    """

    affine: str = static("gain+bias", choices=("none", "gain", "gain+bias"))
    epsilon: float = leaf(1e-5, above=0)
    momentum: float = leaf(0.1, at_least=0, at_most=1)
    running: ClassVar = True
    leaks: ClassVar = False

    has_gain = property(lambda self: self.affine != "none")
    has_bias = property(lambda self: self.affine == "gain+bias")
