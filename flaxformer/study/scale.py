"""Scale of a run: the numbers against which a scaling law is fitted."""

from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from flaxformer.training import Run

ScaleVariable = Literal["flops", "parameters", "tokens"]
VARIABLES: tuple[ScaleVariable, ...] = get_args(ScaleVariable)
VARIABLE_NAMES: dict[str, str] = {"flops": "FLOPs", "parameters": "parameters", "tokens": "tokens"}
"""Names in reports."""


def variable_names(embeddings: bool) -> dict[str, str]:
    """Return the names in reports, by whether parameters count those of embeddings."""
    return VARIABLE_NAMES if embeddings else VARIABLE_NAMES | {"parameters": "parameters without embeddings"}


def run_scale(run: "Run", embeddings: bool = True) -> dict[str, float]:
    """Return the FLOPs of the whole training, the number of parameters, and the tokens that are read in training.

    They are those of `training.cost.run_cost`, and of the columns of the same names in the results.

    Args:
      run: the run.
      embeddings: False to count parameters without the tables of tokens, token types and positions.
    """
    from flaxformer.training.cost import run_cost  # here, since the analysis of results needs no JAX

    cost = run_cost(run)
    parameters = cost.parameters.total if embeddings else cost.parameters.without_embeddings
    return {"flops": float(cost.flops), "parameters": parameters, "tokens": cost.tokens}
