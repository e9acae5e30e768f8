"""Fixup: residual branches without norms, of which the first update is bounded whatever the depth.

    x + a f(x + b) + c with learned scalars a = 1, b = c = 0; the last matrix of f and that of the head begin at zero,
    and the others of f at B^(−1/(2m−2)) of their scale, with B residual branches of m = 2 matrices

Family: initialisation
Source: Zhang et al. 2019, "Fixup Initialization: Residual Learning Without Normalization", arXiv:1901.09321, section 3.
Claim: training as stable as with normalisation, also of 10,000 layers; with regularisation, results of the state of the
art in image classification and machine translation without it.
Cost: three numbers per branch, and no norms.
Verified: the residual rule in NumPy; the initial scale of each kind of weight.
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, Float

from flaxformer import NO_NORM, ZERO_OUTPUTS, Context, Initial, Parameters, Residual, param


class Fixup(Residual):
    """x + a f(x + b) + c. Biases within f are those of the branch itself."""

    class Weights(Parameters):
        """Scalars a, b and c."""

        gain: Float[Array, ""] = param(init="ones", decay=False)
        bias: Float[Array, ""] = param(init="zeros", decay=False)
        out_bias: Float[Array, ""] = param(init="zeros", decay=False)

    def read(self, weights: Any, x: Float[Array, "*batch T D"], context: Context) -> Float[Array, "*batch T D"]:
        return (x + weights.bias).astype(x.dtype)

    def join(
        self, weights: Any, x: Float[Array, "*batch T D"], update: Float[Array, "*batch T D"], context: Context
    ) -> Float[Array, "*batch T D"]:
        return x + (weights.gain * update + weights.out_bias).astype(x.dtype)


VARIANTS: Mapping[str, Mapping[str, object]] = {
    "Fixup": {
        "model.norm": NO_NORM,
        "model.residual": Fixup,
        "model.initial": (
            ZERO_OUTPUTS,
            Initial(weights=("head/matrix",), factor=0.0),
            Initial(weights=("*/attention/value", "*/feed_forward/up"), depth_power=0.5),
        ),
    }
}
