"""Run: everything that decides the result of one training run, and nothing else."""

from collections.abc import Iterator

import jax
from jaxtyping import Array

from flaxformer.config import ModelConfig
from flaxformer.config.problems import unused_cross_attention
from flaxformer.core.params import fold_in_name
from flaxformer.core.struct import Config, leaf, part, static
from flaxformer.model.remat import REMATS
from flaxformer.model.weights import specs
from flaxformer.system.errors import UserError
from flaxformer.tasks import StandardLibrary, Task
from flaxformer.tasks.evaluations import Evaluation
from flaxformer.training.adapters import Adapter
from flaxformer.training.batch_stages import BatchStage
from flaxformer.training.initial_weights import From
from flaxformer.training.loss_terms import LossTerm
from flaxformer.training.optimizer import AdamW
from flaxformer.training.precision import PRECISIONS
from flaxformer.training.schedule import Optimizer
from flaxformer.training.trainable import Rate, Trainable


class Training(Config):
    """Length of training, interval of evaluations, and how a step is computed.

    micro_batches: parts of a batch, computed one after another to save memory; the gradient is that of the whole
    batch, with the same dropout, up to rounding, except for losses of components that are not means over tokens, such
    as a balance of experts. None is 1, except on a CPU (`training.micro_batches`).

    ema: evaluate a running mean of the weights after each step, in which a step counts `ema` times the one after it.

    precision: "bfloat16" computes products and the residual stream in bfloat16; weights, norms, softmax, loss and
    optimizer stay float32 (`training.precision`).

    remat: what the backward pass computes again to save memory (`model.remat`).

    freeze: patterns of the paths of weights that are not trained, such as "embedding/*" (`core.patterns`).

    rates: factors of the learning rate for the weights of some paths.

    offload_optimizer: keep the optimizer's state in the host's memory between its updates (`training.offload`).

    batch_stages: sizes of the batch of an update from some steps on (`training.batch_stages`).
    """

    steps: int = static(200, at_least=1, at_most=2**31 - 1)
    evaluate_every: int | None = static(None, at_least=1)
    label_smoothing: float | None = leaf(None, at_least=0, below=1)
    micro_batches: int | None = static(None, at_least=1)
    ema: float | None = leaf(None, at_least=0, below=1)
    precision: str = static("float32", choices=PRECISIONS)
    remat: str = static("none", choices=REMATS)
    freeze: tuple[str, ...] = static((), omit_default=True)
    rates: tuple[Rate, ...] = part((), omit_default=True)
    offload_optimizer: bool = static(False, omit_default=True)
    batch_stages: tuple[BatchStage, ...] = part((), omit_default=True)

    def problems(self) -> Iterator[str]:
        starts = [stage.start for stage in self.batch_stages]
        if all(isinstance(start, int) for start in starts) and sorted(set(starts)) != starts:
            yield f"batch_stages start at {starts}; expected increasing steps"
        if self.steps % self.interval:
            yield f"evaluate_every is {self.evaluate_every}; expected a divisor of steps {self.steps}"

    @property
    def interval(self) -> int:
        """Steps between two evaluations; the last evaluation is after the last step."""
        return self.evaluate_every or self.steps


class Seeds(Config):
    """Seeds of the sources of randomness in a run; None is `Run.seed`.

    init: seed of the initial weights.
    data: seed of the training batches: their examples and order, and what a denoising task hides.
    dropout: seed of dropout and of the components' own random numbers.
    """

    init: int | None = leaf(None, at_least=0, below=2**31)
    data: int | None = leaf(None, at_least=0, below=2**31)
    dropout: int | None = leaf(None, at_least=0, below=2**31)


class Run(Config):
    """One training run. The seed decides weights, batches and dropout; the random keys of the three are independent.

    seeds: seeds of one or two of these three, to vary them apart; by default, all three follow `seed`.

    loss_terms: added to the loss of the head in training, such as ZLoss(); the validation loss is without them.

    init: weights to start from; None draws all weights.

    adapter: trained functions of frozen weights, such as LoRA(); None trains the weights themselves.

    evaluations: further named evaluations, such as EvaluationSet(name="long", task=…), beside that of the task.
    """

    model: ModelConfig = part(ModelConfig())
    task: Task = part(StandardLibrary())
    optimizer: Optimizer = part(AdamW())
    training: Training = part(Training())
    loss_terms: tuple[LossTerm, ...] = part(())
    seed: int = leaf(0, at_least=0, below=2**31)
    seeds: Seeds = part(Seeds(), omit_default=True)
    init: From | None = part(None, omit_default=True)
    adapter: Adapter | None = part(None, omit_default=True)
    evaluations: tuple[Evaluation, ...] = part((), omit_default=True)

    def problems(self) -> Iterator[str]:
        if (message := unused_cross_attention(self.model)) is not None:
            yield f"model.{message}"
        yield from self.task.problems_with(self.model)
        yield from self._evaluation_problems()
        micro_batches, buckets, rows = self.training.micro_batches or 1, self.buckets, self.task.batch_size
        if rows % (micro_batches * buckets):
            shared = f" / task.buckets {buckets}" if buckets > 1 else ""
            yield f"training.micro_batches is {micro_batches}; expected a divisor of task.batch_size {rows}{shared}"
        mixers = [
            mixer for stack in (self.model, self.model.encoder) if stack is not None for mixer in stack.batch_mixers
        ]
        for name, count in (("training.micro_batches", micro_batches), ("task.buckets", buckets)):
            if count > 1 and mixers:
                kind = type(mixers[0]).__name__
                yield f"{name} is {count} with {kind}, which needs the whole batch; expected 1"
        yield from self._batch_problems()
        if self.model.scales_weights and self.optimizer.gradient_degree is None:
            kind, name = type(self.model.parametrization).__name__, type(self.optimizer).__name__
            yield (
                f"model.parametrization is {kind} with optimizer {name}, whose gradient_degree is None; expected 0 "
                "(its step does not depend on the size of the gradient) or 1 (proportional to it)"
            )
        if self.training.ema is not None and self.optimizer.averages:
            name = type(self.optimizer).__name__
            yield f"training.ema is {self.training.ema} with {name}, which averages the weights; expected None"
        if self.training.rates and self.optimizer.averages:
            name = type(self.optimizer).__name__
            yield f"training.rates is given with {name}, which averages the weights; expected ()"
        if isinstance(self.seed, int):  # a user's run, not one that JAX rebuilt
            yield from self._initial_problems()
            yield from self.trainable.problems()

    def _batch_problems(self) -> Iterator[str]:
        rows, parts = self.task.batch_size, (self.training.micro_batches or 1) * self.buckets
        for number, stage in enumerate(self.training.batch_stages):
            if rows % stage.size or stage.size % parts:
                multiple = f" and a multiple of {parts}, training.micro_batches × task.buckets" if parts > 1 else ""
                yield (
                    f"training.batch_stages.{number}.size is {stage.size}; expected a divisor of task.batch_size {rows}"
                    f"{multiple}"
                )
        if self.training.batch_stages and self.optimizer.decay.init_state() is not None:
            kind = type(self.optimizer.decay).__name__
            yield f"optimizer.decay is {kind}, which sees the loss of each step; expected another with batch_stages"

    def _initial_problems(self) -> Iterator[str]:
        stacks = (self.model, self.model.encoder)
        if any(stack is not None and stack.initial for stack in stacks):
            try:
                specs(self.model)
            except UserError as error:
                yield f"model.{error}"

    def _evaluation_problems(self) -> Iterator[str]:
        names = [*self.task.evaluation_parts(), *(evaluation.name for evaluation in self.evaluations)]
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                yield f"evaluations have the name '{name}' {names.count(name)} times; expected different names"
        for evaluation in self.evaluations:
            where = f"evaluation '{evaluation.name}'"
            yield from (f"{where}: {problem}" for problem in evaluation.problems_with(self.model))

    @property
    def trainable(self) -> Trainable:
        """The weights that are trained."""
        return Trainable(self.model, self.training.freeze, self.training.rates, self.adapter)

    @property
    def without_init(self) -> "Run":
        """The run as programs see it: loaded weights are an input, whatever their source."""
        return self if self.init is None else self.replace(init=None)

    @property
    def init_key(self) -> Array:
        """Random key of the initial weights."""
        return self._key(self.seeds.init)

    @property
    def data_key(self) -> Array:
        """Random key of the training batches."""
        return fold_in_name(self._key(self.seeds.data), "data")

    @property
    def dropout_key(self) -> Array:
        """Random key of dropout and of the components' own random numbers, at all steps."""
        return fold_in_name(self._key(self.seeds.dropout), "dropout")

    def _key(self, seed: int | None) -> Array:
        return jax.random.key(self.seed if seed is None else seed)

    @property
    def buckets(self) -> int:
        """Parts of a batch that the task pads to lengths of their own; 1 for a task without buckets."""
        return getattr(self.task, "buckets", 1)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Examples per update: before all stages of `Training.batch_stages`, and at each."""
        return (self.task.batch_size, *(stage.size for stage in self.training.batch_stages))

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one training step reads."""
        return self.task.tokens_per_batch(self.model)
