"""Costs in the report: every row, table and claim has them, unequal costs are marked, and compute has a figure."""

import dataclasses
import io
import re

import matplotlib as mpl
import polars as pl
import pytest
from rich.console import Console
from study.tiny import BASELINE, LOWER, NORM, RATE, fill, results, run, tiny

from flaxformer.analysis.analysis import analyse
from flaxformer.core.paths import replace_at
from flaxformer.report import costs, files, markdown, tables, terminal, tex, verdicts
from flaxformer.report.document import document
from flaxformer.report.files import write
from flaxformer.runner.execution import Execution
from flaxformer.store.rows import Row
from flaxformer.store.store import Store
from flaxformer.study import Axis, Claim
from flaxformer.training.cost import run_cost

DEPTH = Axis("model.layers", {"1": 1, "2": 2})
DEEPER = Claim("two layers are better than one", lower={"layers": "2"}, than={"layers": "1"})
STEPS = [0, 2, 4, 6]


@pytest.fixture(autouse=True)
def without_a_display():
    with mpl.rc_context({"backend": "agg"}):
        yield


def with_costs(root, study, loss, about=lambda trial: {}):
    """A folder of finished runs with the losses that the caller gives, the costs of their configs, and other fields."""
    store = fill(root, study, loss)
    rows = store.rows()
    store.remove_rows(list(rows))
    for trial in study.trials():
        row, cost, end = rows[trial.name], run_cost(trial.run), loss(trial)
        curve = [9.0, (9.0 + 2 * end) / 3, (9.0 + 5 * end) / 6, end]
        changes = {
            "parameters": cost.parameters.total,
            "active_parameters": cost.parameters.active,
            "parameters_without_embeddings": cost.parameters.without_embeddings,
            "flops_per_step": float(cost.flops_per_step),
            "flops": float(cost.flops),
            "training_tokens": cost.tokens,
            "seconds": 3.0,
            "group_size": 1,
            "device": "cpu:0",
            "evaluated_at": STEPS,
            "curves": {"validation_loss": curve, "validation_accuracy": [0.0, 0.1, 0.2, 0.5]},
        }
        store.append("all", dataclasses.replace(row, **changes | about(trial)))
    store.finish("all")
    return store


def losses(trial):
    return 2.0 - 0.1 * (trial.arm.labels.get("layers") == "2") + 0.01 * trial.seed


@pytest.fixture(scope="module")
def deeper(tmp_path_factory):
    """Two depths at equal steps, and so at unequal compute."""
    study = tiny(axes=(DEPTH, RATE), claims=(DEEPER, LOWER), seeds=range(6))
    return with_costs(tmp_path_factory.mktemp("deeper"), study, losses)


def expected_ratio(layers=2):
    return [run_cost(replace_at(BASELINE, {"model.layers": n})).flops for n in (1, layers)]


@pytest.mark.long
def test_every_row_of_a_trained_study_has_its_cost(tmp_path):
    study = tiny(axes=(RATE,), claims=(), seeds=[0])
    list(run(study, Execution(output=tmp_path, devices=1)))
    cost = run_cost(BASELINE)
    write(Store(tmp_path))
    table = pl.read_parquet(tmp_path / "results.parquet")
    for row in table.to_dicts():
        assert row["parameters"] == cost.parameters.total
        assert row["flops_per_step"] * 6 == row["flops"] == cost.flops
        assert row["training_tokens"] == 6 * BASELINE.tokens_per_step
        assert row["seconds"] > 0
        assert row["memory_bytes"] > 4 * row["parameters"]


def test_a_claim_about_arms_of_unequal_cost_names_the_ratio(deeper):
    analysis = analyse(deeper)
    one, two = expected_ratio()
    unequal, equal = analysis.claims
    assert "unequal cost" in unequal.judgement.qualifications
    assert "unequal cost" not in equal.judgement.qualifications
    [sentence] = [text for text in verdicts.qualifications(unequal) if "cost" in text]
    assert f"layers 2 has {two / one:.3g} times the FLOPs" in sentence
    assert "times the parameters of layers 1" in sentence


def test_arms_of_unequal_cost_are_marked_in_every_table(deeper):
    analysis = analyse(deeper)
    for table in (tables.arms(analysis), costs.arm_costs(analysis)):
        for row in table.in_form("page").rows:
            assert (row[0] == "2") == any(costs.MARK in cell for cell in row)
    written = markdown.render(document(analysis))
    assert "## Cost" in written
    assert "## Effective speed-up" in written
    assert "The arms differ in FLOPs and parameters" in written
    assert r"$\neq$" in tex.render(document(analysis))


def test_the_terminal_has_costs_and_speed_ups(deeper):
    out = io.StringIO()
    terminal.show(Console(file=out, width=200), analyse(deeper))
    assert "the arms differ in cost: layers 2 has" in out.getvalue()
    assert "The arms differ in FLOPs and parameters" in out.getvalue()
    answer, _, cost = out.getvalue().partition("FLOP ratio")
    assert "speed-up" not in answer
    assert f"{DEEPER.text}: effective speed-up to the validation loss of" in cost


def test_the_speed_up_of_a_claim_is_that_of_its_arms(deeper):
    """The second arm ends 0.1 lower, at another cost; its curve passes the first's loss between two evaluations."""
    claim, _ = analyse(deeper).claims
    found = costs.claim_speed_up(analyse(deeper), claim)
    one, two = expected_ratio()
    assert found.compute.above == 6
    assert found.compute.ratio == pytest.approx(one / two)
    reached = []
    for seed in range(6):
        end, target = 1.9 + 0.01 * seed, 2.0 + 0.01 * seed
        before = (9.0 + 5 * end) / 6
        reached.append(4 * (6 / 4) ** ((before - target) / (before - end)))
    assert found.compute_to_baseline.ratio == pytest.approx(one / (two * sum(reached) / 6 / 6), rel=1e-3)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize(
    ("metric", "goal", "has_one"),
    [("validation_loss", None, True), ("validation_accuracy", None, True), ("score", None, False)],
)
def test_a_claim_has_a_speed_up_only_if_it_is_about_the_curve_that_is_read(tmp_path, metric, goal, has_one):
    extra = {} if metric != "score" else {"measure": lambda params, run: {"score": 1.0}}
    study = tiny(axes=(DEPTH, RATE), claims=(DEEPER, LOWER), seeds=range(3), metric=metric, goal=goal, **extra)
    store = with_costs(tmp_path, study, losses)
    analysis, out = analyse(store), io.StringIO()
    terminal.show(Console(file=out, width=200), analysis)
    assert ("effective speed-up" in out.getvalue()) == has_one
    assert (f"effective speed-up to the {metric.replace('_', ' ')} of" in out.getvalue()) == has_one
    assert "speed-up" not in "".join(tables.claims(analysis).in_form("page").header)
    assert [costs.claim_speed_up(analysis, claim) is not None for claim in analysis.claims] == [has_one] * 2
    renamed = tiny(axes=(DEPTH, RATE), claims=(), seeds=range(3), metric=metric, goal=goal, **extra)
    fill(tmp_path, renamed, losses, missing_only=True)
    analysis = analyse(store)
    assert len(analysis.withdrawn) == 2
    assert [costs.claim_speed_up(analysis, claim) for claim in analysis.withdrawn] == [None, None]


def test_the_file_of_arms_has_the_costs_of_the_page(deeper):
    found = files.tables(document(analyse(deeper)))["arms"]
    for row in found.to_dicts():
        cost = run_cost(replace_at(BASELINE, {"model.layers": int(row["layers"])}))
        assert (row["parameters"], row["flops"], row["training_tokens"]) == (
            cost.parameters.total,
            cost.flops,
            cost.tokens,
        )
        assert row["flops_ratio"] == pytest.approx(cost.flops / run_cost(BASELINE).flops)
        assert row["seconds"] == 3.0


@pytest.mark.slow
def test_a_figure_shows_the_loss_against_compute(deeper, tmp_path):
    write(deeper)
    for kind in ("svg", "png", "pdf"):
        assert (deeper.root / "figures" / f"compute.{kind}").stat().st_size > 1000
    drawn = (deeper.root / "figures" / "compute.svg").read_text()
    assert "training compute (FLOPs)" in drawn
    assert "$" not in drawn  # numbers at the ticks, not formulas
    page = (deeper.root / "report.html").read_text()
    assert "Against the FLOPs of training so far" in page
    assert len(re.findall("training compute", page)) >= 2  # as wide as a page, and as a phone
    assert "<h2>Cost</h2>" in page


def test_a_report_states_that_costs_are_equal(tmp_path):
    study = tiny(axes=(RATE,), claims=(LOWER,), seeds=range(6))
    store = with_costs(tmp_path, study, losses)
    analysis = write(store)
    assert "unequal cost" not in analysis.claims[0].judgement.qualifications
    assert "All arms cost the same" in costs.summary(analysis)
    assert not (tmp_path / "figures" / "compute.svg").exists()


def test_the_report_states_a_comparison_at_equal_cost(tmp_path):
    study = tiny(
        baseline=replace_at(BASELINE, {"training.steps": 600, "training.evaluate_every": 60}),
        axes=(Axis("model.layers", {"1": 1, "2": 2}),),
        claims=(DEEPER,),
        seeds=range(4),
        compare="equal compute",
    )
    analysis = analyse(with_costs(tmp_path, study, losses))
    assert "Arms are compared at equal compute, within 0.02" in costs.summary(analysis)
    assert "training.steps was adjusted in 1 of 2 arms" in costs.summary(analysis)
    [claim] = analysis.claims
    assert [one.name for one in claim.context.cost_ratios] == ["parameters"]


def test_results_from_before_costs_were_recorded_have_a_report(tmp_path):
    store = fill(tmp_path, tiny(axes=(NORM,), claims=(), seeds=range(4)), losses)
    analysis = write(store)
    assert costs.summary(analysis) == ""
    assert costs.arm_costs(analysis).in_form("page").rows == []
    assert "## Cost" not in (tmp_path / "results.md").read_text()
    assert pl.read_parquet(tmp_path / "results.parquet")["flops"].null_count() == 8


def test_costs_are_results_and_memory_is_not(tmp_path):
    row = Row(trial="a,seed=0", group="all", seed=0, status="done", flops=2.0, memory_bytes=3)
    assert results({"a": row})["a"]["flops"] == 2.0
    assert "memory_bytes" not in results({"a": row})["a"]
