"""Norms, and their placement in a block."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.components.component import Aux, Component, ComponentResult, Context, OwnWeights
from flaxformer.core.params import Parameters, param, subtree
from flaxformer.core.struct import Config, leaf, part, static
from flaxformer.nn.norms import batch_norm, batch_statistics, layer_norm, rms_norm, running_statistics, sequence_norm
from flaxformer.nn.widen import widen


class Norm(Component):
    """Base of the norms; `apply` is the identity."""

    is_abstract: ClassVar[bool] = True

    class Weights(Parameters):
        """No weights."""

    is_causal: ClassVar[bool] = True
    """False if the result of a token depends on later tokens."""

    def apply(self, weights: OwnWeights, x: Float[Array, "*batch T D"], context: Context) -> ComponentResult:
        """Return the normalised tokens, or the tokens and an `Aux`."""
        return x


class Affine(Parameters):
    """Learned gain and bias of a norm."""

    gain: Float[Array, "d_norm"] | None = param(init="ones", decay=False, when="has_gain")
    bias: Float[Array, "d_norm"] | None = param(init="zeros", decay=False, when="has_bias")


class LayerNorm(Norm):
    """(x − μ) / √(σ² + ε) · gain + bias, with the mean μ and variance σ² over the entries of a token.

    affine: which of gain and bias are learned.
    over: "sequence" computes μ and σ² over all tokens of the sequence, so that a token depends on later ones whatever
        the mask: a counter-example.
    """

    class Weights(Affine):
        """Learned gain and bias."""

    affine: str = static("gain+bias", choices=("none", "gain", "gain+bias"))
    over: str = static("token", choices=("token", "sequence"))
    epsilon: float = leaf(1e-5, above=0)

    has_gain = property(lambda self: self.affine != "none")
    has_bias = property(lambda self: self.affine == "gain+bias")
    is_causal = property(lambda self: self.over == "token")

    def apply(self, weights: Affine, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        if self.over == "token":
            return layer_norm(x, weights.gain, weights.bias, epsilon=self.epsilon)
        x = without_padding(x, context)
        return sequence_norm(x, weights.gain, weights.bias, valid=context.valid, epsilon=self.epsilon)


class RMSNorm(Norm):
    """x / √(mean(x²) + ε) · gain, with the mean over the entries of a token."""

    class Weights(Affine):
        """Learned gain."""

    affine: str = static("gain", choices=("none", "gain"))
    epsilon: float = leaf(1e-6, above=0)
    has_bias: ClassVar = False

    has_gain = property(lambda self: self.affine != "none")

    def apply(self, weights: Affine, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return rms_norm(x, weights.gain, weights.bias, epsilon=self.epsilon)


class ZeroCentredRMSNorm(Norm):
    """x / √(mean(x²) + ε) · (1 + gain), with a gain that is 0 at first (Gemma Team 2024, as in its released code)."""

    class Weights(Parameters):
        """Learned gain, initially 0."""

        gain: Float[Array, "d_norm"] = param(init="zeros", decay=False)

    epsilon: float = leaf(1e-6, above=0)

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return rms_norm(x, 1 + widen(weights.gain), epsilon=self.epsilon)


class Running(Parameters):
    """Running statistics of a BatchNorm: weights that the forward pass changes, and gradients do not."""

    mean: Float[Array, "d_norm"] = param(init="zeros", decay=False, trained=False)
    variance: Float[Array, "d_norm"] = param(init="ones", decay=False, trained=False)


class BatchNorm(Norm):
    """(x − μ) / √(σ² + ε) · gain + bias, with mean μ and variance σ² per feature over all tokens of the batch.

    Training uses the statistics of the batch and updates running ones, (1 − momentum) · old + momentum · batch;
    evaluation uses the running statistics.

    Source: Ioffe & Szegedy 2015.
    """

    class Weights(Affine):
        """Gain, bias and running statistics."""

        running: Running = subtree()

    mixes_batch: ClassVar[bool] = True
    affine: str = static("gain+bias", choices=("none", "gain", "gain+bias"))
    epsilon: float = leaf(1e-5, above=0)
    momentum: float = leaf(0.1, at_least=0, at_most=1)

    has_gain = property(lambda self: self.affine != "none")
    has_bias = property(lambda self: self.affine == "gain+bias")

    def apply(self, weights: Weights, x: Float[Array, "*batch T D"], context: Context) -> ComponentResult:
        running = weights.running
        x = without_padding(x, context)
        if not context.training:
            return batch_norm(x, running.mean, running.variance, weights.gain, weights.bias, epsilon=self.epsilon)
        statistics = batch_statistics(x, context.valid)
        y = batch_norm(x, *statistics[:2], weights.gain, weights.bias, epsilon=self.epsilon)
        mean, variance = running_statistics((running.mean, running.variance), statistics, self.momentum)
        return y, Aux(weights={"running": Running(mean=mean, variance=variance)})


def without_padding(x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
    """Set padding to 0: a NaN there would reach all gradients of tokens that share statistics, since 0 · NaN is NaN."""
    return x if context.valid is None else jnp.where(context.valid[..., None], x, 0)


class ModelNorm(Norm):
    """Placeholder in a `NormPlacement` for the `norm_kind` of the model."""

    is_abstract: ClassVar[bool] = True


class NormPlacement(Config):
    """Places of the norms of a residual branch: post_residual(x + post_branch(branch(pre(x)))).

    The value of a place is a norm, True for the model's `norm_kind`, or None for no norm. `embedding` is after the
    embedding, and `final` after the last block.
    """

    pre: Norm | bool | None = part(None)
    post_branch: Norm | bool | None = part(None)
    post_residual: Norm | bool | None = part(None)
    embedding: Norm | bool | None = part(None)
    final: Norm | bool | None = part(None)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool):
                object.__setattr__(self, field.name, ModelNorm() if value else None)
        super().__post_init__()

    def at(self, place: str, kind: Norm) -> Norm | None:
        """Return the norm at a place, or None; `kind` is the `norm_kind` of the model."""
        norm: Norm | None = getattr(self, place)
        return kind if isinstance(norm, ModelNorm) else norm


def placement(*places: str) -> NormPlacement:
    """Return the placement with the model's norm at the given places."""
    return NormPlacement(**dict.fromkeys(places, ModelNorm()))


PRE = placement("pre", "final")
"""x + f(norm(x)), with a norm before the head (Xiong et al. 2020; "An Introduction to Transformers")."""
POST = placement("post_residual")
"""norm(x + f(x)) (Vaswani et al. 2017)."""
SANDWICH = placement("pre", "post_branch", "final")
"""x + norm(f(norm(x))) (Ding et al. 2021; Peri-LN, Kim et al. 2025)."""
RES_POST_NORM = placement("post_branch", "final")
"""x + norm(f(x)) (Liu et al. 2022, "res-post"; OLMo 2)."""
NO_NORM = NormPlacement()
"""x + f(x)."""
NormPlacement.named = {"pre": PRE, "post": POST, "sandwich": SANDWICH, "res_post": RES_POST_NORM, "none": NO_NORM}
