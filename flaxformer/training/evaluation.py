"""Evaluation of weights: mean loss and accuracy over fixed data, and the standard error over the examples.

| columns | data |
| --- | --- |
| validation_loss, … | the evaluation set of the task |
| NAME_loss, … | a named part of it, such as a domain of a mixture; or one of `Run.evaluations` |
| test_loss, …, test_NAME_loss, … | the test sets of the same tasks, at the end |
"""

from collections.abc import Iterator, Mapping

import jax
from jaxtyping import Array, Float

from flaxformer.components.heads import LossSum
from flaxformer.model.weights import Transformer
from flaxformer.tasks.base import Task
from flaxformer.tasks.batch import Batch, Source
from flaxformer.tasks.evaluations import ERROR, Evaluation, EvaluationData, mean_scores, task_scores
from flaxformer.training.loss import forward
from flaxformer.training.run import Run
from flaxformer.training.split_loss import batch_sums

Scores = dict[str, Float[Array, ""]]


def evaluate(params: Transformer, run: Run, source: Source) -> Scores:
    """Mean loss over the fixed evaluation set, without dropout or label smoothing; and the other scores of the task.

    A mixture has the scores of each domain too. Data of `Run.evaluations` are not in the source: see `evaluate_sets`.
    """
    return without_errors(task_columns(score_task(params, run, source.evaluation())))


def evaluate_sets(params: Transformer, run: Run, evaluations: tuple[Evaluation, ...]) -> dict[str, float]:
    """Return the columns of named evaluations for a model's weights, with standard errors, as numbers.

    For weights after training, as in a function that `flaxformer measure` calls.
    """
    columns: dict[str, float] = {}
    for evaluation in evaluations:
        scores = jax.device_get(jax.jit(score_data)(params, run.without_init, jax.device_put(evaluation.load())))
        columns |= {f"{evaluation.name}_{name}": float(value) for name, value in scores.items()}
    return columns


def score(params: Transformer, run: Run, batches: Batch) -> Scores:
    """Return loss, loss_se and, where there is one, accuracy of batches [batches, B, …], without dropout or smoothing.

    `mean_scores` has the equations.
    """
    return mean_scores(*_example_sums(params, run, batches))


def score_data(params: Transformer, run: Run, data: EvaluationData) -> Scores:
    """Return the scores of the data of a named evaluation."""
    return data.scores(*_example_sums(params, run, data.batches))


def score_task(params: Transformer, run: Run, batches: Batch) -> Scores:
    """Return `score` of the evaluation or test set of the run's task; and of its parts, under NAME/loss and so on."""
    sums = _example_sums(params, run, batches)
    scores = task_scores(*sums, run.task.bits_per_nat)
    for name, part_task, part in part_slices(run.task):
        part_sums: tuple[dict[str, LossSum], LossSum] = jax.tree.map(lambda x, part=part: x[part], sums)
        part_scores = task_scores(*part_sums, part_task.bits_per_nat)
        scores |= {f"{name}/{metric}": value for metric, value in part_scores.items()}
    return scores


def part_slices(task: Task) -> Iterator[tuple[str, Task, slice]]:
    """Yield the named parts of the evaluation set of a task, with their tasks, as ranges of its batches."""
    first = 0
    for name, part_task in task.evaluation_parts().items():
        last = first + part_task.evaluation_shape[0]
        yield name, part_task, slice(first, last)
        first = last


def _example_sums(params: Transformer, run: Run, batches: Batch) -> tuple[dict[str, LossSum], LossSum]:
    """Return (sum, count) of each metric, per batch, and of the loss of each example, [batches, B]."""

    def score_batch(batch: Batch) -> tuple[dict[str, LossSum], LossSum]:
        return batch_sums(forward(params, run, batch), run.model.head, batch)

    return jax.lax.map(score_batch, batches)


def task_columns(scores: Mapping[str, Array], is_test: bool = False) -> Scores:
    """Return the scores of `score_task` by the names of their columns."""
    whole, prefix = ("test_", "test_") if is_test else ("validation_", "")
    return {f"{prefix if '/' in name else whole}{name.replace('/', '_')}": value for name, value in scores.items()}


def without_errors(columns: Mapping[str, Array]) -> Scores:
    """Return the columns that every evaluation has: all but the standard errors."""
    return {name: value for name, value in columns.items() if not name.endswith(ERROR)}


def evaluated_by(run: Run) -> dict[str, Evaluation | Task]:
    """Return the source of each named column, such as long_loss: an evaluation of the run, or the task of a part."""
    named: dict[str, Evaluation | Task] = {evaluation.name: evaluation for evaluation in run.evaluations}
    return {
        f"{name}_{metric}": source
        for name, source in (run.task.evaluation_parts() | named).items()
        for metric in source.metrics(run.model.head.has_accuracy)
    }
