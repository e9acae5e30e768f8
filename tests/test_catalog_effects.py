"""The studies of the catalog's effects: every mechanism has an arm, and the page shows the recorded results."""

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

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
    for task in effects.TASKS:
        for family in arms.arms_by_family():
            labels = [effects.BASELINE, *arms.arms_by_family()[family]]
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
    assert runs.height == 10
    file = tmp_path / "recorded.parquet"
    others = pl.DataFrame(
        {"family": ["positions", "norms"], "arm": ["none", "RMSNorm"], "effect": [-0.3, 9.0], "p": [0.5, 1]}
    )
    others.write_parquet(file)
    merged = page.with_discoveries(page.add_to_recorded(table, file))
    assert merged["arm"].to_list() == ["RMSNorm", "none"]
    assert merged["q"].to_list() == pytest.approx([min(2 * row["p"], 0.5), 0.5])
    assert page.add_to_recorded(table, tmp_path / "absent.parquet").equals(table)


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
            metrics={"validation_loss": loss, "test_loss": loss, "initial_validation_loss": 5.5},
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


def test_the_readme_is_what_the_recorded_results_give(scripts):
    _, _, page = scripts
    assert (FOLDER / "README.md").read_text() == page.readme(page.read_answers())
    assert json.loads(page.EFFECTS.read_text()) == page.measured_effects(page.read_answers())


def test_a_mechanism_has_the_effects_of_its_arms(scripts):
    arms, _, page = scripts
    [answer] = page.read_answers()
    recorded = {row["arm"]: row for row in answer.effects.iter_rows(named=True)}
    shown = {effect.arm: effect for mechanism in mechanisms().values() for effect in mechanism.effects}
    assert shown.keys() == recorded.keys() & arms.module_of_arms().keys()
    for arm, effect in shown.items():
        assert (effect.gain, effect.low, effect.high) == pytest.approx(
            [recorded[arm][name] for name in ("effect", "low", "high")], abs=1e-4
        )
        assert effect.verdict in str(effect)
    assert mechanisms()["bigram_embedding"].gains == f"{recorded['bigram embedding']['effect']:+.3f}"
    assert mechanisms()["depo"].gains == ""


def test_recorded_runs_repeat_the_recorded_effects(scripts):
    """The mean paired difference of the recorded runs is the recorded effect of each arm, computed in Polars."""
    _, effects, page = scripts
    for answer in page.read_answers():
        runs = pl.read_parquet(page.RESULTS / f"{answer.name}-runs.parquet").filter(pl.col("part") == "effects")
        wide = runs.pivot("arm", index=["family", "seed"], values="test_loss")
        for row in answer.effects.iter_rows(named=True):
            family = wide.filter(pl.col("family") == row["family"])
            difference = (family[effects.BASELINE] - family[row["arm"]]).mean()
            if not row["diverged"]:
                assert difference == pytest.approx(row["effect"], abs=1e-6)
