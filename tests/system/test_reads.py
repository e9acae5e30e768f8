"""Files, folders and variables that user code reads: a change of them is refused, like one of the code."""

import json
import os
import sys

import numpy as np
import pytest
from study.tiny import cache_folder, kept_programs

from flaxformer.claims.case import find_cases
from flaxformer.cli import main
from flaxformer.runner.probes import run_probe
from flaxformer.store.declarations import declare
from flaxformer.store.places import weights_folder
from flaxformer.store.rows import Row
from flaxformer.store.store import Store
from flaxformer.study.load import load_study
from flaxformer.study.plan import declaration
from flaxformer.study.tracing import trace
from flaxformer.system.errors import UserError
from flaxformer.system.user_code import read_records

CASE = """
import glob
import io
import json
import mmap
import os
import os.path as paths
from os import environ, getenv
from pathlib import Path

import numpy as np
from flaxformer.claims import Case
from flaxformer.study import Claim, Probe

HERE = Path(__file__).parent

def read():
    {statement}

def measure(seed):
    read()
    return {{"two": 2.0 * (seed + 1)}}

case = Case(
    claim="c", source="s",
    evidence=[Probe(name="p", question="q", measure=measure, seeds=range(2),
                    claims=[Claim("c", higher={{"quantity": "two"}}, than=0)])],
)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("LEVEL", "LEVEL_2"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "cases/more").mkdir(parents=True)
    (tmp_path / "cases/data.txt").write_text("1.0")
    (tmp_path / "cases/more/a.csv").write_text("1,2\n")
    np.save(tmp_path / "cases/data.npy", np.arange(3.0))
    return tmp_path


def write_text(folder, monkeypatch):
    (folder / "cases/data.txt").write_text("2.0")


def write_array(folder, monkeypatch):
    np.save(folder / "cases/data.npy", np.arange(4.0))


def remove(folder, monkeypatch):
    (folder / "cases/data.txt").unlink()


def add(folder, monkeypatch):
    (folder / "cases/more/b.csv").write_text("1,2\n")


def set_level(folder, monkeypatch):
    monkeypatch.setenv("LEVEL", "secret")


def nothing(folder, monkeypatch):
    """The same content at another time, another file beside it, and another variable."""
    (folder / "cases/data.txt").write_text("1.0")
    (folder / "cases/beside.txt").write_text("1.0")
    monkeypatch.setenv("LEVEL_2", "1")


def using(call, then="file.read()"):
    """Return the statement that reads a file within `with`."""
    return f"with {call} as file:\n        {then}"


CHANGED = "data.txt (changed)"
READS = {
    # name: statement of user code, change, what the message names
    "open": (using("open(HERE / 'data.txt')"), write_text, CHANGED),
    "io.open": (using("io.open(str(HERE / 'data.txt'), 'rb')"), write_text, CHANGED),
    "os.open": ("os.close(os.open(HERE / 'data.txt', os.O_RDONLY))", write_text, CHANGED),
    "relative path": (using("open('cases/data.txt')"), write_text, CHANGED),
    "bytes as a path": (using("open(os.fsencode(HERE / 'data.txt'))"), write_text, CHANGED),
    "Path.read_text": ("(HERE / 'data.txt').read_text()", write_text, CHANGED),
    "json": (using("open(HERE / 'data.txt')", "json.load(file)"), write_text, CHANGED),
    "mmap": (
        using("open(HERE / 'data.txt', 'rb')", "mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ).close()"),
        write_text,
        CHANGED,
    ),
    "numpy.load": ("np.load(HERE / 'data.npy')", write_array, "data.npy (changed)"),
    "numpy.loadtxt": ("np.loadtxt(HERE / 'data.txt')", write_text, CHANGED),
    "numpy.fromfile": ("np.fromfile(HERE / 'data.npy')", write_array, "data.npy (changed)"),
    "numpy.memmap": ("np.memmap(HERE / 'data.npy')", write_array, "data.npy (changed)"),
    "removed": ("paths.exists(HERE / 'data.txt') and (HERE / 'data.txt').read_text()", remove, "data.txt (removed)"),
    "missing": (
        "try:\n        open(HERE / 'more/b.csv')\n    except FileNotFoundError:\n        pass", add, "more/b.csv (new)",
    ),
    "os.listdir": ("os.listdir(HERE / 'more')", add, "folder more (changed)"),
    "os.scandir": (using("os.scandir(HERE / 'more')", "list(file)"), add, "folder more (changed)"),
    "os.walk": ("list(os.walk(HERE / 'more'))", add, "folder more (changed)"),
    "Path.iterdir": ("list((HERE / 'more').iterdir())", add, "folder more (changed)"),
    "glob.glob": ("glob.glob(str(HERE / 'more/*.csv'))", add, "pattern more/*.csv (changed)"),
    "Path.glob": ("list(HERE.glob('more/*.csv'))", add, "pattern more/*.csv (changed)"),
    "Path.rglob": ("list(HERE.rglob('*.csv'))", add, "pattern **/*.csv (changed)"),
    "os.environ.get": ("os.environ.get('LEVEL')", set_level, "variable LEVEL (new)"),
    "os.environ[]": (
        "try:\n        os.environ['LEVEL']\n    except KeyError:\n        pass", set_level, "variable LEVEL (new)",
    ),
    "in os.environ": ("'LEVEL' in os.environ", set_level, "variable LEVEL (new)"),
    "os.getenv": ("os.getenv('LEVEL', '1')", set_level, "variable LEVEL (new)"),
    "imported getenv": ("getenv('LEVEL')", set_level, "variable LEVEL (new)"),
    "imported environ": ("environ.get('LEVEL')", set_level, "variable LEVEL (new)"),
    "os.environb": ("os.environb.get(b'LEVEL')", set_level, "variable LEVEL (new)"),
    "iteration": ("[name for name in os.environ]", set_level, "names of all variables (changed)"),
    "keys": ("sorted(os.environ.keys())", set_level, "names of all variables (changed)"),
    "copy": ("os.environ.copy()", set_level, "names of all variables (changed)"),
}  # fmt: skip


def run(folder, **how):
    """Measure the probe of the folder; return why it is refused, or an empty text."""
    [case] = find_cases(folder / "cases")
    try:
        list(run_probe(case.evidence[0], Store(folder / "out"), **how))
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.every(18, "long")
@pytest.mark.parametrize("kind", READS)
def test_every_kind_of_read_is_recorded(folder, monkeypatch, kind):
    statement, change, named = READS[kind]
    (folder / "cases/01_two.py").write_text(CASE.format(statement=statement))
    assert run(folder) == ""
    if named.startswith("names"):
        assert run(folder) == ""
    else:
        nothing(folder, monkeypatch)
        assert run(folder) == ""
    change(folder, monkeypatch)
    assert named in run(folder)
    assert "secret" not in "".join(path.read_text() for path in (folder / "out").rglob("*.json*"))


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("decision", ["keep", "retrain"])
def test_changed_file_is_accepted_once_it_is_decided(folder, monkeypatch, decision):
    (folder / "cases/01_two.py").write_text(CASE.format(statement=READS["open"][0]))
    assert run(folder) == ""
    before = (folder / "out/measurements.jsonl").read_text()
    write_text(folder, monkeypatch)
    refused = run(folder)
    assert "2 results" in refused
    assert "--on-code-change keep" in refused
    assert run(folder, on_code_change=decision) == ""
    after = (folder / "out/measurements.jsonl").read_text()
    assert (before == after) == (decision == "keep")
    assert (folder / "out/measurements.jsonl.superseded").exists() == (decision == "retrain")
    assert run(folder) == ""
    (folder / "cases/data.txt").write_text("1.0")
    assert "data.txt (changed)" in run(folder)


@pytest.mark.every(2, "long")
@pytest.mark.parametrize(
    "statement",
    [
        "import colorsys",
        using("open(HERE / 'log.txt', 'a')", "file.write('x')"),
        "(HERE / 'own.txt').write_text(str(os.getpid())) and (HERE / 'own.txt').read_text()",
        "os.environ.__setitem__('LEVEL_2', str(os.getpid())) or os.environ['LEVEL_2']",
        "Path('/proc/self/stat').read_text()",
        "json.__spec__.loader.get_data(json.__file__)",
        "Path.home()",
    ],
)
def test_what_user_code_writes_and_what_the_system_reads_does_not_count(folder, statement):
    (folder / "cases/01_two.py").write_text(CASE.format(statement=statement))
    assert run(folder) == ""
    found = [entry for entry in read_records.read_records_of(folder / "out") if entry["found"] != "written"]
    assert not found
    assert run(folder) == ""


def test_damaged_record_is_refused(folder):
    (folder / "cases/01_two.py").write_text(CASE.format(statement=READS["open"][0]))
    assert run(folder) == ""
    [record] = (folder / "out/reads").glob("*.json")
    record.write_text(record.read_text().replace("data.txt", "data.csv"))
    assert f"reads/{record.name} (changed)" in run(folder)


STUDY = """
import os
from pathlib import Path

import jax.numpy as jnp
from flaxformer import Attention, Dense, ModelConfig
from flaxformer.study import Axis, Study
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training

HERE = Path(__file__).parent

def number(place):
    return float((HERE / f"{{place}}.txt").read_text()) if place in {places} else 1.0

AT_IMPORT = number("import")

class Own(Dense):
    def apply(self, weights, x, context):
        return super().apply(weights, x, context) * number("apply")

class Task(Copy):
    def example(self, key):
        return super().example(key).replace(prefix=jnp.int32(number("example")))

class MyAdamW(AdamW):
    def direction(self):
        number("direction")
        return super().direction()

def measure(params, run):
    return {{"size": jnp.abs(params.embedding.tokens).sum() * number("measure")}}

def derive(rows):
    return {{"gap": number("derive")}}

run = Run(
    model=ModelConfig(vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Own(d_ff=11)),
    task=Task(symbols=5, length=3, batch_size=2, evaluation_batches=2),
    optimizer=MyAdamW(learning_rate=1e-3), training=Training(steps=4, evaluate_every=2),
)
study = Study(
    name="own", question="Does it run?", baseline=run, seeds=range(1), measure=measure, derive=derive,
    axes=[Axis("optimizer.learning_rate", {{"low": 1e-3, "high": 1e-2}}, name="rate")],
)
"""
PLACES = ("import", "apply", "example", "direction", "measure", "derive")


def write_study(folder, places):
    for place in PLACES:
        (folder / f"{place}.txt").write_text("1")
    (folder / "own.py").write_text(STUDY.format(places=tuple(places)))


@pytest.mark.parametrize("place", ["import", "apply", "example", "direction"])
def test_reads_are_recorded_at_import_and_while_a_run_is_traced(folder, place):
    write_study(folder, [place])
    study = load_study(folder / "own.py")
    trace(study.baseline, "the run")
    with read_records.recording(folder / "out", study.file):
        pass
    assert not read_records.changed_reads(folder / "out", study.file)
    (folder / f"{place}.txt").write_text("2")
    assert read_records.changed_reads(folder / "out", study.file) == [f"{place}.txt (changed)"]


def test_reads_of_another_study_in_the_same_process_do_not_count(folder):
    write_study(folder, ["import"])
    (folder / "other").mkdir()
    write_study(folder / "other", ["import"])
    studies = [load_study(folder / name) for name in ("own.py", "other/own.py")]
    for number, study in enumerate(studies):
        with read_records.recording(folder / f"out{number}", study.file):
            pass
    (folder / "other/import.txt").write_text("2")
    assert not read_records.changed_reads(folder / "out0", studies[0].file)
    assert read_records.changed_reads(folder / "out1", studies[1].file) == ["import.txt (changed)"]


def test_records_hold_paths_relative_to_the_study_file(folder):
    write_study(folder, ["import"])
    study = load_study(folder / "own.py")
    with read_records.recording(folder / "out", study.file):
        pass
    [record] = (folder / "out/reads").iterdir()
    assert json.loads(record.read_text())["name"] == "import.txt"


@pytest.mark.parametrize("decision", ["refuse", "keep", "retrain"])
def test_training_that_began_with_other_reads_is_not_continued(folder, decision):
    """Without results, or with those of one trial: partial runs, and weights of trials that are trained again."""
    write_study(folder, ["import"])
    study, store = load_study(folder / "own.py"), Store(folder / "out")
    planned = declaration(study)
    finished, missing = planned.fingerprints
    with store.locked():
        head = declare(store, planned).declaration
    with read_records.recording(store.root, study.file):
        pass
    if decision != "refuse":
        about = {"fingerprint": planned.fingerprints[finished], "declaration": head}
        store.append("all", Row(trial=finished, group="all", seed=0, status="done", **about))
    for place in (store.unfinished / "all", *(weights_folder(store.root, trial) for trial in (finished, missing))):
        place.mkdir(parents=True)
    with store.locked():
        declare(store, planned, file=study.file)
    assert store.unfinished.exists()
    (folder / "import.txt").write_text("2")
    with store.locked():
        declare(store, planned, decision, study.file)
    assert not store.unfinished.exists()
    assert weights_folder(store.root, finished).exists() == (decision == "keep")
    assert not weights_folder(store.root, missing).exists()


def call(capsys, *words):
    code = main(list(map(str, words)))
    found = capsys.readouterr()
    assert "Traceback" not in found.out + found.err
    return code, found.out, found.err


@pytest.mark.slow
def test_study_is_refused_after_any_file_that_it_read_changed(folder, capsys, tmp_path_factory):
    write_study(folder, PLACES)
    with kept_programs(cache_folder(tmp_path_factory)):
        assert call(capsys, "run", "own.py", "--output", "out")[0] == 0
        assert call(capsys, "run", "own.py", "--output", "out")[0] == 0
        for place in PLACES:
            (folder / f"{place}.txt").write_text("1.5")
            code, _, err = call(capsys, "run", "own.py", "--output", "out")
            assert (code, f"  {place}.txt (changed)" in err) == (2, True)
            assert "3 results of 2 arms" in err  # with the derived number
            (folder / f"{place}.txt").write_text("1")
        page = (folder / "out/report.html").read_text()
        assert "measure.txt" in page
        (folder / "own.py").rename(folder / "moved.py")
        assert call(capsys, "report", "out")[0] == 0


@pytest.mark.slow
def test_job_is_refused_at_resumption_after_a_file_that_it_read_changed(folder, capsys, tmp_path_factory):
    write_study(folder, ["import", "apply", "example", "direction"])
    with kept_programs(cache_folder(tmp_path_factory)):
        assert call(capsys, "train", "own.py", "--output", "out", "--samples", 0)[0] == 0
        assert call(capsys, "train", "own.py", "--output", "out", "--samples", 0)[0] == 0
        (folder / "example.txt").write_text("2")
        code, _, err = call(capsys, "train", "own.py", "--output", "out", "--samples", 0)
        assert code == 2
        assert "example.txt (changed)" in err
        assert call(capsys, "train", "own.py", "--output", "out", "--samples", 0, "--on-code-change", "keep")[0] == 0
        assert call(capsys, "train", "own.py", "--output", "out", "--samples", 0)[0] == 0


def test_environment_still_behaves_like_a_mapping():
    os.environ["LEVEL_3"] = "1"
    assert os.environ.pop("LEVEL_3") == "1"
    assert "LEVEL_3" not in os.environ
    assert dict(os.environ) == os.environ.copy()
