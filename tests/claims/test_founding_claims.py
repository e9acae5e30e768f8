"""The files of experiments/claims/: complete, numbered, well formed; each probe measures, each program takes a step."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from flaxformer.claims.case import find_cases
from flaxformer.study import Probe, Study
from flaxformer.study.plan import check_measured, groups
from flaxformer.study.probe import check_quantities
from flaxformer.training import start, train_step

FOLDER = Path(__file__).parents[2] / "experiments" / "claims"
CASES = find_cases(FOLDER)
PROBES = [(case, one) for case in CASES for one in case.evidence if isinstance(one, Probe)]
STUDIES = [(case, one) for case in CASES for one in case.evidence if isinstance(one, Study)]


def named(pairs):
    return [pytest.param(one, id=f"{case.name}/{one.name}") for case, one in pairs]


def test_every_claim_of_the_list_has_its_file():
    assert [case.number for case in CASES] == list(range(1, 21))
    assert len({case.name.partition("_")[2] for case in CASES}) == len(CASES), "each can be called by its name alone"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_claim_says_what_is_claimed_where_and_what_it_does_not_show(case):
    assert case.claim.endswith(".")
    assert len(case.source) > 20
    assert case.quick
    for one in case.evidence:
        assert one.claims, one.name
        assert one.question.endswith("?")
    assert any(one.caveats for one in case.evidence) or all(one.exact for one in case.evidence)


@pytest.mark.parametrize("study", named(STUDIES))
def test_random_training_has_at_least_five_seeds(study):
    assert len(study.seeds) >= 5
    assert set(study.seeds) <= set(range(100)), "seeds from 100 on are for pilots"


@pytest.mark.parametrize("probe", named(PROBES))
def test_a_probe_has_seeds_or_is_exact(probe):
    assert probe.exact or len(probe.seeds) >= 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("probe", named(PROBES))
def test_a_probe_measures_what_it_claims_about(probe):
    values = {name: float(value) for name, value in probe.measure(probe.seeds[0]).items()}
    check_quantities(probe.claims, values)
    assert all(math.isfinite(value) for value in values.values())


@pytest.mark.exhaustive
@pytest.mark.parametrize("study", named(STUDIES))
def test_every_program_of_a_study_takes_a_step(study):
    check_measured(study)
    for group in groups(study.trials(), study.measure):
        run = jax.tree.map(jnp.asarray, group.example)
        source = run.task.load()
        state, metrics = jax.jit(train_step)(start(run, "auto"), run, source.batch(jax.random.key(0), 0))
        assert state.step == 1
        assert jnp.isfinite(metrics["loss"])
