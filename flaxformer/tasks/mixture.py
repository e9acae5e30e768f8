"""Mixtures of tasks: each example of a training batch is of a domain that is drawn by the domains' weights.

With weights w_1 … w_n, the domain of an example is the first k with w_1 + … + w_k > u (w_1 + … + w_n), where u is one
uniform number per example, a function of (seed, step). So a domain has probability w_k / Σ_i w_i, and a domain of
weight 0 is never drawn. Two arms that differ in weights have the same u, and the same example of each domain at each
place of a batch: their batches differ only where u falls between their thresholds.

Weights and the first steps of stages are leaves: arms that differ in them share one compiled program. Every domain
gives a whole batch, of which the drawn examples are taken, so that data take n times the work of one domain.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flaxformer.config import ModelConfig
from flaxformer.core.params import fold_in_name
from flaxformer.core.struct import Config, leaf, part, static
from flaxformer.system.errors import UserError
from flaxformer.tasks.base import Task
from flaxformer.tasks.batch import Batch, Source, batch_shapes, concat_parts
from flaxformer.tasks.evaluations import name_problems
from flaxformer.tasks.overlap import SAMPLE, Overlap

SUMS = 1e-30, 1e30
"""Range of the sum of weights, in which float32 has all its digits."""
Weight = float | Float[Array, ""]


class Domain(Config):
    """Part of a mixture.

    name: name of the domain's columns in the results, NAME_loss and so on.
    task: the domain's data; its batch sizes are those of the mixture.
    weight: relative frequency in training; the sum of the weights need not be 1.
    """

    name: str = static()
    task: Task = part()
    weight: float = leaf(1.0, at_least=0)

    def problems(self) -> Iterator[str]:
        yield from name_problems("Domain.name", self.name)


class MixtureStage(Config):
    """Weights of a mixture's domains from a step on, in the order of the domains.

    start: number of steps before the stage.
    """

    start: int = leaf(at_least=1, below=2**31)
    weights: tuple[float, ...] = leaf()

    def __post_init__(self) -> None:
        if isinstance(self.weights, tuple | list):  # an integer would give the program another type
            numbers = tuple(float(x) if type(x) is int else x for x in self.weights)
            object.__setattr__(self, "weights", numbers)
        super().__post_init__()


class Mixture(Task):
    """Training on several domains, each example of one that is drawn by weight; evaluation on each.

    domains: tasks with equal vocabularies and lengths.
    stages: other weights from a step on, such as for the last tenth of training; a domain that is in one stage only has
      weight 0 elsewhere.

    The evaluation set holds `evaluation_batches` batches of each domain, whatever the weights, so that arms with
    different weights are compared on the same data: validation_loss is the mean over all of their targets, and
    NAME_loss that of a domain. The test set is made alike, if every domain has one.
    """

    domains: tuple[Domain, ...] = part()
    stages: tuple[MixtureStage, ...] = part(())

    def problems(self) -> Iterator[str]:
        names = [domain.name for domain in self.domains]
        if not names:
            yield "Mixture.domains is (); expected at least one Domain"
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            yield f"Mixture.domains has the name '{doubled[0]}' more than once; expected different names"
        for name in ("sequence_length", "source_length", "packs_documents"):
            values = {domain.name: getattr(domain.task, name) for domain in self.domains}
            if len(set(values.values())) > 1:
                yield f"Mixture.domains differ in {name}: {_list_by_domain(values)}; expected one value"
        yield from _weight_problems("Mixture.domains have the weights", [domain.weight for domain in self.domains])
        for number, stage in enumerate(self.stages):
            if isinstance(stage.weights, tuple):
                where = f"Mixture.stages.{number}.weights is"
                if len(stage.weights) != len(names):
                    yield f"{where} {stage.weights}; expected {len(names)} numbers, one per domain"
                yield from _weight_problems(where, stage.weights)
        starts = [stage.start for stage in self.stages]
        if _are_numbers(starts) and any(later <= first for first, later in itertools.pairwise(starts)):
            yield f"Mixture.stages start at {starts}; expected increasing steps"

    @property
    def evaluation_shape(self) -> tuple[int, int]:
        """Number of batches of the evaluation set, of all domains together, and examples per batch."""
        return sum(task.evaluation_shape[0] for task in self.tasks), super().evaluation_shape[1]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks of the domains, with the batch sizes of the mixture."""
        sizes = {name: getattr(self, name) for name in ("batch_size", "evaluation_batches", "evaluation_batch_size")}
        return tuple(domain.task.replace(**sizes) for domain in self.domains)

    @property
    def vocabulary(self) -> int:
        return self.domains[0].task.vocabulary

    @property
    def sequence_length(self) -> int:
        return self.domains[0].task.sequence_length

    @property
    def source_length(self) -> int:
        return self.domains[0].task.source_length

    @property
    def packs_documents(self) -> bool:
        return self.domains[0].task.packs_documents

    @property
    def schedule(self) -> "_Weights":
        """The weights of the domains, and of the stages."""
        stages = tuple((stage.start, stage.weights) for stage in self.stages)
        return tuple(domain.weight for domain in self.domains), stages

    def tokens_read(self, model: ModelConfig) -> int:
        return self.domains[0].task.tokens_read(model)

    def evaluation_parts(self) -> dict[str, Task]:
        return dict(zip((domain.name for domain in self.domains), self.tasks, strict=True))

    def problems_with(self, model: ModelConfig) -> Iterator[str]:
        for domain in self.domains:
            yield from (f"domain '{domain.name}': {problem}" for problem in domain.task.problems_with(model))
            if getattr(domain.task, "buckets", 1) > 1:
                yield (
                    f"domain '{domain.name}': task.buckets is {getattr(domain.task, 'buckets', 1)}; expected 1 in a "
                    "mixture, whose batches have examples of all domains, and so one length"
                )
        vocabularies = {domain.name: domain.task.vocabulary for domain in self.domains}
        if len(set(vocabularies.values())) > 1:
            listed = _list_by_domain(vocabularies)
            yield f"domains have different vocabularies: {listed}; expected one, of the same tokenizer"

    def load(self) -> "MixtureSource":
        sources = tuple(task.load() for task in self.tasks)
        for source, first in ((sources[i], sources[0]) for i in range(1, len(sources))):
            if _form(source) != _form(first):
                forms = f"{_list_by_domain(_form(first))}; and {_list_by_domain(_form(source))}"
                raise UserError(f"domains have batches with different fields: {forms}; expected equal ones")
        return MixtureSource(sources, self.schedule, tuple(domain.name for domain in self.domains), self.batch_size)

    def fingerprint(self) -> dict[str, object]:
        fingerprints = {domain.name: domain.task.fingerprint() for domain in self.domains}
        return {
            f"{name} {key}": value for name, fingerprint in fingerprints.items() for key, value in fingerprint.items()
        }

    def overlap(self, sample: int = SAMPLE) -> Overlap:
        """Return the sums over the domains, each compared with its own training data."""
        overlaps = [task.overlap(sample) for task in self.tasks]
        drawn = [overlap.compared for overlap in overlaps if overlap.compared is not None]
        return Overlap(
            sum(overlap.examples for overlap in overlaps),
            sum(overlap.in_training for overlap in overlaps),
            sum(drawn) if drawn else None,
        )

    def training_tokens(self, tokenizer: str | None) -> list[np.ndarray]:
        return [text for task in self.tasks for text in task.training_tokens(tokenizer)]

    def references(self) -> dict[str, float]:
        """Return the losses of one simple model per domain, each on its own domain, over all evaluation targets.

        They are those that every domain has, such as "bigram, one per domain".
        """
        references = [task.references() for task in self.tasks]
        names = [name for name in references[0] if all(name in losses for losses in references)]
        if not names:
            return {}
        counts = [float(jax.device_get(task.load().evaluation().weights).sum()) for task in self.tasks]
        return {
            f"{name}, one per domain": sum(
                losses[name] * count for losses, count in zip(references, counts, strict=True)
            )
            / sum(counts)
            for name in names
        }


_Weights = tuple[tuple[Weight, ...], tuple[tuple[int | Int[Array, ""], tuple[Weight, ...]], ...]]
"""Weights of the domains before the first stage; and the first step and the weights of each stage."""


class MixtureSource(Source):
    """Sources of the domains, and the weights."""

    sources: tuple[Source, ...]
    weights: _Weights
    names: tuple[str, ...] = flax.struct.field(pytree_node=False)
    batch_size: int = flax.struct.field(pytree_node=False)

    @property
    def on_host(self) -> bool:
        return any(source.on_host for source in self.sources)

    def with_numbers(self, task: Config) -> "MixtureSource":
        if not isinstance(task, Mixture):
            return self
        pairs = zip(self.sources, task.domains, strict=True)
        sources = tuple(source.with_numbers(domain.task) for source, domain in pairs)
        return self.replace(sources=sources, weights=task.schedule)

    def batch(self, key: Array, step: int | Int[Array, ""]) -> Batch:
        domains = draw_domains(fold_in_name(key, "mixture"), step, weights_at(self.weights, step), self.batch_size)
        domains_key = fold_in_name(key, "domains")
        batches = [
            concat_parts(source.batch(fold_in_name(domains_key, name), step))
            for source, name in zip(self.sources, self.names, strict=True)
        ]

        def select(*leaves: Array) -> Array:
            return jnp.stack(leaves)[domains, jnp.arange(self.batch_size)]

        return jax.tree.map(select, *_with_common_padding(batches))

    def evaluation(self) -> Batch:
        return _concat([source.evaluation() for source in self.sources])

    def test(self) -> Batch | None:
        test_sets = [source.test() for source in self.sources]
        present = [test_set for test_set in test_sets if test_set is not None]
        return _concat(present) if len(present) == len(test_sets) else None

    def training_examples(self) -> Sequence[Batch] | None:
        tables = [source.training_examples() for source in self.sources]
        batches = [table for source_tables in tables if source_tables is not None for table in source_tables]
        return None if None in tables else batches


def weights_at(weights: _Weights, step: int | Int[Array, ""]) -> tuple[Weight, ...]:
    """Return the weights of the domains at a step: those of the last stage that has begun."""
    first, stages = weights

    def later(now: tuple[Weight, ...], stage: tuple[int | Int[Array, ""], tuple[Weight, ...]]) -> tuple[Weight, ...]:
        start, new_weights = stage
        return tuple(jnp.where(step >= start, new, old) for old, new in zip(now, new_weights, strict=True))

    return functools.reduce(later, stages, first)


def draw_domains(key: Array, step: int | Int[Array, ""], weights: Sequence[Weight], count: int) -> Int[Array, "count"]:
    """Return the index of the domain of each of `count` examples, with probability w_k / Σ_i w_i."""
    # In order, and in float32 on the host too: a weight of 0 adds exactly nothing.
    sums = list(itertools.accumulate(jnp.asarray(weight, jnp.float32) for weight in weights))
    place = jax.random.uniform(jax.random.fold_in(key, step), (count,)) * sums[-1]
    return functools.reduce(lambda index, bound: index + (place >= bound), sums[:-1], jnp.zeros(count, jnp.int32))


def _concat(batches: Sequence[Batch]) -> Batch:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *_with_common_padding(batches))


def _with_common_padding(batches: Sequence[Batch]) -> list[Batch]:
    """Return the batches with padding behind their tokens only if all of them say so."""
    is_behind = all(batch.padding_is_behind for batch in batches)
    return [batch.replace(padding_is_behind=is_behind) for batch in batches]


def _form(source: Source) -> dict[str, object]:
    """Return the fields that the batches of a source have, with their dtypes."""
    batch = jax.eval_shape(concat_parts, batch_shapes(source))
    arrays = {name: getattr(batch, name) for name in Batch.__dataclass_fields__}
    return {name: x.dtype for name, x in arrays.items() if hasattr(x, "dtype")}


def _are_numbers(values: Sequence[object]) -> bool:
    """True for a user's numbers; false for what JAX puts in their place when it rebuilds a config."""
    return all(isinstance(value, int | float) for value in values)


def _weight_problems(where: str, weights: Sequence[object]) -> Iterator[str]:
    if weights and _are_numbers(weights):
        numbers = [float(str(value)) for value in weights]
        if min(numbers) < 0 or not SUMS[0] <= sum(numbers) <= SUMS[1]:
            yield f"{where} {tuple(weights)}; expected numbers of at least 0 with a sum above 0 (from 1e-30 to 1e30)"


def _list_by_domain(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
