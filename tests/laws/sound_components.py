"""Unusual components that are correct: no law may find a fault in them."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from conditional_faults import Averaging, real
from faulty_components import DecayingSum
from jaxtyping import Array, Float

from flaxformer.components import Attention, Dense, NoPositions, Norm, Residual, Rotary, TokenMixer
from flaxformer.core.params import Parameters, param
from flaxformer.core.struct import leaf
from flaxformer.training import AdamW, Optimizer
from flaxformer.training.per_layer import per_layer


class Noise(Dense):
    """Gaussian noise by `context.key`: other numbers on each device and in each micro-batch."""

    def apply(self, weights, x, context):
        y = super().apply(weights, x, context)
        return y if context.key is None else y + 0.1 * jax.random.normal(context.key, y.shape, y.dtype)


class LayerDrop(Residual):
    """Each branch is left out at random, as a whole."""

    def join(self, weights, stream, update, context):
        if context.key is None:
            return stream + 0.9 * update
        return stream + jnp.where(jax.random.bernoulli(context.key, 0.9), update, 0)


class FixedProjection(Dense):
    """A random matrix with a constant key, in training as in evaluation."""

    def apply(self, weights, x, context):
        matrix = jax.random.normal(jax.random.key(0), (x.shape[-1], x.shape[-1]), x.dtype)
        return super().apply(weights, jnp.tanh(x @ matrix), context)


class ScaledInEvaluation(Dense):
    """Another factor in training than in evaluation, without random numbers."""

    def apply(self, weights, x, context):
        return super().apply(weights, x, context) * (1.0 if context.training else 0.9)


class DropoutInMixer(Averaging):
    def mean(self, x, unmasked, valid, context):
        return context.dropout(0.2, super().mean(x, unmasked, valid, context))


class Convolution(TokenMixer):
    """Causal convolution with a kernel as long as the sequence, by FFT, over real tokens alone."""

    reads_mask: ClassVar[bool] = False
    decay: float = leaf(0.5)

    class Weights(Parameters):
        out: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def apply(self, weights, x, context):
        length, x = x.shape[-2], real(x, context)
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid
        order = jnp.argsort(~valid, axis=-1, stable=True)  # real tokens first
        packed = jnp.take_along_axis(x, order[..., None], axis=-2)
        kernel = self.decay ** jnp.arange(length).astype(jnp.promote_types(x.dtype, jnp.float32))
        packed = packed.astype(jnp.promote_types(x.dtype, jnp.float32))  # the FFT has no narrower one
        size = 2 * length
        product = jnp.fft.rfft(packed, size, axis=-2) * jnp.fft.rfft(kernel, size)[:, None]
        y = jnp.fft.irfft(product, size, axis=-2)[..., :length, :]
        back = jnp.argsort(order, axis=-1)
        return real(jnp.take_along_axis(y, back[..., None], axis=-2), context).astype(x.dtype) @ weights.out


class ZeroMatrix(Dense):
    class Weights(Dense.Weights):
        gate: Float[Array, "d_model d_model"] = param(fan_in="d_model", init="zeros")

    def apply(self, weights, x, context):
        return super().apply(weights, x, context) + x @ weights.gate


class IdleClip(Dense):
    """A limit that no activation reaches."""

    limit: float = leaf(1e3, above=0)

    def apply(self, weights, x, context):
        return jnp.clip(super().apply(weights, x, context), -self.limit, self.limit)


class WindowedSum(DecayingSum):
    """Sum of the last four real tokens, whole and token by token."""

    reads_mask: ClassVar[bool] = False
    window: ClassVar[int] = 4

    def init_state(self, weights, batch, capacity, dtype):
        return jnp.zeros((*batch, self.window, weights.out.shape[0]), dtype)

    def apply(self, weights, x, context):
        return self.step(weights, x, self.init_state(weights, x.shape[:-2], 0, x.dtype), context)[0]

    def step(self, weights, x, state, context):
        valid = jnp.ones(x.shape[:-1], bool) if context.valid is None else context.valid

        def token(state, now):
            x_t, is_real = now
            later = jnp.concatenate([state[..., 1:, :], x_t[..., None, :]], axis=-2)
            state = jnp.where(is_real[..., None, None], later, state)
            return state, state.sum(-2)

        state, y = jax.lax.scan(token, state, (jnp.moveaxis(real(x, context), -2, 0), jnp.moveaxis(valid, -1, 0)))
        return jnp.moveaxis(y, 0, -2) @ weights.out, state


class RootMeanSquareOfLogits(Attention):
    """Attention whose logits are bounded by a tanh."""

    def logits(self, weights, query, key, mask, bias, scale):
        return 10 * jnp.tanh(super().logits(weights, query, key, mask, bias, scale) / 10)


class TanhNorm(Norm):
    def apply(self, weights, x, context):
        return jnp.tanh(x)


class Trust(Optimizer):
    """A trust ratio per matrix of a layer."""

    def direction(self):
        return per_layer(optax.scale_by_trust_ratio(), "mapped")


class GlobalNorm(Optimizer):
    """The gradient divided by the norm of all gradients."""

    def direction(self):
        def scale(updates, params=None):
            return jax.tree.map(lambda u: u / (optax.tree.norm(updates) + 1e-12), updates)

        return optax.stateless(scale)


def ff(kind: type) -> dict[str, Any]:
    return {"feed_forward": kind(d_ff=10)}


SOUND: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    # name: laws that are most likely to raise a false alarm, changes of the run's model
    "noise": (("devices", "draws"), ff(Noise)),
    "noise, by other laws": (("repetition", "loss", "group"), ff(Noise)),
    "layer drop": (("draws", "devices"), {"residual": LayerDrop()}),
    "fixed projection": (("draws",), ff(FixedProjection)),
    "another factor in training": (("draws", "batch"), ff(ScaledInEvaluation)),
    "dropout in a mixer": (("draws", "devices"), {"attention": DropoutInMixer(), "positions": NoPositions()}),
    "convolution by FFT": (
        ("causality", "padding", "batch", "precision"),
        {"attention": Convolution(), "positions": NoPositions()},
    ),
    "matrix of zeros": (("weights", "edits", "gradients"), ff(ZeroMatrix)),
    "clip that never acts": (("fields", "gradients"), ff(IdleClip)),
    "window of four tokens": (("decoding", "padding"), {"attention": WindowedSum(), "positions": NoPositions()}),
    "mixer that reads no positions": (
        ("fields", "order"),
        {"attention": WindowedSum(), "positions": Rotary()},
    ),
    "bounded logits": (("causality", "precision"), {"attention": RootMeanSquareOfLogits(heads=2)}),
    "norm without statistics": (("precision", "causality"), {"norm_kind": TanhNorm()}),
}
SOUND_OPTIMIZERS = {
    "trust ratio per layer": Trust(),
    "global norm": GlobalNorm(),
    "Adam with a clip that never acts": AdamW(clip=1e9),
}
