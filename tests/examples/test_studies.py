"""Every example has a study whose arms train, and obeys the laws of `flaxformer check`."""

import jax
import jax.numpy as jnp
import pytest
from studies import MODELS, NAMES, drawn, model_of, run_of, small, study_of

from flaxformer.core.params import path_name
from flaxformer.core.paths import replace_at
from flaxformer.laws import check
from flaxformer.model import init
from flaxformer.training import start, train_step

LAWS = ("causality", "padding", "decoding", "layout")
"""Those that a fault of a component breaks first; `flaxformer check FILE` checks them all."""
MORE_LAWS = ("batch", "start", "weights", "fields", "precision")


def first_step(runs, batch):
    """The state and metrics after one step of a group of runs, layers scanned."""
    return jax.vmap(lambda run: train_step(start(run, "scanned"), run, batch))(runs)


def group_of(arm):
    """Two seeds of an arm at reduced size, in bfloat16, and a batch."""
    run = arm.run.replace(model=small(arm.run.model), task=arm.run.task.replace(batch_size=2))
    run = replace_at(run, {"training.precision": "bfloat16"})
    runs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(run.replace(seed=seed) for seed in (100, 101)))
    return runs, run.task.load().batch(jax.random.key(0), 0)


@pytest.mark.long
@pytest.mark.every(6)
@pytest.mark.parametrize("name", NAMES)
def test_every_arm_has_a_training_step(name):
    study = study_of(name)
    assert study.name == name
    assert study.claims
    assert study.caveats
    for arm in study.arms():
        runs, batch = group_of(arm)
        begun = jax.eval_shape(jax.vmap(lambda run: start(run, "scanned")), runs)
        state, _ = jax.eval_shape(first_step, runs, batch)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), begun)


def test_every_example_with_a_component_of_the_model_is_checked():
    assert set(NAMES) - set(MODELS) == {"own_optimizer", "own_task", "wsd_schedule"}


@pytest.mark.parametrize(
    "laws", [pytest.param(LAWS, marks=pytest.mark.slow), pytest.param(MORE_LAWS, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("name", NAMES)
def test_every_example_obeys_the_laws(name, laws):
    run = run_of(name) if name in MODELS else study_of(name).arms()[-1].run
    run = run.replace(model=small(run.model), task=run.task.replace(batch_size=8))
    assert {one.law: str(one.finding) for one in check(run, laws) if one.finding.is_violated} == {}


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("name", ["attention_sinks", "mixture_of_experts"])
def test_a_study_measures_a_share(name):
    study, config = study_of(name), model_of(name)[0].replace(vocabulary=256)
    run = replace_at(study.baseline, {"task.batch_size": 2, "task.evaluation_batches": 1}).replace(model=config)
    params = drawn(jax.eval_shape(lambda: init(jax.random.key(0), config)))
    [share] = jax.jit(study.measure)(params, run).values()
    assert 0 < share < 1


def test_every_weight_of_a_component_is_named_in_its_model():
    names = {
        "hyper_connections": "blocks/0/attention_connection/residual/mix",
        "contextual_positions": "positions/table",
        "dynamic_tanh": "final_norm/slope",
        "multi_token_prediction": "head/later",
        "learned_activation": "blocks/0/feed_forward/slope",
    }
    for name, path in names.items():
        paths = [path_name(own) for own, _ in jax.tree_util.tree_leaves_with_path(model_of(name)[1])]
        assert path in paths
