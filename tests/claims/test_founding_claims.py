"""The files of experiments/claims/: complete, numbered, well formed; each probe measures, each program takes a step."""

import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from flaxformer.claims.case import find_cases
from flaxformer.study import Probe, Study
from flaxformer.study.plan import check_measure
from flaxformer.study.probe import check_quantities
from flaxformer.study.program_groups import groups
from flaxformer.training import start, train_step

FOLDER = Path(__file__).parents[2] / "experiments" / "claims"
CASES = find_cases(FOLDER)
PROBES = [(case, one) for case in CASES for one in case.evidence if isinstance(one, Probe)]
STUDIES = [(case, one) for case in CASES for one in case.evidence if isinstance(one, Study)]


def named(pairs):
    return [pytest.param(one, id=f"{case.name}/{one.name}") for case, one in pairs]


def test_every_claim_has_a_file():
    assert [case.number for case in CASES] == list(range(1, 31))
    assert len({case.name.partition("_")[2] for case in CASES}) == len(CASES), "each can be called by its name alone"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_has_claim_source_and_caveats(case):
    assert case.claim.endswith(".")
    assert len(case.source) > 20
    assert case.quick
    for one in case.evidence:
        assert one.claims, one.name
        assert one.question.endswith("?")
    assert any(one.caveats for one in case.evidence) or all(one.exact for one in case.evidence)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_a_text_says_is_quoted_and_short(case):
    for claim in [claim for one in case.evidence for claim in one.claims]:
        head = claim.text.partition(":")[0]
        if head.startswith(("as written", "a reading of")) or " et al., “" in head:
            quotation = re.search("“([^”]+)”", claim.text)
            assert quotation, claim.text
            assert len(quotation[1].split()) <= 12, "a fragment, no sentence"
        assert not head.startswith(("as meant", "as hoped"))


@pytest.mark.parametrize("study", named(STUDIES))
def test_random_training_has_at_least_eight_seeds(study):
    assert len(study.seeds) >= 8
    assert set(study.seeds) <= set(range(100)), "seeds from 100 on are for pilots"


@pytest.mark.parametrize("probe", named(PROBES))
def test_probe_has_seeds_or_is_exact(probe):
    assert probe.exact or len(probe.seeds) >= 8


@pytest.mark.exhaustive
@pytest.mark.parametrize("probe", named(PROBES))
def test_probe_measures_the_quantities_of_its_claims(probe):
    values = {name: float(value) for name, value in probe.measure(probe.seeds[0]).items()}
    check_quantities(probe.claims, values)
    assert all(math.isfinite(value) for value in values.values())


@pytest.mark.exhaustive
@pytest.mark.parametrize("study", named(STUDIES))
def test_every_program_of_a_study_takes_a_step(study):
    check_measure(study)
    for group in groups(study.trials(), study.measure):
        run = jax.tree.map(jnp.asarray, group.example)
        source = run.task.load()
        state, metrics = jax.jit(train_step)(start(run, "auto"), run, source.batch(jax.random.key(0), 0))
        assert state.step == 1
        assert jnp.isfinite(metrics["loss"])
