"""Run: everything that decides the result of one training run, and nothing else."""

from collections.abc import Iterator

from flaxformer.config import LearnedPositions, ModelConfig
from flaxformer.struct import Config, leaf, part, static
from flaxformer.tasks.synthetic import AssociativeRecall, Copy
from flaxformer.tasks.text import StandardLibrary, TextFiles
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

    model: ModelConfig = part(ModelConfig())
    task: StandardLibrary | TextFiles | Copy | AssociativeRecall = part(StandardLibrary())
    optimizer: AdamW = part(AdamW())
    training: Training = part(Training())
    seed: int = leaf(0, at_least=0, below=2**31)

    def problems(self) -> Iterator[str]:
        task, model = self.task, self.model
        if model.vocabulary < task.vocabulary:
            yield f"model.vocabulary is {model.vocabulary}; expected at least the task's {task.vocabulary} tokens"
        if isinstance(model.positions, LearnedPositions) and model.positions.max_length < task.sequence_length:
            longest = model.positions.max_length
            yield f"model.positions.max_length is {longest}; expected at least the task's {task.sequence_length} tokens"

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one training step reads."""
        return self.task.batch_size * self.task.sequence_length
