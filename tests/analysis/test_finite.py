"""Numbers that are not finite: they have no score wherever scores are read, and their seeds are named."""

import dataclasses
import io
import math

import pytest
from analysis.test_sweep import RATES
from msgspec.structs import replace
from rich.console import Console
from study.tiny import NORM, RATE, tiny

from flaxformer.analysis import tuned_value
from flaxformer.analysis.analysis import analyse
from flaxformer.analysis.scaling_fit import MetricRange, SizePoint, fit_arm
from flaxformer.report import verdicts
from flaxformer.report.files import write
from flaxformer.report.terminal import show
from flaxformer.runner.launch import derive_numbers
from flaxformer.runner.rungs import survivors
from flaxformer.statistics.finite import WithoutValue
from flaxformer.store.declarations import declare
from flaxformer.store.rows import Row
from flaxformer.store.store import Store
from flaxformer.study import Claim, Halving
from flaxformer.study.divergence import CountedRow, curve_of, score
from flaxformer.study.plan import declaration
from flaxformer.system.errors import UserError

NOT_FINITE = [math.nan, math.inf, -math.inf, 1e101]
LOST = (3, 5)
HIGHER = Claim("high is higher than low", higher={"rate": "high"}, than={"rate": "low"})
SENTENCE = "2 of 8 seeds have no finite value of score: seeds 3, 5"


def row_of(trial, score, **changes):
    """A sound run whose metric `score` was 100 before training."""
    fields = {
        "trial": trial.name,
        "group": "all",
        "seed": trial.seed,
        "status": "done",
        "evaluated_at": [0, 3, 6],
        "labels": trial.arm.labels,
        "metrics": {"validation_loss": 1.0, "initial_validation_loss": 9.0, "score": score, "initial_score": 100.0},
        "curves": {"validation_loss": [9.0, 2.0, 1.0], "score": [100.0, score, score]},
    }
    return Row(**fields | changes)


def fill(root, study, score, **changes):
    """A folder of finished runs with these values of `score`."""
    store = Store(root)
    with store.locked():
        entry = declare(store, declaration(study)).declaration
        for trial in study.trials():
            store.append("all", row_of(trial, score(trial), declaration=entry, **changes))
        store.finish("all")
    return store


def scored(**changes):
    """A study of a number that `measure` returns."""
    defaults = {"metric": "score", "measure": lambda params, run: {"score": 0.0}, "seeds": range(8), "goal": "higher"}
    return tiny(**defaults | {"axes": (RATE,), "claims": (HIGHER,)} | changes)


def value(trial, lost, at=LOST):
    """A score that is higher by about 1 with the high rate, and not finite there at some seeds."""
    is_high = trial.arm.labels["rate"] == "high"
    return lost if is_high and trial.seed in at else float(is_high) + 0.01 * (trial.seed * 7 % 5) * (1 + is_high)


def shown(analysis):
    """What the terminal shows."""
    text = io.StringIO()
    show(Console(width=400, file=text), analysis)
    return text.getvalue()


@pytest.mark.every(4, "long")
@pytest.mark.parametrize("lost", NOT_FINITE)
def test_a_metric_of_a_sound_run_that_is_not_finite_is_no_score_and_its_seeds_are_named_everywhere(tmp_path, lost):
    store = fill(tmp_path, scored(), lambda trial: value(trial, lost))
    analysis = write(store)
    [claim] = analysis.claims
    kept = [seed for seed in range(8) if seed not in LOST]
    expected = [1.0 + 0.01 * (seed * 7 % 5) for seed in kept]
    assert claim.differences == pytest.approx(expected)
    assert claim.judgement.verdict == "supported"
    assert (claim.judgement.effect.n, analysis.missing, analysis.divergence[0]) == (6, 0, 0)
    high = next(arm for arm in analysis.arms if arm.labels["rate"] == "high")
    assert high.scores[3] is None
    assert high.not_finite == LOST
    assert [one.n for one in high.curve("score")[1]] == [8, 6, 6]
    limit = "2 of 8 seeds have no finite value of score with rate high: seeds 3, 5; they are left out."
    assert limit in analysis.limits
    for text in (shown(analysis), (tmp_path / "report.html").read_text(), (tmp_path / "results.md").read_text()):
        assert SENTENCE in text
        assert limit in text


@pytest.mark.every(4, "long")
@pytest.mark.parametrize("lost", NOT_FINITE)
def test_an_arm_without_any_finite_value_has_no_verdict_and_the_reason_is_given(tmp_path, lost):
    analysis = write(fill(tmp_path, scored(), lambda trial: value(trial, lost, range(8))))
    [claim] = analysis.claims
    assert (claim.judgement.verdict, claim.judgement.can_decide, analysis.missing) == ("inconclusive", False, 0)
    text = (tmp_path / "results.md").read_text()
    assert "no seed has a finite score in every run compared" in text
    assert "8 of 8 seeds have no finite value of score: seeds 0, 1, 2, 3, 4, 5, 6, 7" in text
    assert "no seed has a finite score" in shown(analysis)


@pytest.mark.parametrize("first", NOT_FINITE)
def test_a_run_that_diverged_counts_with_its_metric_before_training_if_that_is_finite(first):
    [trial, *_] = scored().trials()
    one = row_of(trial, math.nan, status="diverged", diverged_at=2)
    assert score(one, "score") == 100.0
    assert curve_of(one, "score") == [100.0, 100.0, 100.0]
    metrics = {**one.metrics, "initial_score": first}
    assert score(row_of(trial, 1.0, status="diverged", diverged_at=2, metrics=metrics), "score") is None


@pytest.mark.every(5, "long")
@pytest.mark.parametrize("lost", NOT_FINITE)
@pytest.mark.parametrize(
    "derive",
    [
        lambda rows: {"gap": rows["rate=high"]["score"] - rows["rate=low"]["score"]},
        lambda rows: {"gap": min(rows["rate=low"]["score"], rows["rate=high"]["score"])},
        lambda rows: {"gap": float(rows["rate=high"].metrics["score"] > 0.5)},
        lambda rows: {"gap": 1 / rows["rate=high"].get("score")},
        lambda rows: {"gap": max(one["score"] for one in map(dict, rows.values()))},
    ],
    ids=["difference", "minimum", "comparison", "reciprocal", "copy"],
)
def test_nothing_is_derived_from_a_number_that_is_not_finite(tmp_path, derive, lost):
    study = scored(derive=derive, claims=(Claim("gap", higher={"quantity": "gap"}, than=0),))
    store = fill(tmp_path, study, lambda trial: value(trial, lost))
    with store.locked():
        identity = store.declaration.measured_by
        rows = [{"measured_by": identity} | row for row in derive_numbers(study, store.rows())]
        store.replace_measurements(rows, identity)
    analysis = analyse(store)
    [claim] = analysis.claims
    assert claim.judgement.effect.n == 6
    assert "2 of 8 seeds have no finite value of gap: seeds 3, 5" in verdicts.qualifications(claim)
    assert "2 of 8 seeds have no finite value of gap: seeds 3, 5; they are left out." in analysis.limits
    assert not any(text.startswith("Measurements at") for text in analysis.limits)


def test_what_derive_does_not_read_changes_nothing():
    [trial, *_] = scored().trials()
    row = CountedRow.of(row_of(trial, math.nan))
    assert (row["validation_loss"], row.metrics["validation_loss"], row["seed"]) == (1.0, 1.0, trial.seed)
    assert not row.metrics.unscored
    assert math.isnan(row["score"])
    assert row.metrics.unscored == {"score"}


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("lost", NOT_FINITE)
@pytest.mark.parametrize("goal", ["lower", "higher"])
def test_an_arm_with_a_score_that_is_not_finite_is_never_chosen(tmp_path, goal, lost):
    """The arm that would be the best by its other seeds has one such score."""
    best = {"lower": "3e-04", "higher": "1e-02"}[goal]

    def level(trial):
        is_lost = trial.arm.labels["rate"] == best and trial.seed == 1
        return lost if is_lost else math.log(trial.run.optimizer.learning_rate) + 0.01 * trial.seed

    rates = dict(list(RATES.levels.items())[1:5])
    axis = type(RATES)(RATES.paths[0], rates, name="rate")
    study = scored(axes=(axis,), seeds=range(2), claims=(), goal=goal)
    store = fill(tmp_path, study, level)
    second = {"lower": 1e-3, "higher": 3e-3}[goal]
    assert tuned_value(tmp_path, "optimizer.learning_rate", seeds=[7]) == second
    assert analyse(store).sweeps[0].lines[0].best.numbers == {"rate": second}
    halved = scored(axes=(axis,), seeds=range(2), claims=(), halving=Halving(factor=2, first=3, goal=goal))
    chosen = {arm.labels["rate"] for arm in survivors(halved, halved.arms(), store.rows())}
    assert best not in chosen
    assert len(chosen) == 2
    assert survivors(halved, halved.arms()[:1], {name: row_of(trial, lost) for name, trial in named(halved)}) == []


def named(study):
    return [(trial.name, trial) for trial in study.trials()]


@pytest.mark.parametrize("lost", NOT_FINITE)
def test_tuning_refuses_a_study_without_a_finite_score(tmp_path, lost):
    fill(tmp_path, scored(claims=(), seeds=range(2)), lambda trial: lost)
    with pytest.raises(UserError, match="with a finite score at every seed"):
        tuned_value(tmp_path, "optimizer.learning_rate", seeds=[7])


@pytest.mark.parametrize("lost", NOT_FINITE)
def test_a_scaling_law_leaves_the_seed_out(tmp_path, lost):
    """The law is that of the other seeds."""
    sizes = [10.0, 40.0, 160.0, 640.0, 2560.0]
    axis = type(RATES)(RATES.paths[0], {str(i): 10.0 ** (i - 5) for i in range(5)}, name="rate")

    def law(trial):
        i = int(trial.arm.labels["rate"])
        curve = 1 + 5 * sizes[i] ** -0.5 + 0.01 * math.sin(7 * i + 3 * trial.seed)
        return lost if (i, trial.seed) == (2, 3) else curve

    study = scored(axes=(axis,), claims=(), goal="lower", seeds=range(6))
    arms = analyse(fill(tmp_path, study, law)).arms
    points = [SizePoint(str(i), sizes[i], arm, False) for i, arm in enumerate(arms)]
    fitted = fit_arm({}, "flops", points, list(range(6)), MetricRange(True))
    assert fitted.seeds == (0, 1, 2, 4, 5)


@pytest.mark.parametrize("lost", NOT_FINITE)
def test_other_evaluations_are_named_too(tmp_path, lost):
    study = tiny(axes=(NORM,), claims=(), seeds=range(4))
    store = fill(tmp_path, study, lambda trial: lost if trial.seed == 2 else 1.0)
    analysis = analyse(store)
    analysis = dataclasses.replace(analysis, study=replace(analysis.study, evaluation_columns=("score",)))
    assert "1 of 4 seeds has no finite value of score with norm pre: seed 2; they are left out." in analysis.limits


def test_a_sentence_names_a_bounded_number_of_seeds():
    many = WithoutValue("score", tuple(range(100)), 200)
    assert many.sentence.endswith("seeds 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …")
