"""Cost of a training run, known before it is trained: parameters, FLOPs and tokens."""

import dataclasses
import math

from flaxformer import model
from flaxformer.config import ModelConfig
from flaxformer.core import params
from flaxformer.core.params import MATRICES, Spec
from flaxformer.tasks.batch import Source
from flaxformer.training.flops import flops_per_step
from flaxformer.training.run import Run

EMBEDDINGS = {"embedding", "positions"}
"""Parts of a model whose tables `ParameterCounts.without_embeddings` leaves out."""


@dataclasses.dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters of a model; weights that layers share count once."""

    total: int
    active: int
    """Those that one token uses: all, except where a component's `active_sizes` says how many entries of an axis."""
    without_embeddings: int
    """All but the tables of input tokens, token types and positions; the matrix of an untied head counts."""


@dataclasses.dataclass(frozen=True)
class RunCost:
    """Cost of a run of some steps."""

    parameters: ParameterCounts
    flops_per_step: int
    """FLOPs of matrix products in one step (`training.flops`)."""
    tokens_per_step: int
    steps: int

    @property
    def flops(self) -> int:
        """FLOPs of all steps."""
        return self.flops_per_step * self.steps

    @property
    def tokens(self) -> int:
        """Tokens that all steps read, including padding."""
        return self.tokens_per_step * self.steps


def parameter_counts(config: ModelConfig) -> ParameterCounts:
    """Return the numbers of parameters of a model."""
    table = list(params.table(model.specs(config)))
    tables = sum(math.prod(spec.shape) for path, spec in table if _is_embedding(path, spec))
    total = sum(math.prod(spec.shape) for _, spec in table)
    return ParameterCounts(total, sum(math.prod(spec.active_shape) for _, spec in table), total - tables)


def _is_embedding(path: str, spec: Spec) -> bool:
    """True for a table that is read by index; a projection of vectors or patches is none."""
    return path.removeprefix("encoder/").partition("/")[0] in EMBEDDINGS and spec.init not in MATRICES


def run_cost(run: Run, steps: int | None = None, source: Source | None = None) -> RunCost:
    """Return the cost of a run.

    Args:
      steps: number of steps that are trained; by default all of the run.
      source: data of the run's task; by default they are loaded.
    """
    counts, flops = parameter_counts(run.model), flops_per_step(run, source)
    return RunCost(counts, flops, run.tokens_per_step, run.training.steps if steps is None else steps)
