"""Studies of many trials: the page is bounded, the tables beside it are whole, and no number depends on either."""

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from unittest import mock

import polars as pl
import pytest
from study.tiny import NORM, fill, tiny

from flaxformer.analysis import trials
from flaxformer.analysis.analysis import analyse
from flaxformer.report import table
from flaxformer.report.files import write
from flaxformer.statistics.estimates import estimate
from flaxformer.statistics.judgement import judge_difference, judge_differences, with_verdicts
from flaxformer.store import records
from flaxformer.store.rows import Row
from flaxformer.store.store import Store
from flaxformer.study import Axis, Claim
from flaxformer.study.divergence import curve_of, is_diverged, score

ROOT = Path(__file__).parents[2]
DROPOUT = Axis("model.dropout", {f"{i}": 0.01 * i + 0.01 for i in range(5)}, name="dropout")
SMOOTHING = Axis("training.label_smoothing", {f"{i}": 0.01 * i + 0.01 for i in range(3)}, name="smoothing")
ODD = {
    "norm=pre,rate=low,seed=0": {"status": "diverged", "diverged_at": 2, "validation_loss": math.nan},
    "norm=pre,rate=high,seed=1": {"validation_loss": 12.0, "train_loss_curve": [1.0] * 4},  # it only overfits
    "norm=post,rate=low,seed=2": {"validation_loss": 12.0, "train_loss_curve": [1.0, 9.0, 9.0, 9.0]},
    "norm=post,rate=high,seed=3": {"validation_loss": math.inf, "validation_loss_curve": [9.0, math.inf]},
    "norm=pre,rate=low,seed=4": {"status": "stopped", "stopped_at": 3},
}


def loss(trial):
    return 2.0 + 0.1 * trial.seed + 0.01 * (sum(map(ord, trial.arm.name)) % 7)


def odd(folder):
    """A study with runs that diverged in every way, that were stopped, that failed and that are missing."""
    store = fill(folder, tiny(seeds=range(6)), loss)
    rows = store.rows()
    for name, changes in ODD.items():
        store.append("again", rows[name] | changes)
    failed = {"status": "failed", "cause": "no", "error": "Traceback"}
    store.remove_rows(["norm=post,rate=low,seed=5", "norm=post,rate=high,seed=5"])
    columns = {name: rows["norm=post,rate=low,seed=5"][name] for name in ("trial", "group", "seed")}
    store.append("again", type(rows["norm=post,rate=low,seed=5"]).from_columns(columns | failed))
    return store


@pytest.mark.parametrize("few", [0, 2, 5000])
def test_results_by_column_are_those_of_the_rows(tmp_path, monkeypatch, few):
    rows = odd(tmp_path).rows()
    monkeypatch.setattr(trials, "FEW", max(few, 1))
    analysis = analyse(Store(tmp_path))
    for arm in analysis.arms:
        name = f"norm={arm.labels['norm']},rate={arm.labels['rate']}"
        own = [rows.get(f"{name},seed={seed}") for seed in range(6)]
        ended = [row if row and row.status in ("done", "diverged") else None for row in own]
        assert list(arm.scores) == [row and score(row, "validation_loss") for row in ended]
        assert arm.has_diverged == [bool(row and row.status != "failed" and is_diverged(row)) for row in own]
        assert arm.diverged == sum(arm.has_diverged)
        assert [row and row.trial for row in arm.rows] == [row and row.trial for row in own]
        assert arm.numbers("seconds") == [row and row.seconds for row in own]
        curves = [curve_of(row, "validation_loss") for row in ended if row]
        assert arm.curve("validation_loss") == ([0, 6], [estimate(column) for column in zip(*curves, strict=True)])
    assert (len(analysis.rows), analysis.missing) == (23, 2)
    assert (len(analysis.failed_runs), len(analysis.stopped_runs)) == (1, 1)
    declared = [one.trial for one in analysis.study.trials]
    assert [row.trial for row in analysis.rows] == [name for name in declared if name in rows]
    assert analysis.failed_runs[0].error == "Traceback"


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The folder and analysis of a study of 30 arms, of whose tables the page shows 7 rows."""
    folder = tmp_path_factory.mktemp("many")
    axes = (NORM, DROPOUT, SMOOTHING)
    store = fill(folder, tiny(axes=axes, seeds=range(5), claims=()), loss)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "MOST_ROWS", 7)
        return folder, write(store)


@pytest.mark.long
def test_a_page_shows_the_first_rows_and_names_the_file_with_all(many):
    folder, analysis = many
    page, document, latex = ((folder / name).read_text() for name in ("report.html", "results.md", "results.tex"))
    for text in (page, document, latex):
        assert "These are the first 7 of 30 rows; tables/arms.csv and tables/arms.parquet have all." in text
    assert page.count("<tr><td") < 80
    assert f"These are the first 7 of {len(analysis.explorations)} rows; tables/contrasts.csv" in page


def test_the_tables_beside_the_page_are_whole(many):
    folder, analysis = many
    arms = pl.read_parquet(folder / "tables/arms.parquet")
    assert arms.select("norm", "dropout", "smoothing").rows() == [(*arm.labels.values(),) for arm in analysis.arms]
    assert arms["validation_loss"].to_list() == [arm.estimate.mean for arm in analysis.arms]
    assert arms["validation_loss_low"].to_list() == [arm.estimate.low for arm in analysis.arms]
    runs = pl.read_parquet(folder / "results.parquet")
    assert runs["trial"].to_list() == [trial.trial for trial in analysis.study.trials]
    contrasts = pl.read_parquet(folder / "tables/contrasts.parquet")
    assert contrasts["difference"].to_list() == [one.judgement.effect.mean for one in analysis.ordered_explorations]
    lines = pl.read_parquet(folder / "tables/sweeps.parquet")
    assert lines.height == sum(len(sweep.lines) for sweep in analysis.sweeps)
    for name in ("results", "tables/arms", "tables/contrasts", "tables/sweeps"):
        whole = pl.read_parquet(folder / f"{name}.parquet")
        short = pl.read_csv(folder / f"{name}.csv", infer_schema_length=None)
        assert short.height == whole.height
        lists = {column for column, kind in whole.schema.items() if kind == pl.List}
        assert {*whole.columns} - lists - {"error"} == {*short.columns}


def test_claims_judged_together_are_judged_as_alone():
    many = [[0.1 * i * k + (i % 3) for i in range(n)] for n in (0, 1, 2, 5, 8, 20) for k in range(4)]
    together, alone = judge_differences(many, 0.2), [judge_difference(own, 0.2) for own in many]
    for one, other in zip(with_verdicts(together), with_verdicts(alone), strict=True):
        assert (one.verdict, one.qualifications) == (other.verdict, other.qualifications)
        assert [one.p, one.effect.low] == pytest.approx([other.p, other.effect.low], nan_ok=True, rel=1e-12)


@pytest.mark.long
def test_reads_of_files_do_not_grow_with_arms_or_failures(tmp_path, monkeypatch):
    monkeypatch.setattr(trials, "FEW", 50)
    claim = Claim("pre is lower", lower={"norm": "pre"}, than={"norm": "post"}, where={"dropout": "0"})
    reads = []
    for values in (6, 12):
        dropout = Axis("model.dropout", {f"{i}": 0.01 * i + 0.01 for i in range(values)}, name="dropout")
        store = fill(tmp_path / str(values), tiny(axes=(NORM, dropout), seeds=range(5), claims=[claim]), loss)
        failed = [name for name in store.rows() if name.endswith("seed=4")]
        store.remove_rows(failed)
        group = store.declaration.trials[0].group
        columns = {"group": group, "seed": 4, "status": "failed", "cause": "no", "error": "Traceback"}
        for name in failed:
            store.append("again", Row.from_columns({"trial": name} | columns))
        with mock.patch.object(records, "read_columns", wraps=records.read_columns) as read:
            write(Store(store.root))
        reads.append(read.call_count)
    assert reads[0] == reads[1] > 0


def peak(code, *words):
    """Peak memory in bytes of a process that runs this code."""
    text = f"import sys\n{code}\nfrom flaxformer.bench.child import peak_memory_bytes\n"
    text += "print(peak_memory_bytes(), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", text, *words], capture_output=True, text=True, check=True)
    return int(done.stderr.splitlines()[-1])


COMMAND = "from flaxformer.cli import main\nassert main(sys.argv[1:]) == 0"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "report"])
def test_memory_per_trial_is_bounded(tmp_path, command):
    """A trial has 142 numbers in its curves, 1.1 kB; as an object with lists of Python numbers, it would have 7 kB."""
    spec = importlib.util.spec_from_file_location("large_study", ROOT / "experiments/benchmarks/large_study.py")
    large_study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(large_study)
    peaks = {}
    for seeds in (50, 2550):
        folder = tmp_path / str(seeds)
        large_study.declare_in(folder, large_study.study_of(20, seeds))
        large_study.fill(folder)
        peaks[seeds] = peak(COMMAND, command, str(folder))
    bytes_per_trial = {"status": 2_000, "report": 6_000}[command]
    assert peaks[2550] - peaks[50] < bytes_per_trial * 50_000
    if command == "report":
        assert (tmp_path / "2550/report.html").stat().st_size < 5e6
        assert pl.read_csv(tmp_path / "2550/results.csv").height == 51_000
        assert table.MOST_ROWS == 500
