"""Every table in the terminal fits 80 columns, and nothing is cut."""

import io

import pytest
from rich.console import Console
from study.tiny import FILE, cache_folder, fill, kept_programs, tiny

from flaxformer.bench import show
from flaxformer.bench.declare import Benchmark, Way
from flaxformer.bench.results import Measurement
from flaxformer.cli import main
from flaxformer.report.table import Table
from flaxformer.report.width import fit_width
from flaxformer.study import Axis, Claim

LONG = "a-rather-long-label-of-a-level-"


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    with kept_programs(cache_folder(tmp_path_factory)):
        yield


@pytest.fixture
def lines(tmp_path, monkeypatch, capsys):
    """The lines that a command prints at 80 columns; paths are relative."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "tiny.py").write_text(FILE)

    def call(*words):
        assert main(list(words)) == 0
        return capsys.readouterr().out.splitlines()

    return call


def wide():
    """A study whose names, labels and claims are long, with five axes."""
    axes = [
        Axis("optimizer.learning_rate", {f"{LONG}{i}": i * 1e-3 for i in (1, 2)}, name="learning_rate"),
        *(
            Axis(f"optimizer.{name}", {"0.5": 0.5, "0.75": 0.75}, name=name)
            for name in ("beta1", "beta2", "final_fraction", "weight_decay")
        ),
    ]
    claim = Claim(
        "a high learning rate is better than a low one, whatever else the configuration of the optimizer is",
        lower={"learning_rate": f"{LONG}2"},
        than={"learning_rate": f"{LONG}1"},
        where={axis.name: "0.5" for axis in axes[1:]},
    )
    return tiny(axes=axes, claims=[claim], seeds=range(2))


def refused(text):
    """Lines that do not fit, or in which something was cut."""
    return [line for line in text if len(line) > 80 or "…" in line]


@pytest.mark.long
def test_plan_shows_the_answer_first_within_80_columns(lines):
    found = lines("plan", "tiny.py", "--seeds", "1", "--weights")
    assert refused(found) == []
    words = ["4 arms × 1 seed = 4 runs in 2 compiled programs", "4 to train", "3 claims", "program  ", "head/matrix"]
    places = [next(i for i, line in enumerate(found) if word in line) for word in words]
    assert places == sorted(places)
    assert not any("head/matrix" in line for line in lines("plan", "tiny.py", "--seeds", "1"))


@pytest.mark.long
@pytest.mark.every(2)
@pytest.mark.parametrize("study", [tiny, wide])
def test_run_report_status_and_compare_fit_80_columns(lines, tmp_path, study):
    for name, offset in (("a", 0.0), ("b", 0.125)):
        fill(tmp_path / name, study(), lambda trial, own=offset: 1.5 + own + trial.seed / 7)
    report, status, compared = lines("report", "a", "--full"), lines("status", "a"), lines("compare", "a", "b")
    assert refused([*report, *status, *compared, *lines("report", "a")]) == []
    assert any("1.64" in line or "1.57" in line for line in report)
    assert any("missing" in line for line in status)
    assert any("+0.125" in line for line in compared)
    if study is tiny:
        assert refused(lines("run", "tiny.py", "--output", "a")) == []


def test_every_program_is_in_the_status_with_its_whole_name(lines, tmp_path):
    store = fill(tmp_path / "a", wide(), lambda trial: 1.0 + trial.seed)
    rows = "".join("".join(line.split()) for line in lines("status", "a"))
    for group in {trial.group for trial in store.declaration.trials}:
        assert group[:20] in rows
        assert group[-8:] in rows


@pytest.mark.slow
def test_check_and_train_fit_80_columns(lines, tmp_path):
    assert refused(lines("check", "tiny.py", "--laws", "parameters", "batch")) == []
    (tmp_path / "one.py").write_text(FILE + "run = study.baseline\n")
    assert refused(lines("train", "one.py", "--plan")) == []
    assert refused(lines("train", "one.py")) == []


def test_a_benchmark_fits_80_columns():
    def measured(way, number):
        return Measurement(1, {"size": 128}, way, {"speed": number, "peak_memory_bytes": 5e9} | columns)

    columns = {f"a_further_number_{i}": 1e4 + i for i in range(6)}
    benchmark = Benchmark(
        question="How fast?",
        ways=[Way(name, lambda: None) for name in ("ours", "a-peer-with-a-long-name")],
        options={"size": (128,)},
        compared="speed",
        reference="ours",
        columns={"speed": "tokens per second", "peak_memory_bytes": "peak memory, MB"} | {n: n for n in columns},
        along="size",
    )
    found = [measured("ours", 10.0), measured("a-peer-with-a-long-name", 5.0)]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(fit_width(show.table(benchmark, found), 80))
    text = console.export_text().splitlines()
    assert refused(text) == []
    assert sum("10,005" in line for line in text) == 2


@pytest.mark.parametrize("width", [200, 80, 40])
def test_a_fitted_table_has_every_cell(width):
    rows = [
        [f"name-{i}-{'x' * 30}", "pre norm", f"{i + 0.5:.5f}", f"{i},000,000", f"[{i}.123, {i}.456]"] for i in range(3)
    ]
    table = Table("", ["arm", "norm", "validation loss (nats)", "parameters", "95 % interval"], rows, 2)
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(fit_width(table, width))
    text = console.export_text()
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    for row in rows:
        assert all(cell in text for cell in row[2:])
        assert row[0][:6] in text


def test_a_table_that_fits_keeps_its_headers_on_one_line():
    table = Table("", ["arm", "validation loss (nats)"], [["pre", "1.5"]], 1)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(fit_width(table, 80))
    assert len(console.export_text().splitlines()) == 2


CASE = '''"""A claim."""

from flaxformer.claims import Case
from flaxformer.study import Claim, Probe


def measure(seed):
    return {"a_quantity_with_a_rather_long_name": 1.0 + 0.1 * seed}


case = Case(
    claim="The size of the thing that this case is about is one, whatever else is true of it.",
    source="A text with a long title, section 2.1, equation 3; Author and Author (2020)",
    evidence=[
        Probe(
            name="size",
            question="How large is it?",
            measure=measure,
            seeds=range(5),
            claims=[
                Claim(
                    "the size that is measured here is below three, as the text says, at every seed",
                    lower={"quantity": "a_quantity_with_a_rather_long_name"},
                    than=3,
                )
            ],
        )
    ],
)
'''


@pytest.mark.long
def test_claims_fit_80_columns(lines, tmp_path):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "01_size.py").write_text(CASE)
    found = lines("claims", "--folder", "claims")
    assert refused(found) == []
    assert any("supported" in line for line in found)
    assert refused(lines("report", "runs/claims")) == []
