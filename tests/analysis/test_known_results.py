"""Results that are known before a claim: by configuration and seed, whatever arms, metrics and functions are called."""

from unittest import mock

import pytest
from study.tiny import NORM, RATE, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.report import verdicts
from flaxformer.report.files import write
from flaxformer.store import declaration_log
from flaxformer.store.declaration import Recipe
from flaxformer.store.declarations import declare
from flaxformer.store.log_entries import configuration_digest, recipe_digest
from flaxformer.store.store import Store
from flaxformer.study import Axis, Claim
from flaxformer.study.plan import declaration

RATES = {0.001: 2.0, 0.01: 2.3}
WORSE = Claim("high is worse", higher={"rate": "high"}, than={"rate": "low"})
GAP = Claim("the gap is positive", higher={"quantity": "gap"}, than=0.0)


def loss(trial):
    """A loss that depends on the configuration and the seed alone: the low rate is better at every seed."""
    rate = trial.run.optimizer.learning_rate
    return RATES[rate] + 0.01 * (trial.seed % 3) * (1 + (rate > 0.005))


def score(params, run):
    return {"score": params.embedding.tokens.mean() + run.optimizer.learning_rate}


def shifted(params, run):
    return {"score": params.embedding.tokens.mean() + 3 * run.optimizer.learning_rate}


def renamed_score(params, run):
    return {"points": params.embedding.tokens.mean() + run.optimizer.learning_rate}


def gap(rows):
    high, low = sorted(rows.values(), key=lambda row: -row["validation_loss"])[:2]
    return {"gap": high["validation_loss"] - low["validation_loss"]}


def squared_gap(rows):
    return {"gap": gap(rows)["gap"] ** 2}


def study(claim=WORSE, **changes):
    return tiny(**{"axes": (RATE,), "seeds": range(6), "claims": (claim,)} | changes)


def renamed(first, second, name="rate", kind="higher"):
    axis = Axis("optimizer.learning_rate", {first: 1e-3, second: 1e-2}, name=name)
    claim = Claim("high is worse", **{kind: {name: second}}, than={name: first})
    return study(claim, axes=(axis,))


FLIPPED = Claim("high is better", lower={"rate": "high"}, than={"rate": "low"})
TWO = (Axis("model.layers", {"1": 1}), RATE)
OTHER_RATES = Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2, "top": 1e-1}, name="rate")
BENT = {
    "labels": (study(), renamed("x", "y")),
    "labels, claim flipped": (study(), renamed("x", "y", kind="lower")),
    "axis": (study(), renamed("low", "high", name="pace")),
    "axis, labels swapped": (study(), renamed("high", "low", name="pace")),
    "another axis of one level": (study(), study(axes=TWO)),
    "order of axes": (study(axes=TWO), study(FLIPPED, axes=TWO[::-1])),
    "text": (study(), study(Claim("worse, it is", higher={"rate": "high"}, than={"rate": "low"}))),
    "metric": (study(), study(metric="validation_accuracy")),
    "measure": (study(metric="score", measure=score), study(metric="score", measure=shifted)),
    "metric renamed": (study(metric="score", measure=score), study(metric="points", measure=renamed_score)),
    "derive": (study(GAP, derive=gap), study(GAP, derive=squared_gap)),
    "derive, labels": (study(GAP, derive=gap), renamed("x", "y")),
    "derive, arm added": (study(GAP, derive=gap), study(GAP, derive=gap, axes=(OTHER_RATES,))),
    "number of derive": (study(), study(GAP, derive=gap)),
}
RATES[0.1] = 1.0


CODE = ("measure", "metric renamed", "derive")


@pytest.mark.every(2, "long")
@pytest.mark.every(5)
@pytest.mark.parametrize(("name", "how"), [*((name, "retrain") for name in BENT), *((name, "keep") for name in CODE)])
def test_a_claim_about_known_results_is_exploratory_and_the_former_verdict_is_shown(tmp_path, name, how):
    before, after = BENT[name]
    former = analyse(fill(tmp_path, before, loss)).claims[0]
    assert not former.is_exploratory
    assert former.judgement.verdict != "inconclusive"
    analysis = analyse(fill(tmp_path, after, loss, how, missing_only=True))
    [claim], [withdrawn] = analysis.claims, analysis.withdrawn
    assert claim.is_exploratory, verdicts.when_declared(claim)
    assert (withdrawn.text, withdrawn.differences) == (former.text, former.differences)
    assert withdrawn.judgement.verdict == former.judgement.verdict
    answer = verdicts.verdict(analysis)
    assert "No claim was declared before its data." in answer
    assert f"Withdrawn after its data: {former.text} ({former.judgement.verdict}" in answer


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("name", ["labels", "measure", "derive", "metric"])
def test_results_that_were_set_aside_or_left_behind_stay_known(tmp_path, name):
    """The claim is declared only after a declaration without any claim and without its results."""
    before, after = BENT[name]
    fill(tmp_path, before, loss)
    store = Store(tmp_path)
    for own in (tiny(axes=(NORM,), seeds=range(6), claims=()), after):
        with store.locked():
            declare(store, declaration(own), "retrain")
    assert analyse(store).claims[0].is_exploratory


def test_a_kill_after_results_were_set_aside_does_not_make_them_unknown(tmp_path):
    """The process is killed between the move of the rows and the entry of the log."""
    before, after = BENT["measure"]
    store = fill(tmp_path, before, loss)
    with mock.patch.object(declaration_log, "declare", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        fill(tmp_path, after, loss, "retrain")
    assert not store.rows()
    assert analyse(fill(tmp_path, after, loss, "retrain")).claims[0].is_exploratory


def test_a_log_and_a_head_of_an_earlier_time_are_detected(tmp_path):
    store = fill(tmp_path, study(), loss)
    names = (declaration_log.NAME, declaration_log.HEAD)
    earlier = {name: (tmp_path / name).read_bytes() for name in names}
    with store.locked():
        declare(store, declaration(study(FLIPPED)))
    for name, data in earlier.items():
        (tmp_path / name).write_bytes(data)
    assert analyse(store).log_faults == ["study.json was written under a declaration that is not in the log"]


@pytest.mark.long
def test_a_withdrawn_claim_of_a_renamed_arm_has_a_report(tmp_path):
    fill(tmp_path, study(), loss)
    for own in (renamed("x", "y"), study(), renamed("low", "top")):
        store = fill(tmp_path, own, loss)
        analysis = write(store)
        assert (tmp_path / "report.html").exists()
        assert all(claim.judgement.verdict == "supported" for claim in analysis.withdrawn)


def test_a_new_arm_or_fresh_seeds_are_not_known(tmp_path):
    fill(tmp_path, study(), loss)
    top = Claim("top is better", lower={"rate": "top"}, than={"rate": "low"})
    new = study(top, axes=(OTHER_RATES,))
    assert verdicts.when_declared(analyse(fill(tmp_path, new, loss)).claims[0]).startswith(
        "before its data (6 of its 12"
    )
    fresh = analyse(fill(tmp_path, study(top, axes=(OTHER_RATES,), seeds=range(6, 12)), loss))
    assert [claim.is_exploratory for claim in fresh.claims] == [False]
    assert fresh.further_seeds.sets == [(*range(6),)]


def test_a_configuration_is_that_of_the_class_whatever_module_code_and_data_it_has():
    run = {"kind": "Run", "optimizer": {"kind": "heads.Own", "rate": 1.0}}
    recipe = Recipe(run=run, data={}, semantics=1)
    run = {"optimizer": {"rate": 1.0, "kind": "heads2.Own"}, "kind": "Run"}
    other = Recipe(run=run, semantics=2, data={"x": "y"}, code={"a": "b"})
    assert configuration_digest(recipe) == configuration_digest(other)
    assert recipe_digest(recipe) != recipe_digest(other)
    other.run["optimizer"]["rate"] = 2.0
    assert configuration_digest(recipe) != configuration_digest(other)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("sets", [2, 9])
def test_every_set_of_seeds_that_was_left_behind_is_counted(tmp_path, sets):
    for n in range(sets):
        store = fill(tmp_path, study(seeds=range(6 * n, 6 * n + 6)), loss)
    analysis = analyse(store)
    count = f"{sets - 1} further {'set of seeds was' if sets == 2 else 'sets of seeds were'} tried"
    assert verdicts.verdict(analysis).endswith(f"{count}.")
    assert any(limit.startswith(f"{count} (0 to 5") for limit in analysis.limits)
    assert (
        verdicts.when_declared(analysis.claims[0]) == f"before its data; {12 * (sets - 1)} pilot results at other seeds"
    )


def test_seeds_that_had_no_result_or_are_still_declared_are_not_left_behind(tmp_path):
    store = Store(tmp_path)
    with store.locked():
        declare(store, declaration(study(seeds=range(50, 60))))
    fill(tmp_path, study(seeds=range(4)), loss)
    assert not analyse(fill(tmp_path, study(seeds=range(8)), loss)).further_seeds.sets
    assert analyse(fill(tmp_path, study(seeds=range(2, 9)), loss)).further_seeds.sets == [(*range(4),), (*range(8),)]


def test_seeds_left_behind_under_other_labels_are_counted_too(tmp_path):
    fill(tmp_path, study(), loss)
    own = renamed("x", "y")
    analysis = analyse(fill(tmp_path, study(own.claims[0], axes=own.axes, seeds=range(10, 16)), loss))
    assert not analysis.claims[0].is_exploratory
    assert (analysis.further_seeds.sets, analysis.further_seeds.results) == ([(*range(6),)], 12)
