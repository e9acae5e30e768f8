"""Run: everything that decides the result of one training run, and nothing else."""

from collections.abc import Iterator

from flaxformer.config import ModelConfig, RecurrentConfig
from flaxformer.struct import Config, leaf, part, static
from flaxformer.tasks import AnyTask, StandardLibrary
from flaxformer.training.optimizer import AdamW


class Training(Config):
    """How long to train, and how often to look."""

    steps: int = static(200, at_least=1)
    evaluate_every: int | None = static(None, at_least=1)
    label_smoothing: float | None = leaf(None, at_least=0, below=1)

    def problems(self) -> Iterator[str]:
        if self.steps % self.interval:
            yield f"evaluate_every is {self.evaluate_every}; expected a divisor of steps {self.steps}"

    @property
    def interval(self) -> int:
        """Steps between two evaluations; the last evaluation is after the last step."""
        return self.evaluate_every or self.steps


class Run(Config):
    """One training run. The seed decides weights, batches and dropout, each through a stream of its own."""

    model: ModelConfig | RecurrentConfig = part(ModelConfig())
    task: AnyTask = part(StandardLibrary())
    optimizer: AdamW = part(AdamW())
    training: Training = part(Training())
    seed: int = leaf(0, at_least=0, below=2**31)

    def problems(self) -> Iterator[str]:
        yield from self.task.problems_with(self.model)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one training step reads."""
        return self.task.batch_size * self.task.tokens_read(self.model)
