"""Run: everything that decides the result of one training run, and nothing else."""

from collections.abc import Iterator

from flaxformer.config import ModelConfig
from flaxformer.model.remat import REMATS
from flaxformer.struct import Config, leaf, part, static
from flaxformer.tasks import StandardLibrary, Task
from flaxformer.training.loss_terms import LossTerm
from flaxformer.training.optimizer import AdamW
from flaxformer.training.precision import PRECISIONS
from flaxformer.training.schedule import Optimizer


class Training(Config):
    """Length of training, interval of evaluations, and how a step is computed.

    micro_batches: parts of a batch, computed one after another to save memory; the gradient is that of the whole
    batch, up to rounding, with other draws of dropout. None leaves it to `training.micro_batches`: one, but on a CPU.

    ema: evaluate a running mean of the weights after each step, in which a step counts `ema` times the one after it.

    precision: "bfloat16" computes products and the stream in bfloat16; weights, norms, softmax, loss and optimizer stay
    float32 (`training.precision`). remat: what the backward pass computes again to save memory (`model.remat`).
    """

    steps: int = static(200, at_least=1)
    evaluate_every: int | None = static(None, at_least=1)
    label_smoothing: float | None = leaf(None, at_least=0, below=1)
    micro_batches: int | None = static(None, at_least=1)
    ema: float | None = leaf(None, at_least=0, below=1)
    precision: str = static("float32", choices=PRECISIONS)
    remat: str = static("none", choices=REMATS)

    def problems(self) -> Iterator[str]:
        if self.steps % self.interval:
            yield f"evaluate_every is {self.evaluate_every}; expected a divisor of steps {self.steps}"

    @property
    def interval(self) -> int:
        """Steps between two evaluations; the last evaluation is after the last step."""
        return self.evaluate_every or self.steps


class Run(Config):
    """One training run. The seed decides weights, batches and dropout, each through a stream of its own.

    loss_terms: added to the loss of the head in training, such as ZLoss(); the validation loss is without them.
    """

    model: ModelConfig = part(ModelConfig())
    task: Task = part(StandardLibrary())
    optimizer: Optimizer = part(AdamW())
    training: Training = part(Training())
    loss_terms: tuple[LossTerm, ...] = part(())
    seed: int = leaf(0, at_least=0, below=2**31)

    def problems(self) -> Iterator[str]:
        yield from self.task.problems_with(self.model)
        parts, buckets, rows = self.training.micro_batches or 1, getattr(self.task, "buckets", 1), self.task.batch_size
        if rows % (parts * buckets):
            shared = f" / task.buckets {buckets}" if buckets > 1 else ""
            yield f"training.micro_batches is {parts}; expected a divisor of task.batch_size {rows}{shared}"
        mixers = [one for stack in (self.model, self.model.encoder) if stack is not None for one in stack.batch_mixers]
        for name, count in (("training.micro_batches", parts), ("task.buckets", buckets)):
            if count > 1 and mixers:
                kind = type(mixers[0]).__name__
                yield f"{name} is {count} with {kind}, which needs the whole batch; expected 1"
        if self.training.ema is not None and self.optimizer.averages:
            name = type(self.optimizer).__name__
            yield f"training.ema is {self.training.ema} with {name}, which averages the weights; expected None"

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one training step reads."""
        return self.task.tokens_per_batch(self.model)
