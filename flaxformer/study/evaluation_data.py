"""Evaluation data of the arms of a study: whether all have the same, and whether examples also occur in training."""

import functools
import json

from flaxformer.store.declaration import DeclaredData
from flaxformer.study.data_limits import limits_of
from flaxformer.study.declare import Study
from flaxformer.study.divergence import is_test_metric, on_validation
from flaxformer.study.metrics import METRICS, is_bits_per_byte, metrics_of
from flaxformer.system.errors import UserError
from flaxformer.tasks.base import Task
from flaxformer.tasks.evaluations import Evaluation
from flaxformer.tasks.overlap import evaluation_digest, examples_digest, merge_batches
from flaxformer.training.evaluation import evaluated_by
from flaxformer.training.run import Run


def evaluation_data(study: Study) -> dict[str, DeclaredData]:
    """Return a digest of the evaluation examples of each arm, by its name, and how many also occur in training.

    They are the data of the study's metric: of the task, or of a named evaluation. An arm whose task raises an
    exception is left out: its runs will fail, and the report has their tracebacks.
    """
    arms = study.arms()
    evaluated = {arm.name: (_data_of_metric(arm.run, study.metric), arm.run.task) for arm in arms}
    by_text = is_bits_per_byte(study.metric) and study.metric in metrics_of(study.baseline)
    descriptions = {pair: _describe(*pair, by_text) for pair in set(evaluated.values())}
    return {name: description for name, pair in evaluated.items() if (description := descriptions[pair]) is not None}


def _data_of_metric(run: Run, metric: str) -> Task | Evaluation:
    """Return what a metric is computed on: the run's task, the task of a part of it, or a named evaluation."""
    return run.task if metric in METRICS else evaluated_by(run).get(on_validation(metric), run.task)


def _describe(evaluated: Task | Evaluation, training: Task, by_text: bool) -> DeclaredData | None:
    prints = [evaluated.fingerprint(), {} if isinstance(evaluated, Task) else training.fingerprint()]
    return _measure(evaluated, training, by_text, json.dumps(prints, sort_keys=True, default=str))


@functools.lru_cache(maxsize=256)
def _measure(evaluated: Task | Evaluation, training: Task, by_text: bool, fingerprint: str) -> DeclaredData | None:
    """Return the description of evaluation data, measured once per task or evaluation and fingerprint of its data.

    Args:
      by_text: the digest is of the text, whatever its tokens.
    """
    try:
        overlap = evaluated.overlap() if isinstance(evaluated, Task) else evaluated.overlap(training)
        if by_text:
            digest = evaluated.evaluation_text()
        elif isinstance(evaluated, Task):
            digest = evaluation_digest(evaluated.load())
        else:
            digest = examples_digest(merge_batches(evaluated.load().batches))
    except UserError:
        raise
    except Exception:
        return None
    return DeclaredData(
        digest=digest, examples=overlap.examples, in_training=overlap.in_training, compared=overlap.compared
    )


def check_test_set(study: Study) -> None:
    """Raise UserError if the metric is of the test data, and the task of an arm has no test set."""
    if not is_test_metric(study.metric):
        return
    for evaluated in {_data_of_metric(arm.run, study.metric) for arm in study.arms()}:
        if (evaluated.load().test() if isinstance(evaluated, Task) else evaluated.load_test()) is None:
            raise UserError(
                f"metric is '{study.metric}' and {evaluated} has no test set: all held-out examples are in the "
                "evaluation set, or its source defines no `test`; expected fewer evaluation_batches, or more held-out "
                "examples"
            )


def data_limits_of(study: Study) -> list[str]:
    """Return `data_limits` of a study that is not declared yet."""
    labels = {arm.name: arm.labels for arm in study.arms()}
    pairs = zip(study.claims, study.contrasts(), strict=True)
    claims = [(claim.text, [arm for _, arm in contrast.terms]) for claim, contrast in pairs]
    return limits_of(evaluation_data(study), labels, [axis.name for axis in study.axes], claims)
