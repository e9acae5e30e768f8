"""Every study in experiments/ loads and plans; those at its top and in published/ take a training step too."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from flaxformer.study.load import load_study
from flaxformer.study.program_groups import groups
from flaxformer.system.errors import UserError
from flaxformer.training import start, train_step

FOLDER = Path(__file__).parents[1] / "experiments"
FILES = sorted(file for name in ("", "published/") for file in FOLDER.glob(f"{name}*.py") if file.stem != "records")
FURTHER = sorted(file for name in ("components", "inversions", "studies") for file in FOLDER.glob(f"{name}/*.py"))


@pytest.mark.long
@pytest.mark.parametrize("file", FURTHER, ids=lambda file: file.stem)
def test_further_studies_plan(file):
    if file.stem == "norms_at_their_rates":  # it reads the results of another study
        with pytest.raises(UserError, match="runs/rates_of_norms holds no study"):
            load_study(file)
        return
    study = load_study(file)
    trials = study.trials()
    assert sum(group.size for group in groups(trials)) == len(trials) == len(study.arms()) * len(study.seeds)


@pytest.mark.slow
@pytest.mark.usefixtures("broadcasting_as_in_a_users_program")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_experiment_loads_and_steps(file):
    study = load_study(file)
    assert study.name == file.stem
    assert study.claims
    assert study.caveats
    first, *further = groups(study.trials())
    for group in [first, *further[-1:]]:
        run = jax.tree.map(jnp.asarray, group.example)
        source = run.task.load()
        state, metrics = jax.jit(train_step)(start(run), run, source.batch(jax.random.key(0), 0))
        assert state.step == 1
        assert math.isfinite(metrics["loss"])
        if run.model.head.predicts == "tokens":
            # At initialisation a language model knows nothing; Xavier and unit variance keep it near that.
            assert abs(float(metrics["loss"]) - math.log(run.model.vocabulary)) < 2


def test_default_study_is_among_the_experiments():
    assert "norm_and_scale" in [file.stem for file in FILES]


def test_the_default_study_is_two_programs_of_at_least_sixty_runs():
    trials = load_study(FILES[[file.stem for file in FILES].index("norm_and_scale")]).trials()
    assert len(trials) >= 60
    assert len(groups(trials)) == 2
