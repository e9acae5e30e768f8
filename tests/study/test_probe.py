"""Probes, and what a study measures and derives: judged like runs, measured once, never mixed with other code's."""

import re

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from scipy import stats
from study.tiny import RATE, run, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.report.files import write
from flaxformer.runner.execution import Execution
from flaxformer.runner.probes import run_probe
from flaxformer.store.declarations import declare
from flaxformer.store.store import Store
from flaxformer.study import Claim, Probe
from flaxformer.study.identity import measured_by
from flaxformer.study.plan import declaration
from flaxformer.system.errors import UserError
from flaxformer.system.user_code import code_digests

SPREAD = [0.2, -0.2, 0.1, -0.1, 0.05, -0.05]


def measure(seed):
    """Two numbers around 2 and 3 that share their noise."""
    return {"two": 2 + SPREAD[seed], "three": 3 + SPREAD[seed] + 0.01 * seed}


def probe(**changes):
    fields = {"name": "probe", "question": "How large?", "measure": measure, "seeds": range(6)}
    return Probe(**(fields | changes))


def judged(root, **changes):
    store, own = Store(root), probe(**changes)
    rows = list(run_probe(own, store))
    return analyse(store), rows


def quantity(name):
    return {"quantity": name}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_seed_without_a_finite_value_is_left_out_and_named(tmp_path, value):
    claims = [Claim(f"{name} is above 1", higher=quantity(name), than=1) for name in ("two", "three")]
    odd = {"measure": lambda seed: measure(seed) | ({"two": value} if seed == 3 else {}), "claims": claims}
    two, three = (one.judgement.effect.n for one in judged(tmp_path, **odd)[0].claims)
    assert (two, three) == (5, 6)
    assert "1 of 6 seeds has no finite value of two: seed 3; they are left out." in analyse(Store(tmp_path)).limits


def test_a_claim_about_a_number_is_students_test_against_it(tmp_path):
    claims = [
        Claim("two is 2", equal=quantity("two"), to=2, within=0.5),
        Claim("two is below 1.9", lower=quantity("two"), than=1.9),
        Claim("three exceeds two by more than a half", higher=quantity("three"), than=quantity("two"), by=0.5),
        Claim("two is 3", equal=quantity("two"), to=3, within=0.5),
    ]
    analysis, _ = judged(tmp_path, claims=claims)
    equal, below, above, wrong = (one.judgement for one in analysis.claims)
    values = 2 + np.array(SPREAD)
    np.testing.assert_allclose(equal.effect.mean, values.mean() - 2, atol=1e-12)
    inside = [
        stats.ttest_1samp(values - 2, -0.5, alternative="greater"),
        stats.ttest_1samp(values - 2, 0.5, alternative="less"),
    ]
    np.testing.assert_allclose(equal.p, max(test.pvalue for test in inside), rtol=1e-9)
    np.testing.assert_allclose(below.effect.mean, 1.9 - values.mean(), atol=1e-12)
    np.testing.assert_allclose(below.p, stats.ttest_1samp(values, 1.9).pvalue, rtol=1e-9)  # without skewness
    np.testing.assert_allclose(above.effect.mean, 1 + 0.01 * 2.5, rtol=1e-9)
    assert [one.verdict for one in (equal, above, wrong)] == ["supported", "supported", "refuted"]
    assert below.verdict != "supported"


def test_what_is_measured_already_is_not_measured_again(tmp_path):
    seen = []

    def counted(seed):
        seen.append(seed)
        return measure(seed)

    list(run_probe(probe(measure=counted, seeds=range(3)), Store(tmp_path)))
    list(run_probe(probe(measure=counted, seeds=range(5)), Store(tmp_path)))
    assert seen == [0, 1, 2, 3, 4]
    assert next(one.scores for one in analyse(Store(tmp_path)).quantities) == [2 + x for x in SPREAD[:5]]


def test_a_line_that_a_kill_cut_short_is_measured_again(tmp_path):
    list(run_probe(probe(), Store(tmp_path)))
    path = tmp_path / "measurements.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert [row["seed"] for row in run_probe(probe(), Store(tmp_path))] == [5]
    assert len(path.read_bytes().splitlines()) == 6


def scaled(factor):
    return lambda seed: {"number": factor * (seed + 1)}


def test_changed_code_is_refused_kept_or_measured_again(tmp_path):
    def measured(factor, seeds, **how):
        rows = list(run_probe(probe(measure=scaled(factor), seeds=range(seeds)), Store(tmp_path), **how))
        [number] = analyse(Store(tmp_path)).quantities
        return [row["seed"] for row in rows], number.scores

    assert measured(2, 2) == ([0, 1], [2, 4])
    with pytest.raises(UserError, match=r"2 results made by code .*\n.*scaled\.<locals>\.<lambda>\.factor \(changed\)"):
        measured(3, 2)
    assert measured(3, 3, on_code_change="keep") == ([2], [2, 4, 9])
    assert measured(3, 3) == ([], [2, 4, 9])
    assert measured(5, 3, on_code_change="retrain") == ([0, 1, 2], [5, 10, 15])
    assert len((tmp_path / "measurements.jsonl").read_text().splitlines()) == 6


def test_measurements_are_identified_by_user_code_and_the_packages_semantics(monkeypatch):
    names = [code_digests([scaled(factor)]) for factor in (2, 2, 3)]
    same, again, other = map(measured_by, names)
    assert same == again != other
    monkeypatch.setattr("flaxformer.SEMANTICS", "another")
    assert measured_by(names[0]) != same


def test_an_exact_number_needs_one_seed_and_has_no_deviation(tmp_path):
    facts = {"zero": 0.0, "seven": 7.0}
    claims = [
        Claim("it is zero", equal=quantity("zero"), to=0, within=1e-12),
        Claim("it is below five", lower=quantity("seven"), than=5),
    ]
    analysis, _ = judged(tmp_path, measure=lambda seed: facts, seeds=[0], exact=True, claims=claims)
    zero, below = (one.judgement for one in analysis.claims)
    assert (zero.verdict, below.verdict) == ("supported", "refuted")
    assert (zero.effect.low, zero.effect.high) == (0, 0)
    assert not analysis.limits
    inexact, _ = judged(tmp_path / "inexact", measure=lambda seed: facts, seeds=[0], claims=claims)
    assert [one.judgement.verdict for one in inexact.claims] == ["inconclusive"] * 2


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (Claim("c", equal=quantity("too"), to=2, within=1), "names the quantity 'too'; did you mean 'two'"),
        (Claim("c", higher=quantity("two"), than=quantity("four")), "'four'"),
    ],
)
def test_a_claim_about_what_is_not_measured_is_refused(tmp_path, claim, message):
    with pytest.raises(UserError, match=re.escape(message)):
        list(run_probe(probe(claims=[claim]), Store(tmp_path)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "../up"}, "study name is '../up'"),
        ({"seeds": [1, 1]}, "seeds are (1, 1)"),
        ({"claims": [Claim("c", lower={"norm": "pre"}, than={"norm": "post"})]}, "expected {'quantity': NAME}"),
        (
            {"claims": [Claim("c", lower=quantity("two"), than=1, where={"norm": "pre"})]},
            "a quantity without other labels",
        ),
    ],
)
def test_a_mistaken_probe_is_refused(changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        probe(**changes)


def test_a_probe_has_a_report_and_tables(tmp_path):
    store = Store(tmp_path)
    list(run_probe(probe(claims=[Claim("two is 2", equal=quantity("two"), to=2, within=0.5)]), store))
    write(store)
    assert "two is 2" in (tmp_path / "report.html").read_text()
    numbers = pl.read_parquet(tmp_path / "quantities.parquet")
    assert numbers.filter(pl.col("quantity") == "two")["value"].to_list() == [2 + x for x in SPREAD]


def largest_weight(params, run):
    """The largest weight, and what the learning rate is."""
    return {
        "largest": jnp.stack([jnp.abs(weight).max() for weight in [params.embedding.tokens]]).max(),
        "step_size": run.optimizer.learning_rate,
    }


def gain(rows):
    """How much a high rate gains over a low one, and a name of an arm."""
    return {"gain": rows["rate=low"]["validation_loss"] - rows["rate=high"]["validation_loss"]}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A study that measures its models, and derives a number of two arms."""
    root = tmp_path_factory.mktemp("measured")
    study = tiny(
        axes=(RATE,),
        measure=largest_weight,
        metric="largest",
        metric_unit="of weight",
        derive=gain,
        claims=[
            Claim("the largest weight grows with the rate", higher={"rate": "high"}, than={"rate": "low"}),
            Claim("a high rate gains", higher=quantity("gain"), than=0),
        ],
    )
    list(run(study, Execution(output=root)))
    return study, Store(root)


@pytest.mark.slow
def test_a_study_measures_its_models_at_every_evaluation(measured):
    _, store = measured
    rows = store.rows()
    assert len(rows) == 6
    for row in rows.values():
        assert len(row["largest_curve"]) == 3
        assert row["largest_curve"][0] == row["initial_largest"]
        assert row["largest_curve"][-1] == row["largest"] != row["initial_largest"]
        np.testing.assert_allclose(row["step_size"], {"low": 1e-3, "high": 1e-2}[row["rate"]], rtol=1e-6)


@pytest.mark.long
def test_arms_are_compared_by_what_is_measured(measured):
    _, store = measured
    analysis, rows = analyse(store), store.rows()
    differences = [
        rows[f"rate=high,seed={seed}"]["largest"] - rows[f"rate=low,seed={seed}"]["largest"] for seed in range(3)
    ]
    assert analysis.claims[0].differences == differences
    assert analysis.claims[0].unit == "of weight"


def test_derived_numbers_come_from_all_runs_of_a_seed(measured):
    _, store = measured
    rows, analysis = store.rows(), analyse(store)
    gains = [
        rows[f"rate=low,seed={seed}"]["validation_loss"] - rows[f"rate=high,seed={seed}"]["validation_loss"]
        for seed in range(3)
    ]
    assert analysis.claims[1].differences == gains
    assert [one.labels for one in analysis.quantities] == [quantity("gain")]


def test_a_study_that_no_longer_measures_its_models_is_refused(measured):
    study, store = measured
    other = tiny(axes=(RATE,), claims=())
    with pytest.raises(UserError, match=r"9 results of 2 arms(.|\n)* \(removed\)\n"):
        declare(store, declaration(other))
    declare(store, declaration(study))


def test_a_mistaken_claim_or_metric_is_refused():
    with pytest.raises(UserError, match="metric is 'largest'; expected validation_loss or validation_accuracy"):
        tiny(metric="largest")
    with pytest.raises(UserError, match="the study has no derive"):
        tiny(claims=[Claim("c", higher=quantity("gain"), than=0)])
    with pytest.raises(UserError, match="has more_than_where and compares with the number 0"):
        Claim("c", higher=quantity("gain"), than=0, more_than_where={"norm": "pre"})


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (lambda params, run: {"rate": 1.0}, "measure returns 'rate', which is the name of another column"),
        (lambda params, run: {"seed": 1.0}, "measure returns 'seed'"),
        (lambda params, run: {"x_curve": 1.0}, "measure returns 'x_curve'"),
        (lambda params, run: {"table": params.embedding.tokens}, "'table' of shape [6, 8]; expected a scalar"),
        (lambda params, run: {"largest_gain": 1.0}, "metric is 'larger_gain'"),
    ],
)
def test_a_mistaken_measurement_is_refused_before_anything_runs(measure, message):
    study = tiny(claims=(), measure=measure, metric="larger_gain" if "larger" in message else "validation_loss")
    with pytest.raises(UserError, match=re.escape(message)):
        declaration(study)
