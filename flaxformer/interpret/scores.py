"""Scores of a model under an intervention, and results as numbers by name."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flaxformer import model
from flaxformer.components.heads import LossSum
from flaxformer.config import ModelConfig
from flaxformer.core.points import Edit
from flaxformer.interpret.attribution import logit_lens
from flaxformer.interpret.interventions import sum_over_tokens
from flaxformer.model.weights import Transformer
from flaxformer.tasks.batch import Batch
from flaxformer.training.precision import cast_inputs, cast_params
from flaxformer.training.run import Run

EditsOfBatch = Callable[[Batch], Mapping[str, Edit]]
"""Function from a batch to the edits of its forward pass, such as activations of the same batch to patch."""


def scores(
    params: Transformer, run: Run, batches: Batch, edit: Mapping[str, Edit] | EditsOfBatch | None = None
) -> dict[str, Float[Array, ""]]:
    """Return "loss" and, where the head has one, "accuracy" of batches [batches, B, …] under an edit.

    Both are means over the scored targets, without dropout or label smoothing, as `training.evaluate` gives them
    without an edit. All outputs of a batch are computed at once.

    Args:
      edit: the edits of every batch, as for `model.apply`, or a function from a batch [B, …] to its edits.
    """

    def score_batch(batch: Batch) -> dict[str, LossSum]:
        batch_edits = edit(batch) if callable(edit) else edit
        return _sums(run, model.apply(*_arguments(params, run, batch), edit=batch_edits, **batch.arguments), batch)

    return _mean(jax.lax.map(score_batch, batches))


def lens_scores(params: Transformer, run: Run, batches: Batch) -> dict[int, dict[str, Float[Array, ""]]]:
    """Return the scores of `logit_lens` over batches [batches, B, …], by the number of blocks."""

    def score_batch(batch: Batch) -> dict[int, dict[str, LossSum]]:
        outputs = logit_lens(*_arguments(params, run, batch), **batch.arguments)
        return {depth: _sums(run, output, batch) for depth, output in outputs.items()}

    return {depth: _mean(sums) for depth, sums in jax.lax.map(score_batch, batches).items()}


def mean_activations(
    params: Transformer, run: Run, batches: Batch, at: str | Sequence[str], *, per_position: bool = False
) -> dict[str, Float[Array, "..."]]:
    """Return the mean activation at some points over batches [batches, B, …], without padding, for `patch`.

    Args:
      at: paths or patterns, as for `model.activations_at`.
      per_position: True for a mean over the sequences alone, one per position.
    """

    def sum_batch(batch: Batch) -> dict[str, tuple[Array, Array]]:
        activations = model.activations_at(*_arguments(params, run, batch), at, **batch.arguments)
        return {path: sum_over_tokens(path, x, _valid(path, batch), per_position) for path, x in activations.items()}

    sums = jax.lax.map(sum_batch, batches)
    return {path: total.sum(0) / jnp.maximum(count.sum(0), 1) for path, (total, count) in sums.items()}


def name_scalars(
    prefix: str, results: Mapping[str, Array] | Mapping[int, Mapping[str, Array]]
) -> dict[str, Float[Array, ""]]:
    """Return results as scalars by name, for a study's `measure`.

    An array [N] at a path gives "prefix/path/0", "prefix/path/1", …; scores by depth give "prefix/loss/0", ….

    >>> name_scalars("head_importance", {"blocks/1/attention/heads": jnp.zeros(2)}).keys()
    dict_keys(['head_importance/blocks/1/attention/heads/0', 'head_importance/blocks/1/attention/heads/1'])
    """
    scalars: dict[str, Array] = {}
    for key, value in results.items():
        if isinstance(value, Mapping):
            scalars |= {f"{prefix}/{name}/{key}": x for name, x in value.items()}
        elif value.ndim == 0:
            scalars[f"{prefix}/{key}"] = value
        else:
            flat = value.reshape(-1)
            scalars |= {f"{prefix}/{key}/{number}": flat[number] for number in range(flat.size)}
    return scalars


def _arguments(params: Transformer, run: Run, batch: Batch) -> tuple[Transformer, ModelConfig, Array]:
    """Return the arguments of `model.apply` in the precision of the run."""
    precision = run.training.precision
    return cast_params(params, precision), run.model, cast_inputs(batch.inputs, precision)


def _sums(run: Run, output: Array, batch: Batch) -> dict[str, LossSum]:
    """Return loss and accuracy as (sum over scored targets, their count)."""
    sums = {"loss": run.model.head.loss(output, batch.targets, batch.weights)}
    right = run.model.head.accuracy(output, batch.targets, batch.weights)
    return sums if right is None else sums | {"accuracy": right}


def _mean(sums: Mapping[str, LossSum]) -> dict[str, Array]:
    return {name: total.sum() / count.sum() for name, (total, count) in sums.items()}


def _valid(path: str, batch: Batch) -> Bool[Array, "*batch T"] | None:
    """Return the valid tokens of the axis of positions at a point."""
    _, _, place = path.rpartition("blocks/")
    reads_source = "cross_attention" in place and path.endswith(("/key", "/value"))
    return batch.source_valid if path.startswith("encoder/") or reads_source else batch.valid
