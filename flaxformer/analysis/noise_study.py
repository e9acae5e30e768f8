"""Study of the noise floor of a run: `variance_of_seeds`, with an arm that a small change makes."""

import dataclasses
from collections.abc import Sequence

from flaxformer.analysis.noise import CHANGED
from flaxformer.analysis.variance import TOGETHER
from flaxformer.analysis.variance_study import AXIS, variance_of_seeds
from flaxformer.core.overrides import override
from flaxformer.core.paths import get_at
from flaxformer.study.declare import Study
from flaxformer.study.search import Points
from flaxformer.system.errors import UserError
from flaxformer.training.run import Run

RATE = "optimizer.learning_rate"
FACTOR = 1.1


def small_change(run: Run, text: str | None = None) -> str:
    """Return the small change as an override: the one that is asked for, or a learning rate that is 10 % higher.

    Raises:
      UserError: the optimizer has no learning rate to raise.
    """
    if text is not None:
        return text
    try:
        rate = get_at(run, RATE)
    except UserError:
        rate = None
    if not isinstance(rate, float | int):
        raise UserError(f"{type(run.optimizer).__name__} has no number {RATE}; expected --change PATH=VALUE")
    return f"{RATE}={float(rate) * FACTOR:.6g}"


def noise_study(run: Run, change: str, seeds: int | Sequence[int], name: str, metric: str) -> Study:
    """Return the study of the noise floor.

    Args:
      run: the run.
      change: the small change, as an override.
      seeds: seeds, or their number.
      name: name of the study.
      metric: its metric.
    """
    study = variance_of_seeds(run, seeds, name=name, metric=metric)
    [axis] = study.axes
    path = change.partition("=")[0]
    levels = {label: axis.changes(label) for label in axis.levels}
    levels[CHANGED] = levels[TOGETHER] | {path: get_at(override(run, [change]), path)}
    return dataclasses.replace(
        study,
        question="How large is the effect that seeds can show, and where does the spread between seeds come from?",
        axes=[Points(AXIS, levels)],
    )
