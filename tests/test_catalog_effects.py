"""The studies of the catalog's effects: every mechanism has an arm, and the page shows the recorded results."""

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from flaxformer import replace_at
from flaxformer.catalog import mechanisms, variants
from flaxformer.store.declarations import declare
from flaxformer.store.rows import Row
from flaxformer.store.store import Store
from flaxformer.study.plan import declaration

FOLDER = Path(__file__).parents[1] / "experiments" / "catalog"


@pytest.fixture(scope="module")
def scripts():
    """The modules arms, effects and page, which import each other by name as scripts of one folder do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import arms
        import effects
        import page

        yield arms, effects, page
        for name in ("arms", "effects", "page"):
            del sys.modules[name]


def test_every_mechanism_of_the_catalog_is_an_arm_or_left_out_with_a_reason(scripts):
    arms, _, _ = scripts
    compared = set(arms.module_of_arms().values())
    assert compared | set(arms.LEFT_OUT) == set(mechanisms())
    assert not compared & set(arms.LEFT_OUT)


def test_labels_are_unique_and_tables_name_arms_and_variants_that_exist(scripts):
    arms, _, _ = scripts
    labels = [label for family in arms.arms_by_family().values() for label in family]
    assert len(labels) == len(set(labels))
    assert set(arms.NARANG) | set(arms.RATES) <= set(labels)
    names = {label for module in mechanisms() for label in variants(module)}
    assert set(arms.SIZES) | set(arms.LABELS) <= names


@pytest.mark.long
def test_every_family_of_every_task_is_declared(scripts):
    arms, effects, _ = scripts
    for task, comparison in effects.TASKS.items():
        for family in effects.families(task, effects.form_of(task, "small")):
            labels = [effects.BASELINE, *arms.arms_by_family()[family]]
            labels = [label for label in labels if label not in comparison.without]
            tuning = effects.rate_studies(task, "small", family)
            tuned = {arm.labels["arm"] for study in tuning.values() for arm in study._declared_arms}
            assert tuned == set(labels)
            study = effects.effect_study(task, "small", family, dict.fromkeys(labels, 0.01))
            assert len(study.claims) == len(labels) - 1
            assert not set(study.seeds) & set(effects.TUNING_SEEDS)


def test_the_page_shows_the_paired_differences_of_a_folder(scripts, tmp_path, monkeypatch):
    arms, effects, page = scripts
    monkeypatch.setitem(arms.CORE, "norms", {"RMSNorm": arms.CORE["norms"]["RMSNorm"]})
    monkeypatch.setattr(arms, "mechanisms", dict)
    rates = {effects.BASELINE: 0.01, "RMSNorm": 0.03}
    study = effects.effect_study("text", "small", "norms", rates)
    losses = {name: np.random.default_rng(i).normal(2.0 - 0.1 * i, 0.01, 5) for i, name in enumerate(rates)}
    record(tmp_path / study.name, study, losses)
    table, runs = page.collect(tmp_path, "text", "small")
    [row] = table.iter_rows(named=True)
    gains = losses[effects.BASELINE] - losses["RMSNorm"]
    assert row["effect"] == pytest.approx(gains.mean())
    assert row["low"] < gains.mean() < row["high"]
    assert (row["verdict"], row["rate"], row["steps"]) == ("supported", 0.03, 240)
    assert row["accuracy"] == pytest.approx(1 - losses["RMSNorm"].mean() / 10)
    assert runs.height == 10
    file = tmp_path / "recorded.parquet"
    others = pl.DataFrame(
        {"family": ["positions", "norms"], "arm": ["none", "RMSNorm"], "effect": [-0.3, 9.0], "p": [0.5, 1.0]}
    ).with_columns(p_holm=pl.lit(0.5), verdict=pl.lit("inconclusive"))
    others.write_parquet(file)
    merged = page.with_discoveries(page.add_to_recorded(table, file))
    assert merged["arm"].to_list() == ["RMSNorm", "none"]
    assert merged["q"].to_list() == pytest.approx([min(2 * row["p"], 0.5), 0.5])
    assert page.add_to_recorded(table, tmp_path / "absent.parquet").equals(table)


def test_an_arm_that_is_measured_again_takes_the_place_of_the_recorded(scripts, tmp_path):
    """Holm's method multiplies p-values of 0.02, 0.03 and 0.04 by 3, 2 and 1 after a smaller one."""
    _, effects, page = scripts
    rates = {effects.BASELINE: 0.01, "DyT": 0.01}
    study = effects.effect_study("text", "small", "norms", rates)
    assert [claim.text.partition(":")[0] for claim in study.claims] == ["DyT"]
    losses = {name: np.random.default_rng(i).normal(2.0 - 0.1 * i, 0.01, 5) for i, name in enumerate(rates)}
    record(tmp_path / study.name, study, losses)
    table, runs = page.collect(tmp_path, "text", "small")
    assert table["compared"].to_list() == ["DyT"]
    arms = ["RMSNorm", "none", "gated", "DyT"]
    recorded = pl.DataFrame({"arm": arms, "p": [0.02, 0.03, 0.04, 0.01], "p_holm": 0.04, "verdict": "supported"})
    recorded = recorded.with_columns(family=pl.lit("norms"), effect=pl.lit(-0.5))
    recorded.write_parquet(tmp_path / "effects.parquet")
    merged = page.with_discoveries(page.add_to_recorded(table, tmp_path / "effects.parquet"))
    assert merged["arm"].to_list()[0] == "DyT"
    assert merged["verdict"].to_list() == ["supported", *["inconclusive"] * 3]
    assert merged["p_holm"].to_list()[1:] == pytest.approx([0.06] * 3)
    old = pl.DataFrame({"arm": [effects.BASELINE, "DyT", "none"], "seed": 0}).with_columns(family=pl.lit("norms"))
    old.write_parquet(tmp_path / "runs.parquet")
    kept = page.add_to_recorded(runs, tmp_path / "runs.parquet").filter(pl.col("compared") == page.ALL)
    assert kept["arm"].to_list() == [effects.BASELINE, "none"]


def record(root, study, losses):
    """Write a folder of finished runs with these test losses per arm and seed; nothing is trained."""
    store = Store(root)
    with store.locked():
        declared = declare(store, declaration(study), "refuse")
    for trial in study.trials():
        loss = float(losses[trial.arm.labels["arm"]][trial.seed])
        row = Row(
            trial=trial.name,
            group="all",
            seed=trial.seed,
            status="done",
            fingerprint=declared.fingerprints[trial.name],
            declaration=declared.declaration,
            evaluated_at=[0, 120, 240],
            labels=trial.arm.labels,
            metrics={
                "validation_loss": loss,
                "test_loss": loss,
                "test_accuracy": 1 - loss / 10,
                "initial_validation_loss": 5.5,
            },
            curves={"validation_loss": [5.5, loss + 0.5, loss]},
            parameters=199_808,
            active_parameters=199_808,
            parameters_without_embeddings=183_424,
            flops_per_step=1.3e9,
            flops=240 * 1.3e9,
            training_tokens=240 * 1024,
            seconds=1.0,
        )
        store.append("all", row)
    store.finish("all")


def test_an_encoder_has_the_changes_of_its_decoder(scripts):
    _, effects, _ = scripts
    form = effects.form_of("spans", "small")
    assert effects.baseline_run("text", form).model.encoder is None
    base = effects.baseline_run("spans", form).model
    assert base.layers == base.encoder.layers == 4
    assert base.encoder.inputs.shared
    changes = {"model.feed_forward.activation": "gelu", "model.layers": 2, "optimizer.weight_decay": 0.0}
    run = replace_at(effects.baseline_run("spans", form), effects.arm_changes("spans", form, changes))
    assert run.model.feed_forward.activation == run.model.encoder.feed_forward.activation == "gelu"
    assert run.model.layers == run.model.encoder.layers == 2
    assert run.optimizer.weight_decay == 0
    assert run.model.encoder.inputs.shared
    fixup = effects.arms_of("spans", form, "initialisation")["Fixup"]["model"]
    assert len(fixup.initial) == len(fixup.encoder.initial) + 1  # the encoder has no head


def test_a_speed_up_in_time_is_that_in_compute_at_the_time_per_unit_of_compute(scripts):
    _, _, page = scripts
    row = {"speed_up": 1.5, "speed_up_low": 1.0, "speed_up_high": 2.0, "flops": 1.0, "steps": 200, "step_time": 2.0}
    # the arm's steps have twice the baseline's compute, 1 / 200 against 1 / 400, in twice the time
    assert page.in_time(row, 400) == ("2.00", "1.50 [1.00, 2.00]")
    assert page.in_time(row | {"step_time": 1.0}, 400) == ("1.00", "3.00 [2.00, 4.00]")
    assert page.in_time(row | {"step_time": None}, 400) == ("–", "–")
    assert page.in_time(row | {"speed_up": None}, 400) == ("2.00", "–")


def test_times_are_those_of_the_arms_of_a_file(scripts, tmp_path):
    _, _, page = scripts
    effects = pl.DataFrame({"family": ["norms", "norms"], "arm": ["RMSNorm", "post-norm"], "effect": [0.1, 0.2]})
    file = tmp_path / "times.parquet"
    assert page.with_times(effects, file).equals(effects)
    pl.DataFrame({"family": ["norms"], "arm": ["post-norm"], "step_time": [1.25]}).write_parquet(file)
    assert page.with_times(effects, file)["step_time"].to_list() == [None, 1.25]


@pytest.mark.slow
def test_a_step_of_an_arm_is_timed_beside_the_baseline(scripts, monkeypatch):
    arms, _, _ = scripts
    import step_times

    monkeypatch.setattr(step_times, "ROUNDS", 3)
    monkeypatch.setattr(step_times, "WINDOW", 0.05)
    labels = list(arms.arms_by_family()["feed-forward"])
    rows = step_times.ratios("text", "quick", "feed-forward", [label for label in labels if label != "twice as wide"])
    [row] = rows
    assert row["arm"] == "twice as wide"
    assert 0 < row["smallest"] <= row["step_time"] <= row["largest"]
    assert list(step_times.ratios("text", "quick", "feed-forward", labels)) == []
    del sys.modules["step_times"]


def test_the_readme_is_what_the_recorded_results_give(scripts):
    _, _, page = scripts
    assert (FOLDER / "README.md").read_text() == page.readme(page.read_answers())
    assert json.loads(page.EFFECTS.read_text()) == page.measured_effects(page.read_answers())


def test_a_mechanism_has_the_effects_of_its_arms(scripts):
    arms, _, page = scripts
    recorded = {
        (answer.task, row["arm"]): row for answer in page.read_answers() for row in answer.effects.iter_rows(named=True)
    }
    shown = {(effect.task, effect.arm): effect for mechanism in mechanisms().values() for effect in mechanism.effects}
    assert shown.keys() == {(task, arm) for task, arm in recorded if arm in arms.module_of_arms()}
    for name, effect in shown.items():
        assert (effect.gain, effect.low, effect.high) == pytest.approx(
            [recorded[name][part] for part in ("effect", "low", "high")], rel=1e-3, abs=1e-6
        )
        assert effect.verdict in str(effect)
    assert mechanisms()["bigram_embedding"].gains == f"{recorded['text', 'bigram embedding']['effect']:+.3f}"
    assert mechanisms()["depo"].gains == ""


def test_recorded_runs_repeat_the_recorded_effects(scripts):
    """The mean paired difference of the recorded runs is the recorded effect of each arm, computed in Polars."""
    _, effects, page = scripts
    for answer in page.read_answers():
        runs = pl.read_parquet(page.RESULTS / f"{answer.name}-runs.parquet").filter(pl.col("part") == "effects")
        if "compared" not in runs.columns:
            runs = runs.with_columns(compared=pl.lit(page.ALL))
        wide = runs.pivot("arm", index=["family", "compared", "seed"], values="test_loss")
        for row in answer.effects.iter_rows(named=True):
            together = pl.col("compared") == row.get("compared", page.ALL)
            family = wide.filter((pl.col("family") == row["family"]) & together)
            difference = (family[effects.BASELINE] - family[row["arm"]]).mean()
            if not row["diverged"]:
                assert difference == pytest.approx(row["effect"], abs=1e-6)
