"""Seeds of initialisation, data and dropout: each changes its own source of randomness and nothing else."""

import dataclasses

import jax
import numpy as np
import pytest
from study.tiny import BASELINE

from flaxformer.checkpoint.config import classes_within, from_canonical
from flaxformer.core.canonical import canonical
from flaxformer.core.params import fold_in_name
from flaxformer.core.paths import replace_at
from flaxformer.system.errors import UserError
from flaxformer.tasks import MaskedTokens, StandardLibrary
from flaxformer.training import Run, Seeds, start
from flaxformer.training.step import backward

RUN = replace_at(BASELINE, {"model.dropout": 0.5, "seed": 3})
SOURCES = [field.name for field in dataclasses.fields(Seeds)]


def draws(run, state, batch):
    """The initial weights, the batch of a step, and the gradient of `batch` at `state`, which differs with dropout."""
    return {
        "init": start(run).params,
        "data": run.task.load().batch(run.data_key, 5),
        "dropout": backward(state, run, batch)[1],
    }


def same(one, other):
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


@pytest.fixture(scope="module")
def compute():
    state, batch = start(RUN), RUN.task.load().batch(RUN.data_key, 0)
    return jax.jit(lambda run: draws(run, state, batch))


@pytest.mark.long
@pytest.mark.every(3)
@pytest.mark.parametrize("source", SOURCES)
def test_a_seed_of_one_source_changes_that_source_only(compute, source):
    before, after = compute(RUN), compute(replace_at(RUN, {f"seeds.{source}": 4}))
    assert {name for name in before if not same(before[name], after[name])} == {source}


@pytest.mark.every(3, "long")
@pytest.mark.parametrize("source", SOURCES)
def test_the_seed_changes_the_sources_without_a_seed_of_their_own(compute, source):
    own = replace_at(RUN, {f"seeds.{source}": 3})
    before, after = compute(own), compute(replace_at(own, {"seed": 4}))
    assert {name for name in before if not same(before[name], after[name])} == {*SOURCES} - {source}


def test_seeds_equal_to_the_seed_give_the_same_numbers(compute):
    own = replace_at(RUN, {f"seeds.{source}": 3 for source in SOURCES})
    assert same(compute(RUN), compute(own))


def test_the_keys_are_those_of_the_table_in_params():
    key = jax.random.key(3)
    assert RUN.init_key == key
    assert RUN.data_key == fold_in_name(key, "data")
    assert RUN.dropout_key == fold_in_name(key, "dropout")


def test_a_denoising_task_hides_tokens_by_the_seed_of_the_data():
    run = Run(
        model=RUN.model.replace(vocabulary=257, mask_pattern="bidirectional"),
        task=MaskedTokens(text=StandardLibrary(length=8), batch_size=4, evaluation_batches=1),
    )
    source = run.task.load()
    one, other = (source.batch(replace_at(run, {f"seeds.{own}": 9}).data_key, 0) for own in ("init", "data"))
    assert same(one, source.batch(run.data_key, 0))
    assert not same(other.weights, one.weights)


def test_the_identity_of_a_run_with_the_default_seeds_is_unchanged():
    assert "seeds" not in canonical(RUN)
    given = replace_at(RUN, {"seeds.data": 3})
    assert canonical(given)["seeds"] == {"kind": "Seeds", "init": None, "data": 3, "dropout": None}
    classes = classes_within(Run)
    assert from_canonical(canonical(RUN), classes) == RUN
    assert from_canonical(canonical(given), classes) == given


@pytest.mark.parametrize("value", [-1, 2**31, 0.5])
def test_a_seed_that_is_not_valid_is_refused(value):
    with pytest.raises(UserError, match=r"Seeds.data is"):
        Seeds(data=value)
