"""Nothing is written through a symbolic link below an output folder, by any command, for every folder and file."""

import datetime
import os
import shutil
from pathlib import Path

import pytest
from study.tiny import cache_folder, kept_programs

from flaxformer.cli import main
from flaxformer.store.store import Store
from flaxformer.system.digests import write_document
from flaxformer.system.errors import UserError
from flaxformer.system.files import make_folder, write_atomically
from flaxformer.system.links import output_folder

FILE = """
from flaxformer import Attention, Dense, ModelConfig
from flaxformer.study import Axis, Study
from flaxformer.tasks import TextFiles
from flaxformer.training import Run, Training

run = Run(
    model=ModelConfig(layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11)),
    task=TextFiles(path="text.txt", length=5, batch_size=2, evaluation_batches=1),
    training=Training(steps=1, evaluate_every=1),
)
study = Study(
    name="linked",
    question="Is anything written outside?",
    baseline=run,
    axes=[Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2}, name="rate")],
    seeds=range(2),
    keep="final",
)
"""
MEASURE = "def measure(params, run):\n    return {'layers': run.model.layers}\n"
CASE = """
from flaxformer.claims import Case
from flaxformer.study import Claim, Probe

claim = Claim("it is below 3", lower={"quantity": "size"}, than=3)
probe = Probe(name="size", question="How large?", measure=lambda seed: {"size": seed}, seeds=range(2), claims=[claim])
case = Case(claim="It is small.", source="A text", evidence=[probe])
"""
BENCHMARK = """
from flaxformer.bench import Benchmark, Way

ways = [Way("ours", lambda work: {"speed": 1.0}, role="ours"), Way("peer", lambda work: {"speed": 2.0})]
benchmark = Benchmark(
    question="How fast?", ways=ways, options={}, compared="speed", reference="peer", columns={"speed": "s"}, rounds=1
)
"""
FILES = {
    "text.txt": "to be or not to be " * 30,
    "file.py": FILE,
    "measure.py": MEASURE,
    "claims/01_small.py": CASE,
    "benchmarks/speed.py": BENCHMARK,
}
STUDY = ["study.json", "declarations.jsonl", "declarations.head", "launches.jsonl", "groups", "groups/TABLE"]
REPORT = ["figures", "figures/arms.svg", "tables", "tables/arms.csv", "results.parquet", "results.csv", "results.md"]
REPORT += ["results.tex", "report.html"]
CASES = ["01_small", "01_small/case.json", "01_small/time.jsonl", "01_small/size", "01_small/size/groups"]
WRITTEN = {
    "run": [".lock", *STUDY, "leases", "weights", "code", "reads", "unfinished", "superseded", "rungs", *REPORT],
    "run --track": ["trackers", "trackers/tensorboard-FINGERPRINT", "tensorboard"],
    "declare": [*STUDY, "code"],
    "report": [*STUDY, *REPORT],
    "status": STUDY,
    "status --watch": STUDY,
    "compare": STUDY,
    "measure": [*STUDY, "weights", "weights/TRIAL", "weights/TRIAL/config.json", "trial_measurements.jsonl", *REPORT],
    "verify": STUDY,
    "replicate": STUDY,
    "replicate --output": ["groups", "leases", "results.md", "replication.html"],
    "generate": ["config.json", "1", "1/published.json", "1/state"],
    "train": [".lock", "1", "1/published.json", "1/state", "config.json", "log.jsonl", "code", "reads"],
    "train --profile": ["profile", "profile/plugins", "profile/plugins/profile"],
    "claims": [*CASES, "claims.md", "claims.tex", "index.html"],
    "prepare": [""],
    "bench": ["2026-01-02-030405.json", "2026-01-02-030405.svg", "2026-01-02-030405.png"],
    "new": ["mine.py"],
}
"""Places at which each command writes, or whose folder it writes in: a link there is one message."""
COMMANDS = {
    "run": ["run", "file.py", "--output", "out", "--devices", "1"],
    "run --track": ["run", "file.py", "--output", "out", "--devices", "1", "--track", "tensorboard"],
    "declare": ["declare", "file.py", "--output", "out"],
    "report": ["report", "out"],
    "status": ["status", "out"],
    "status --watch": ["status", "out", "--watch"],
    "compare": ["compare", "out", "out"],
    "measure": ["measure", "out", "measure.py"],
    "verify": ["verify", "out", "--trust-code"],
    "replicate": ["replicate", "out", "--trust-code", "--output", "fresh", "--devices", "1"],
    "replicate --output": ["replicate", "first", "--trust-code", "--output", "out", "--devices", "1"],
    "generate": ["generate", "out", "--tokens", "1"],
    "train": ["train", "file.py", "--output", "out"],
    "train --profile": ["train", "file.py", "--output", "out", "--profile", "1"],
    "claims": ["claims", "--folder", "claims", "--output", "out"],
    "prepare": ["prepare", "claims/01_small.py", "out"],
    "bench": ["bench", "speed", "--folder", "benchmarks", "--output", "out"],
    "new": ["new", "study", "mine"],
}
MADE_BY = {
    "generate": "job",
    "train": "job",
    "train --profile": "job",
    "claims": "cases",
    "prepare": "",
    "bench": "",
    "new": "",
}
"""Folder that is there before a command, of which "out" is a copy; by default the study's."""
KINDS = ("file", "folder", "dangling")
QUICK = ("new", "prepare")
"""Commands of which all cases run by default."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with the finished results of a study in out/, of a job in job/, and of claims in cases/."""
    folder = tmp_path_factory.mktemp("links")
    write_files(folder)
    before = os.getcwd()
    os.chdir(folder)
    with kept_programs(cache_folder(tmp_path_factory)):
        assert main(COMMANDS["run"]) == 0
        assert main([*COMMANDS["train"][:-1], "job"]) == 0
        assert main([*COMMANDS["claims"][:-1], "cases"]) == 0
        yield folder
    os.chdir(before)


def write_files(folder):
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def content(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def link(path, outside, kind):
    """Put a link in place of a file or folder: to what was there if it was of this kind, to another, or to nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = outside / "target"
    if path.exists() and path.is_dir() == (kind == "folder") and kind != "dangling":
        shutil.move(path, target)
    elif kind == "folder":
        target.mkdir()
    elif kind == "file":
        target.write_text("outside\n")
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working folder, with the files that the commands need, and an empty folder outside/."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    Path("outside").mkdir()
    return tmp_path


def concrete(path, folder):
    """A path whose words in capitals are the name of a file, or of a fingerprint, in a folder."""
    if "FINGERPRINT" in path:
        return path.replace("FINGERPRINT", next(iter(Store(folder).rows().values())).fingerprint)
    for word, pattern in {"TABLE": "groups/*.parquet", "TRIAL": "weights/*"}.items():
        if word in path:
            path = path.replace(word, sorted(folder.glob(pattern))[0].name)
    return path


class Clock(datetime.datetime):
    """A clock that stands, so that the name of a benchmark's file is known."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)


def cases():
    """A kind of link at each place, in turn, and the others as slow tests."""
    places = [(command, path) for command in WRITTEN for path in WRITTEN[command]]
    for number, (command, path) in enumerate(places):
        for kind in KINDS:
            marks = () if kind == KINDS[number % len(KINDS)] or command in QUICK else pytest.mark.slow
            yield pytest.param(command, path, kind, marks=marks)


@pytest.mark.every(55, "long")
@pytest.mark.parametrize(("command", "path", "kind"), list(cases()))
def test_a_link_where_a_command_writes_is_one_message(finished, place, capsys, monkeypatch, command, path, kind):
    monkeypatch.setattr("flaxformer.cli.bench.datetime.datetime", Clock)
    if whole := MADE_BY.get(command, "out"):
        shutil.copytree(finished / whole, "first" if command == "replicate --output" else "out")
    at = concrete(path, finished / whole)
    link(place / ("" if command == "new" else "out") / at, place / "outside", kind)
    before = content(place / "outside")
    capsys.readouterr()
    code, (out, err) = main(COMMANDS[command]), (" ".join(text.split()) for text in capsys.readouterr())
    assert content(place / "outside") == before
    if command == "claims" and "size" in path:  # the error of one case ends this case only
        assert (code, f"{at} is a symbolic link" in out) == (1, True), out
    elif command == "prepare" and kind != "dangling":  # the folder that a user names may be a link
        assert (code, "out" in err) == (2, True), err
    else:
        expected = "mine.py exists already" if command == "new" else f"{at or 'out'} is a symbolic link"
        assert (code, expected in err) == (2, True), err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "measure", "run", "train"])
def test_no_path_of_a_folder_leads_outside(finished, place, capsys, command):
    whole = finished / MADE_BY.get(command, "out")
    for path in sorted(path.relative_to(whole) for path in whole.rglob("*")):
        if path.name.startswith(".lock") or len(path.parts) > 2:
            continue
        for kind in KINDS:
            shutil.rmtree("out", ignore_errors=True)
            shutil.rmtree("outside")
            Path("outside").mkdir()
            shutil.copytree(whole, "out")
            link(Path("out") / path, place / "outside", kind)
            before = content(place / "outside")
            code, err = main(COMMANDS[command]), capsys.readouterr().err
            assert content(place / "outside") == before, path
            assert code in (0, 2), (path, err)


def test_an_output_folder_may_be_a_link_and_nothing_below_it(tmp_path):
    (tmp_path / "elsewhere/inside").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    root = output_folder(tmp_path / "out")
    make_folder(root / "a/b")
    write_atomically(root / "a/b/file", b"x")
    assert (tmp_path / "elsewhere/a/b/file").read_bytes() == b"x"
    (root / "a/link").symlink_to(tmp_path / "elsewhere/inside")
    for write in (
        lambda: make_folder(root / "a/link/c"),
        lambda: make_folder(root / "a/link"),
        lambda: write_atomically(root / "a/link/file", b"x"),
        lambda: write_document(root / "a/link/c/file", {}),
    ):
        with pytest.raises(UserError, match="a/link is a symbolic link; expected a folder of its own"):
            write()
    (root / "b").symlink_to(tmp_path / "elsewhere/a/b/file")
    with pytest.raises(UserError, match="b is a symbolic link; expected a file of its own"):
        write_atomically(root / "b", b"y")
    assert not list((tmp_path / "elsewhere/inside").iterdir())
