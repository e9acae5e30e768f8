"""Effects of single changes against differences in NumPy, their speeds, and every form of the report that has them."""

import io
import json
import math
import re

import numpy as np
import polars as pl
import pytest
from report.test_cost_report import with_costs
from rich.console import Console
from study.tiny import BASELINE, NORM, RATE, fill, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.components import POST, RMSNorm
from flaxformer.report import effect_tables, figures, phrasing
from flaxformer.report.as_json import study_json
from flaxformer.report.files import write
from flaxformer.report.terminal import MOST_EFFECTS, show_answer
from flaxformer.study import Axis, Claim, leave_one_out

FEATURES = {
    "QK norm": {"model.attention.query_key_norm": RMSNorm()},
    "rate": {"optimizer.learning_rate": 1e-2},
    "post": {"model.norm": POST},
    "warm-up": {"optimizer.warmup_steps": 3},
}
SEEDS = range(6)


def drawn(names, seed):
    """A loss without any structure, of the features that an arm has."""
    numbers = [1 + sorted(FEATURES).index(name) for name in sorted(names)]
    return float(np.random.default_rng([7, seed, *numbers]).normal(2.0, 0.1))


def loss(trial):
    return drawn([name for name, label in trial.arm.labels.items() if label == "with"], trial.seed)


def score(params, run):
    return {"score": params.embedding.tokens.mean()}


def losses(*names):
    return np.array([drawn(names, seed) for seed in SEEDS])


def study(n=4, **changes):
    return leave_one_out(BASELINE, dict(list(FEATURES.items())[:n]), name="tiny", seeds=SEEDS, **changes)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_effects_are_differences_and_interactions_differences_of_differences(tmp_path, n):
    declared = study(n)
    changes = {change.name: change for change in analyse(fill(tmp_path, declared, loss)).changes}
    names = [axis.name for axis in declared.axes]
    within = {name: losses(*{*names} - {name}) - losses(*names) for name in names}
    alone = {name: losses() - losses(name) for name in names}
    total = losses() - losses(*names)
    expected = {name: (within[name], alone[name], within[name] - alone[name]) for name in names}
    sums = sum(within.values()), sum(alone.values())
    expected["all together"] = total, total, None
    expected["sum of the effects"] = *sums, sums[0] - sums[1]
    expected["all beyond the sum"] = total - sums[0], total - sums[1], None
    assert changes.keys() == expected.keys()
    for name, values in expected.items():
        found = [changes[name].within, changes[name].alone, changes[name].interaction]
        for effect, differences in zip(found, values, strict=True):
            if differences is None:
                assert effect.metric.n == 0
            else:
                assert effect.metric.mean == pytest.approx(differences.mean())
                assert effect.metric.sd == pytest.approx(differences.std(ddof=1))
                assert effect.metric.low < differences.mean() < effect.metric.high
    singles = [change.within.metric.mean for change in changes.values() if change.is_single]
    assert singles == sorted(singles, reverse=True)


def test_an_interaction_has_the_interval_of_the_claim_about_it(tmp_path):
    others = {"rate": "with", "post": "with", "warm-up": "with"}
    plain = dict.fromkeys(others, "without")
    with_norm, without = {"QK norm": "with"}, {"QK norm": "without"}
    claim = Claim("it helps the whole more", lower=with_norm, than=without, where=others, more_than_where=plain)
    analysis = analyse(fill(tmp_path, study(claims=[claim]), loss))
    [change] = [change for change in analysis.changes if change.name == "QK norm"]
    assert change.interaction.metric == analysis.claims[-1].judgement.effect
    [removal] = [claim for claim in analysis.claims if claim.text == "removing QK norm from the whole is worse"]
    assert change.within.metric == removal.judgement.effect


def test_a_missing_run_leaves_its_seed_out_of_what_it_belongs_to(tmp_path):
    store = fill(tmp_path, study(), loss)
    whole = ",".join(f"{name}=with" for name in sorted(FEATURES))
    store.remove_rows([f"{whole},seed=2"])
    for change in analyse(store).changes[: len(FEATURES)]:
        assert [part.metric.n for part in (change.within, change.alone, change.interaction)] == [5, 6, 5]
        kept = np.delete(losses(*{*FEATURES} - {change.name}) - losses(*FEATURES), 2)
        assert change.within.metric.mean == pytest.approx(kept.mean())


def test_a_higher_accuracy_is_a_positive_effect(tmp_path):
    store = fill(tmp_path, study(2, metric="score", goal="higher", measure=score), loss)
    change = next(change for change in analyse(store).changes if change.name == "rate")
    assert change.alone.metric.mean == pytest.approx((losses("rate") - losses()).mean())


def test_one_factor_studies_have_effects_alone_and_others_none(tmp_path):
    rates = Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2, "top": 1e-1}, name="rate")
    size = {"low": 2.0, "high": 1.5, "top": 1.75}

    def by_level(trial):
        return size[trial.arm.labels["rate"]] + 0.125 * (trial.arm.labels["norm"] == "post")

    declared = tiny(axes=(NORM, rates), combine="one-factor", claims=())
    analysis = analyse(fill(tmp_path / "one", declared, by_level))
    found = [(change.name, change.alone.metric.mean, change.within.metric.n) for change in analysis.changes]
    assert found == [("rate high", 0.5, 0), ("rate top", 0.25, 0), ("norm post", -0.125, 0)]
    assert effect_tables.effects(analysis).in_form("page").header == ["change", "alone"]
    assert analyse(fill(tmp_path / "product", tiny(axes=(NORM, RATE)), lambda trial: 2.0)).changes == []


def timed(root, device):
    """Changes by name; a run with QK norm takes 1.5 times as long, on that device."""

    def slower(trial):
        return {"seconds": 4.5, "device": device} if trial.arm.labels["QK norm"] == "with" else {}

    return {change.name: change for change in analyse(with_costs(root, study(2), loss, slower)).changes}


def test_the_speed_of_a_step_is_the_ratio_of_seconds_on_one_kind_of_device(tmp_path):
    by_name, gpu = timed(tmp_path / "a", "cpu:1"), timed(tmp_path / "b", "gpu:0")
    for effect in (by_name["QK norm"].within, by_name["QK norm"].alone):
        assert effect.step.ratio == pytest.approx(1 / 1.5)
        assert effect.speeds["time"].ratio == pytest.approx(effect.speeds["compute"].ratio / 1.5, rel=0.05)
    assert by_name["rate"].alone.step.ratio == 1.0
    assert gpu["QK norm"].alone.step is gpu["QK norm"].alone.speeds["time"] is None
    assert gpu["QK norm"].alone.speeds["compute"] is not None


def test_the_table_the_terminal_and_programs_have_the_effects(tmp_path):
    analysis = analyse(with_costs(tmp_path, study(), loss))
    table = effect_tables.effects(analysis).in_form("markdown")
    assert [row[0] for row in table.rows][-3:] == ["all together", "sum of the effects", "all beyond the sum"]
    marks = [cell[-1] for row in table.rows[:4] for cell in row[1:3]]
    assert sorted(marks) == sorted(phrasing.MARKS[claim.judgement.verdict] for claim in analysis.claims)
    data = json.loads(json.dumps(study_json(analysis, tmp_path), allow_nan=False))["effects"]
    assert [item["change"] for item in data] == [change.name for change in analysis.changes]
    assert data[0]["within"]["mean"] == pytest.approx(analysis.changes[0].within.metric.mean)
    assert data[0]["alone"]["speed_ups"]["step"]["ratio"] == pytest.approx(1.0)
    out = io.StringIO()
    show_answer(Console(file=out, width=80), analysis)
    text = out.getvalue()
    assert all(row[0] in text and row[1] in text and row[2] in text for row in table.rows)
    assert "Of 8 claims, after Holm:" in text
    assert len(text.splitlines()) <= 24


def test_a_claim_that_was_declared_after_its_data_has_no_verdict_in_the_table(tmp_path):
    fill(tmp_path, study(2, removing=False, adding=False), loss)
    analysis = analyse(fill(tmp_path, study(2), loss, missing_only=True))
    rows = effect_tables.effects(analysis).in_form("page").rows
    assert {cell[-1] for row in rows[:2] for cell in row[1:3]} == {"·"}


@pytest.mark.long
def test_the_files_of_the_report_have_the_effects(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "METADATA", {"svg": figures.METADATA["svg"]})
    analysis = write(with_costs(tmp_path, study(), loss))
    written = (tmp_path / "results.md").read_text()
    rows = effect_tables.effects(analysis).in_form("markdown").rows
    assert all("| " + " | ".join(row) + " |" in written for row in rows)
    assert "### Effects on the cost" in written
    assert (tmp_path / "figures/effects.svg").exists()
    assert "all but QK norm" in (tmp_path / "figures/arms.svg").read_text()
    file = pl.read_parquet(tmp_path / "tables/effects.parquet")
    assert file["change"].to_list() == [change.name for change in analysis.changes]
    assert file["interaction"].to_list()[0] == pytest.approx(analysis.changes[0].interaction.metric.mean)
    assert file["alone_step_ratio"].to_list()[0] == pytest.approx(1.0)


@pytest.mark.long
@pytest.mark.parametrize("kept", [1, 5, 13, 59])
def test_an_incomplete_study_has_a_report(tmp_path, kept, monkeypatch):
    monkeypatch.setattr(figures, "METADATA", {"svg": figures.METADATA["svg"]})
    store = fill(tmp_path, study(), loss)
    names = list(store.rows())
    store.remove_rows([*np.random.default_rng(kept).permutation(names)][kept:])
    analysis = write(store)
    assert len(analysis.changes) == len(FEATURES) + 3 <= MOST_EFFECTS
    assert not re.search(r"\bnan\b", (tmp_path / "results.md").read_text().lower())
    json.dumps(study_json(analysis, tmp_path), allow_nan=False)
    assert all(math.isfinite(c.alone.metric.mean) == (c.alone.metric.n > 0) for c in analysis.changes)
