"""Laws of training: the data, the loss and its terms, and the learning rate."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from flaxformer.components.component import Aux
from flaxformer.components.heads import LossSum
from flaxformer.laws.calls import random_key
from flaxformer.laws.configs import without_dropout
from flaxformer.laws.law import OK, Finding, compare, difference, first_violated, law, not_applicable, violation
from flaxformer.laws.programs import fast_jit
from flaxformer.laws.subject import Subject
from flaxformer.nn.formulations.chunks import Division
from flaxformer.nn.losses import mean
from flaxformer.tasks.batch import Batch, Source, concat_parts
from flaxformer.training import Run
from flaxformer.training.loss import forward
from flaxformer.training.schedule import learning_rate
from flaxformer.training.split_loss import split_sums, term_factors, training_counts, training_sums

STEPS = 4
"""Number of batches that the law of data compares."""
OTHER_KEYS = 8
"""Number of further random keys by which a model that draws random numbers is recognised."""
MOST_RATES = 4096
"""Largest number of steps whose learning rates are computed."""


@law(
    "data",
    "batches are a function of the random key and the step, and hold what the model reads and predicts",
    "draw with the key of `example(key)` or `batch(key, step)`, and keep ids below the vocabulary",
)
def data(subject: Subject) -> Finding:
    """Draw batches several times, at several steps, from several traces; check tokens, targets and weights."""
    run = subject.run
    with jax.enable_x64(False):
        first, again = _draw_batches(run), _draw_batches(run)
        if (place := _first_difference(first, again)) is not None:
            return violation(
                f"the {place} of a batch differ between two draws with the same random key and step; expected a pure "
                "function, without NumPy's random numbers or a state"
            )
        batches, evaluation = first
        for step in range(1, STEPS):
            if _first_difference(batches[step - 1], batches[step]) is None:
                return violation(
                    f"the training batches of steps {step - 1} and {step} are equal; expected draws with the random "
                    "key of `example(key)`, or of `batch(key, step)`"
                )
        checked = {f"the batch of step {i}": batch for i, batch in enumerate(batches)}
        checked["the evaluation set"] = evaluation
        return first_violated(_check_contents(name, batch, run) for name, batch in checked.items())


def _draw_batches(run: Run) -> tuple[list[Batch], Batch]:
    """Return the first training batches and the evaluation set, from functions that are traced again."""
    source = run.task.load().with_numbers(run.task)

    def batch(source: Source, key: Array, step: Array) -> Batch:
        return concat_parts(source.batch(key, step))

    call: Callable[..., Batch] = batch if source.on_host else fast_jit(batch)
    batches = [call(source, run.data_key, i if source.on_host else jnp.int32(i)) for i in range(STEPS)]
    return jax.device_get((batches, source.evaluation()))


def _first_difference(first: PyTree, second: PyTree) -> str | None:
    """Return the name of the first array that differs between two trees; None if none does."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(second), strict=True):
        if np.shape(a) != np.shape(b) or difference(a, b) > 0:
            return jax.tree_util.keystr(path[-1:], simple=True) or "entries"
    return None


def _check_contents(name: str, batch: Batch, run: Run) -> Finding:
    """Check that weights are finite, not negative and not all 0, and that token ids and targets are in range."""
    weights = np.asarray(batch.weights)
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        return violation(f"weights of {name} are not finite, negative, or all 0; expected at least one scored target")
    model = run.model
    outputs = model.head.outputs(model.vocabulary)
    kinds: list[tuple[str, Array, int, ArrayLike | None]] = []
    if model.head.predicts in ("tokens", "classes"):
        kinds.append(("targets", batch.targets, outputs, weights > 0))
    if model.inputs.reads == "tokens":
        kinds.append(("inputs", batch.inputs, model.vocabulary, batch.valid))
    for what, ids, most, counted in kinds:
        counted_ids = np.asarray(ids) if counted is None else np.asarray(ids)[np.asarray(counted)]
        if counted_ids.size and not (counted_ids.min() >= 0 and counted_ids.max() < most):
            wrong_id = counted_ids.min() if counted_ids.min() < 0 else counted_ids.max()
            return violation(f"{what} of {name} hold {wrong_id}; expected ids from 0 to {most - 1}")
    return OK


@law(
    "loss",
    "loss and accuracy depend on scored targets alone, and any division of a batch gives the same ones",
    "return a sum over targets, times their weights, and the sum of the weights; declare mixes_batch = True for a loss "
    "of the whole batch",
)
def loss(subject: Subject) -> Finding:
    """Change targets of weight 0, and the scale of the weights; compare with the rows, and with chunks of tokens."""
    batch, run = subject.batch, subject.run.replace(model=without_dropout(subject.config))
    scored = _with_unscored(batch)
    if scored is None:
        return not_applicable("the batch has one target, which cannot be divided")
    weights = jax.tree.map(jnp.asarray, subject.params)
    find = fast_jit(lambda examples, rows, key: _losses(weights, run, examples, rows, key))
    rows, (key, *other_keys) = jnp.arange(len(batch.weights)), jax.random.split(random_key(), 1 + OTHER_KEYS)
    losses, other_losses = find(scored, rows, key), find(_with_other_targets(scored), rows, key)
    findings = [
        _compare(name, losses[name], other_losses[name], "with other targets of weight 0", subject) for name in losses
    ]
    findings.append(_compare_chunks(subject, scored))
    uneven = _with_uneven_weights(batch)
    whole = find(uneven, rows, key)
    # A component that draws random numbers may draw others for each part of a batch.
    draws = any(_first_difference(whole, find(uneven, rows, other)) is not None for other in other_keys)
    if not subject.mixes_batch and not draws and len(rows) > 1:
        parts = [find(jax.tree.map(lambda x, i=i: x[i : i + 1], uneven), rows[i : i + 1], key) for i in rows]
        for name, loss_sum in whole.items():
            result = _compare(name, loss_sum, _join_sums(parts, name), "from its rows one by one", subject)
            findings.append(_explain(result, "a loss or a loss term depends on the whole batch"))
        row = int(uneven.weights.reshape(len(rows), -1).sum(-1).argmax())
        unscored = find(_with_one_scored_row(uneven, row), rows, key)
        how = f"from its row {row} alone, if no other row is scored"
        findings += [
            _explain(_compare(name, unscored[name], parts[row][name], how, subject), "targets of weight 0 are counted")
            for name in whole
        ]
    if not subject.mixes_batch:
        doubled = find(uneven.replace(weights=2 * uneven.weights), rows, key)
        for name in whole:
            result = _compare(name, whole[name], doubled[name], "with weights that are twice as large", subject)
            findings.append(_explain(result, "the count is no sum of weights"))
    return first_violated(findings)


def _losses(weights: PyTree, run: Run, batch: Batch, rows: Array, key: Array) -> dict[str, LossSum]:
    """Return the losses and the accuracy of the head, and every loss term in training, as (sum, count).

    Args:
      rows: index of each example in the whole batch.
      key: random key of the whole batch.
    """
    outcome, head = forward(weights, run, batch, key, rows=rows), run.model.head
    smoothing = run.training.label_smoothing
    losses = {
        "loss": head.training_loss(outcome.output, outcome.aux, batch.targets, batch.weights, smoothing),
        "validation loss": head.loss(outcome.output, batch.targets, batch.weights),
    }
    accuracy = head.accuracy(outcome.output, batch.targets, batch.weights)
    terms = {f"loss term {type(term).__name__}": term.value(weights, outcome, batch) for term in run.loss_terms}
    return losses | ({} if accuracy is None else {"accuracy": accuracy}) | terms


def _mean(sums: LossSum) -> Float[Array, ""]:
    total, count = sums
    return mean(total, count)


def _join_sums(parts: Sequence[dict[str, LossSum]], name: str) -> LossSum:
    """Return a loss of a batch as a training step computes it from parts: sums of their totals, and of their counts."""
    totals, counts = zip(*(part[name] for part in parts), strict=True)
    return jnp.stack(totals).sum(), jnp.stack(counts).sum()


def _compare(name: str, first: LossSum, second: LossSum, how: str, subject: Subject) -> Finding:
    return compare(_mean(first), _mean(second), f"the {name} of a batch and that {how}", subject.tolerance)


def _with_unscored(batch: Batch) -> Batch | None:
    """Return the batch with every second target not scored; None if no target would be left."""
    weights = np.where(np.indices(batch.weights.shape).sum(0) % 2, 0.0, batch.weights)
    return batch.replace(weights=weights) if weights.any() and (weights == 0).any() else None


def _with_uneven_weights(batch: Batch) -> Batch:
    """Return the batch with weights times 1/n, 2/n, …, 1 for its n rows, so that their sums differ by row."""
    weights = np.asarray(batch.weights)
    shares = np.arange(1, len(weights) + 1, dtype=weights.dtype) / len(weights)
    return batch.replace(weights=(weights.T * shares).T)


def _with_one_scored_row(batch: Batch, row: int) -> Batch:
    """Return the batch with weights of 0 in every other row."""
    is_row = np.arange(len(batch.weights)) == row
    return batch.replace(weights=(np.asarray(batch.weights).T * is_row).T)


def _with_other_targets(batch: Batch) -> Batch:
    """Return the batch with other targets where the weight is 0."""
    targets = np.asarray(batch.targets)
    other = np.where(targets > 0, 0, 1) if np.issubdtype(targets.dtype, np.integer) else targets + 100.0
    is_scored = batch.weights.reshape(*batch.weights.shape, *(1,) * (targets.ndim - batch.weights.ndim)) > 0
    return batch.replace(targets=np.where(is_scored, targets, other))


def _explain(finding: Finding, reason: str) -> Finding:
    """Return a finding with the reason of its violation, if it is violated."""
    return violation(f"{finding.words} ({reason})") if finding.is_violated else finding


def _compare_chunks(subject: Subject, batch: Batch) -> Finding:
    """Compare the loss that a large batch has, from chunks of tokens, with that of all outputs."""
    terms = tuple(term for term in subject.run.loss_terms if term.can_split)
    run = subject.run.replace(loss_terms=terms)

    def both(weights: PyTree, batch: Batch) -> tuple[Array, Array] | None:
        outcome = forward(weights, run, batch, random_key(), rows=jnp.arange(len(batch.weights)))
        if outcome.projection is None or outcome.projection.features.shape[:-1] != batch.weights.shape:
            return None
        division = Division(batch.weights.shape, shards=1, count=batch.weights.size)
        factors = term_factors(run, training_counts(weights, run, outcome, batch))
        chunked = split_sums(weights, run, outcome.projection, batch, division, factors)
        whole = training_sums(weights, run, outcome.replace(aux=Aux(), projection=None), batch)
        return _mean(whole), _mean(chunked)

    means = fast_jit(both)(subject.params, batch)
    if means is None:
        return OK
    what = "the loss of a batch with all its outputs at once and from one token at a time"
    reason = "a head with by_token, or a term with of_outputs, reads outputs of other tokens"
    return _explain(compare(*means, what, subject.tolerance), reason)


@law(
    "rate",
    "the learning rate is finite and not negative at every step",
    "let fraction(progress, ratio) stay between 0 and 1 for every progress from 0 to 1",
)
def rate(subject: Subject) -> Finding:
    """Compute the learning rate of each step, or of some of a long run."""
    run = subject.original_run
    steps = np.unique(np.linspace(0, run.training.steps - 1, min(run.training.steps, MOST_RATES)).astype(np.int32))
    with jax.enable_x64(False):
        rates = np.asarray(
            fast_jit(jax.vmap(lambda step: learning_rate(run.optimizer, step, run.training.steps)))(steps)
        )
    wrong = ~(np.isfinite(rates) & (rates >= 0))
    if wrong.any():
        at = int(wrong.argmax())
        kind = type(run.optimizer.decay).__name__
        return violation(
            f"the learning rate of step {steps[at]:,} of {run.training.steps:,} is {rates[at]:.3g} ({kind})"
        )
    return OK
