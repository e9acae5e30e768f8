"""Named evaluation sets of a run: further data on which its weights are evaluated, beside those of its task.

`Run(evaluations=(EvaluationSet(name="long", task=task.replace(length=64)),))` adds the columns long_loss and
long_accuracy to every evaluation, and test_long_loss at the end where the task has a test set. An own kind of
evaluation is a subclass of `Evaluation`, whose data are a subclass of `EvaluationData`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flaxformer.components.heads import LossSum
from flaxformer.config import ModelConfig
from flaxformer.core.pytree import Node
from flaxformer.core.struct import Config, part, static
from flaxformer.tasks.base import BITS_PER_BYTE, Task, loss_metrics
from flaxformer.tasks.batch import Batch, Source, held_out
from flaxformer.tasks.overlap import Overlap

ERROR = "_se"
"""End of the name of a standard error, which is reported for the last evaluation only."""
TAKEN = ("validation", "test", "initial", "train", "stopped")
"""First words of the names of other columns of results."""


def name_problems(where: str, name: str) -> Iterator[str]:
    """Yield a message if a name cannot begin the names of columns."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        yield f"{where} is {name!r}; expected a letter, then letters, digits and '_', to name columns"
    elif name.partition("_")[0] in TAKEN:
        yield f"{where} is {name!r}, which begins like other columns of the results; expected another first word"


def mean_scores(sums: Mapping[str, LossSum], examples: LossSum) -> dict[str, Float[Array, ""]]:
    """Return the mean of each metric, and loss_se, the standard error of the loss over the examples.

    The loss is the mean m = Σ_i s_i / Σ_i c_i of the scored targets, with the summed loss s_i of example i and its
    number c_i of scored targets. loss_se is the standard error of m for other examples of the same distribution, that
    of a ratio of means: √(n / (n − 1) · Σ_i (s_i − m c_i)²) / Σ_i c_i over the n examples with scored targets (Cochran
    1977, section 2.11). It is NaN for a single example. Examples count as independent.

    Args:
      sums: (sum, count) of each metric, with any axes; "loss" is among them.
      examples: (s, c) of the loss of each example, with any axes.
    """
    losses, counts = examples
    totals = jax.tree.map(jnp.sum, dict(sums))
    scores = {name: total / count for name, (total, count) in totals.items()}
    n = (counts > 0).sum()
    squares = jnp.square(losses - scores["loss"] * counts).sum()
    scores[f"loss{ERROR}"] = jnp.sqrt(jnp.where(n > 1, n / jnp.maximum(n - 1, 1), jnp.nan) * squares) / counts.sum()
    return scores


def task_scores(
    sums: Mapping[str, LossSum], examples: LossSum, bits_per_nat: float | None
) -> dict[str, Float[Array, ""]]:
    """Return `mean_scores`, with bits_per_byte and its standard error for a task that has `bits_per_nat`."""
    scores = mean_scores(sums, examples)
    if bits_per_nat is None:
        return scores
    return scores | {f"{BITS_PER_BYTE}{end}": scores[f"loss{end}"] * bits_per_nat for end in ("", ERROR)}


class EvaluationData(Node):
    """Batches [batches, B, …] to evaluate, and the rule by which the losses of their examples become scores."""

    batches: Batch

    def scores(self, sums: Mapping[str, LossSum], examples: LossSum) -> dict[str, Float[Array, ""]]:
        """Return the scores by name; by default those of `mean_scores`. A name that ends in _se is a standard error.

        Args:
          sums: (sum, count) of each metric of the head, per batch.
          examples: (sum, count) of the loss of each example, [batches, B].
        """
        return mean_scores(sums, examples)


class TaskData(EvaluationData):
    """Held-out data of a task."""

    bits_per_nat: float | None = flax.struct.field(pytree_node=False)

    def scores(self, sums: Mapping[str, LossSum], examples: LossSum) -> dict[str, Float[Array, ""]]:
        return task_scores(sums, examples, self.bits_per_nat)


class Evaluation(Config):
    """Base of the named evaluations of a run; name begins the names of its columns."""

    is_abstract: ClassVar[bool] = True

    name: str = static()

    def problems(self) -> Iterator[str]:
        yield from name_problems(f"{type(self).__name__}.name", self.name)

    @property
    def rows(self) -> int:
        """Number of examples per batch, which a mesh divides."""
        raise NotImplementedError(f"{type(self).__name__} does not define `rows`")

    def problems_with(self, model: ModelConfig) -> Iterator[str]:
        """Yield the reasons for which a model cannot be evaluated."""
        return iter(())

    def metrics(self, has_accuracy: bool) -> tuple[str, ...]:
        """Return the names of the scores, without standard errors.

        Args:
          has_accuracy: whether the model's head has an accuracy.
        """
        return loss_metrics(has_accuracy)

    def evaluation_text(self) -> str:
        """Return a digest of the text that is evaluated, whatever its tokens; only for scores in bits per byte."""
        raise NotImplementedError(f"{type(self).__name__} does not define `evaluation_text`")

    def load(self) -> EvaluationData:
        """Read and return the data, on the host or on any device.

        Raises:
          UserError: they are missing or invalid.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `load`")

    def load_test(self) -> EvaluationData | None:
        """Return the data that are scored once, at the end of training; None without any."""
        return None

    def fingerprint(self) -> dict[str, object]:
        """Return digests and counts that identify the data on this machine, beyond the fields."""
        return {}

    def overlap(self, training: Task | None = None) -> Overlap:
        """Return the number of examples, and of those that also occur in training, as far as that is known.

        Args:
          training: the task that is trained.
        """
        return Overlap(0, 0, 0)


class EvaluationSet(Evaluation):
    """Evaluation on the held-out data of a task, such as one with longer sequences or of another domain.

    Its columns are NAME_loss and NAME_accuracy at every evaluation, NAME_loss_se at the end, and test_NAME_loss and so
    on at the end, where the task has a test set. The task need not be the one that is trained; its vocabulary must fit
    the model.
    """

    task: Task = part()

    @property
    def rows(self) -> int:
        return self.task.evaluation_shape[1]

    def problems_with(self, model: ModelConfig) -> Iterator[str]:
        yield from self.task.problems_with(model)

    def metrics(self, has_accuracy: bool) -> tuple[str, ...]:
        return self.task.metrics(has_accuracy)

    def load(self) -> EvaluationData:
        return TaskData(held_out(self.task.load(), _evaluation), self.task.bits_per_nat)

    def load_test(self) -> EvaluationData | None:
        test_set = held_out(self.task.load(), _test)
        return None if test_set is None else TaskData(test_set, self.task.bits_per_nat)

    def evaluation_text(self) -> str:
        return self.task.evaluation_text()

    def fingerprint(self) -> dict[str, object]:
        return self.task.fingerprint()

    def overlap(self, training: Task | None = None) -> Overlap:
        return self.task.overlap()


def _evaluation(source: Source) -> Batch:
    return source.evaluation()


def _test(source: Source) -> Batch | None:
    return source.test()
