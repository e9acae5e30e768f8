"""Scale of a run: the numbers against which a scaling law is fitted."""

from typing import Literal, get_args

from flaxformer.training import Run
from flaxformer.training.cost import run_cost

ScaleVariable = Literal["flops", "parameters", "tokens"]
VARIABLES: tuple[ScaleVariable, ...] = get_args(ScaleVariable)
VARIABLE_NAMES: dict[str, str] = {"flops": "FLOPs", "parameters": "parameters", "tokens": "tokens"}
"""Names in reports."""


def run_scale(run: Run) -> dict[str, float]:
    """Return the FLOPs of the whole training, the number of parameters, and the tokens that are read in training.

    They are those of `training.cost.run_cost`, and of the columns of the same names in the results.
    """
    cost = run_cost(run)
    return {"flops": float(cost.flops), "parameters": cost.parameters.total, "tokens": cost.tokens}
