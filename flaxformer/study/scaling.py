"""Declaration of a scaling law: the axis over sizes, the measure of size, and the sizes that test the fit."""

import dataclasses
from collections.abc import Sequence

from flaxformer.statistics.law_losses import LawLoss
from flaxformer.study.axis import Axis
from flaxformer.study.scale import ScaleVariable
from flaxformer.system.arguments import check_arguments
from flaxformer.system.errors import UserError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Scaling:
    """A scaling law L = L∞ + A·C^(−α), fitted along an axis over sizes, for each combination of the other axes.

    `Scaling("size", against="flops", held_out=("XL",))`

    Args:
      axis: name of the axis; its levels may change several fields at once (`Points`).
      against: C: the FLOPs of the whole training, the number of parameters, or the number of training tokens. It is the
        variable of predictions, crossing points and claims; the table has the fits against the other two as well.
      held_out: levels that take no part in the fits, and test their predictions.
      loss: what the joint law in parameters and tokens minimises: "huber", Huber's loss of log residuals (Hoffmann et
        al. 2022), "log_squares" or "squares". The law in one variable is fitted by least squares.
      embeddings: False to count parameters without the tables of tokens, token types and positions, which bend laws of
        small models (Kaplan et al. 2020).
    """

    axis: str
    against: ScaleVariable = "flops"
    held_out: str | Sequence[str] = ()
    loss: LawLoss = "huber"
    embeddings: bool = True

    def __post_init__(self) -> None:
        check_arguments(self)
        held_out = (self.held_out,) if isinstance(self.held_out, str) else tuple(self.held_out)
        object.__setattr__(self, "held_out", held_out)

    def check(self, axes: Sequence[Axis], combine: str, has_halving: bool) -> None:
        """Check the declaration against the axes of the study.

        Raises:
          UserError: the axis or a held-out level is unknown, or arms lack sizes by the way in which axes combine.
        """
        names = {axis.name: axis for axis in axes}
        if self.axis not in names:
            raise UserError(f"scaling has axis='{self.axis}'{did_you_mean(self.axis, list(names))}")
        labels = list(names[self.axis].levels)
        for label in self.held_out:
            if label not in labels:
                raise UserError(f"scaling holds out {self.axis} '{label}'{did_you_mean(label, labels)}")
        if len(set(self.held_out)) < len(self.held_out):
            raise UserError(f"scaling has held_out={self.held_out}; expected different levels")
        if combine != "product" and len(axes) > 1:
            raise UserError(
                f"combine is '{combine}', which leaves most arms without a run at every {self.axis}; expected "
                "combine='product' with scaling"
            )
        if has_halving:
            raise UserError("a study with scaling has a halving, which stops small sizes early; expected halving=None")
