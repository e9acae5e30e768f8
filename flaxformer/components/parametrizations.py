"""Parametrizations: how initial scale, learning rate and weight decay of each weight follow the width and the depth.

A table of exponents per role of a weight, the abc-parametrization of Yang & Hu 2021. With m = d_model / base_width, a
weight is W = m^−a w, with the initial standard deviation σ m^−b of w, the learning rate η m^−c, and the weight decay
λ m^−d. σ, η and λ are those of the config at the base width, where all parametrizations are therefore equal.

The factor m^−a is folded into the other two, so that stored weights are W: the initial standard deviation is
σ m^−(a+b), and the rate η m^−(c+a) for an optimizer whose step does not depend on the size of the gradient (Adam, up to
its ε), η m^−(c+2a) for one whose step is proportional to it (SGD).

| | input, vector | hidden | output | source |
| --- | --- | --- | --- | --- |
| `MuP`: a, b, c | 0, 0, 0 | 0, ½, 1 | 0, 1, 1 | Yang et al. 2022, table 3, Adam |
| `NTK`: a, b, c | 0, 0, 0 | ½, 0, 0 | ½, 0, 0 | Jacot et al. 2018; Everett et al. 2024, table 1 |
"""

import dataclasses

from jaxtyping import Array

from flaxformer.core.params import ROLES, Spec
from flaxformer.core.struct import Config, leaf, part, static


@dataclasses.dataclass(frozen=True)
class Scales:
    """Factors on the numbers of a weight: its initial standard deviation, learning rate and weight decay."""

    init: float | Array
    rate: float | Array
    decay: float | Array


class Parametrization(Config):
    """Standard parametrization: the initializer's scale, and one learning rate and weight decay for all weights."""

    def at_base_width(self, spec: Spec, width: int) -> Spec:
        """Return the `Spec` that the weight has at the base width, from which the initializer takes its scale."""
        return spec

    def scales(self, role: str, width: int, layers: int | None = None, gradient_degree: int = 0) -> Scales | None:
        """Return the factors on the numbers of a weight; None if all are 1.

        Args:
          role: role of the weight, from `params.ROLES`.
          width: d_model of the model.
          layers: layers of the model, for a weight that belongs to a layer; None for others.
          gradient_degree: `Optimizer.gradient_degree`.
        """
        return None


class Role(Config):
    """Numbers of the weights of one role: factors at the base width, and exponents of the width.

    init, rate, decay: factors on the initial standard deviation, the learning rate and the weight decay.
    multiplier_power, init_power, rate_power, decay_power: a, b, c, d of the module.
    gradient_power: g, where the entries of the gradient are proportional to m^−g; an optimizer whose step is
        proportional to the gradient has the exponent c − g in place of c.
    """

    init: float = leaf(1.0, at_least=0)
    rate: float = leaf(1.0, at_least=0)
    decay: float = leaf(1.0, at_least=0)
    multiplier_power: float = leaf(0.0)
    init_power: float = leaf(0.0)
    rate_power: float = leaf(0.0)
    decay_power: float = leaf(0.0)
    gradient_power: float = leaf(0.0)


class ByRole(Parametrization):
    """Exponents of the width per role of a weight; without numbers, those of the standard parametrization.

    base_width: d_model at which initializer, learning rate and weight decay are those of the config.
    base_layers: number of layers at which they are; None for the number of the model.
    depth_rate_power: p, where weights of layers have the learning rate times (layers / base_layers)^−p.
    """

    base_width: int = static(at_least=1)
    base_layers: int | None = static(None, at_least=1)
    depth_rate_power: float = leaf(0.0)
    input: Role = part(Role())
    hidden: Role = part(Role(init_power=0.5))
    output: Role = part(Role(init_power=0.5))
    vector: Role = part(Role())

    def at_base_width(self, spec: Spec, width: int) -> Spec:
        ratio = width / self.base_width
        fan_in = spec.fan_in / (ratio if spec.role in ("hidden", "output") else 1)
        fan_out = spec.fan_out / (ratio if spec.role in ("hidden", "input") else 1)
        return dataclasses.replace(spec, fan_in=max(1, round(fan_in)), fan_out=max(1, round(fan_out)))

    def scales(self, role: str, width: int, layers: int | None = None, gradient_degree: int = 0) -> Scales:
        exponents: Role = {name: getattr(self, name) for name in ROLES}[role]
        ratio = width / self.base_width
        degree = 1 + gradient_degree
        depth = 1.0 if layers is None or self.base_layers is None else layers / self.base_layers
        rate = (
            ratio ** -(exponents.rate_power - gradient_degree * exponents.gradient_power)
            * depth**-self.depth_rate_power
        )
        return Scales(
            init=exponents.init * ratio ** -(exponents.init_power + exponents.multiplier_power),
            rate=exponents.rate * rate * ratio ** -(degree * exponents.multiplier_power),
            decay=exponents.decay * ratio ** -(exponents.decay_power - degree * exponents.multiplier_power),
        )


class MuP(ByRole):
    """Maximal update parametrization μP: the best learning rate does not depend on the width (Yang et al. 2022).

    The rate of hidden and output matrices falls as 1 / width, and their weight decay rises with it, so that the product
    of both stays (Dey et al. 2025, table 1). If heads become wider, attention needs the scale 1/d_head:
    `Attention(scale_exponent=1)`.

    With `residual=DepthScaled(base_layers=…)`, this is CompleteP, which also keeps the best rate over the depth (Dey et
    al. 2025). With `DepthScaled(exponent=0.5, base_layers=…)`, `depth_rate_power=0.5` and `base_layers`, it is depth-μP
    (Yang et al. 2024). Adam's ε is the same at all sizes; it should be far below the entries of the gradient.
    """

    input: Role = part(Role(gradient_power=1.0))
    hidden: Role = part(Role(init_power=0.5, rate_power=1.0, decay_power=-1.0, gradient_power=1.0))
    output: Role = part(Role(init_power=1.0, rate_power=1.0, decay_power=-1.0))
    vector: Role = part(Role(gradient_power=1.0))


class NTK(ByRole):
    """Neural tangent parametrization: matrices of N(0, σ²) and outputs divided by √width (Jacot et al. 2018)."""

    hidden: Role = part(Role(multiplier_power=0.5))
    output: Role = part(Role(multiplier_power=0.5))


Parametrization.named = {"standard": Parametrization()}
