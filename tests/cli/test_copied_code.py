"""Code of a results folder is executed only with --trust-code, or trust_code=True in Python, after its digest."""

import json
import shutil
from pathlib import Path

import pytest
from study.tiny import cache_folder, kept_programs

import flaxformer
from flaxformer.cli import main
from flaxformer.cli.arguments import COMMANDS
from flaxformer.study import initial_weights
from flaxformer.study.copied_code import load_run
from flaxformer.system import digests
from flaxformer.system.errors import UserError
from flaxformer.system.files import digest_of
from flaxformer.training import From

FILE = """
from pathlib import Path
from flaxformer import Attention, Dense, ModelConfig
from flaxformer.study import Axis, Study
from flaxformer.tasks import TextFiles
from flaxformer.training import Run, Training

class Own(Dense):
    pass

study = Study(
    name="foreign",
    question="Is code executed?",
    baseline=Run(
        model=ModelConfig(layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Own(d_ff=11)),
        task=TextFiles(path="TEXT", length=8, batch_size=2, evaluation_batches=1),
        training=Training(steps=1, evaluate_every=1),
    ),
    axes=[Axis("optimizer.learning_rate", {"low": 1e-3}, name="rate")],
    seeds=range(1),
    keep="final",
)
"""
STUDY_FROM = """
from flaxformer import Attention, Dense, ModelConfig
from flaxformer.study import Axis, Study
from flaxformer.tasks import TextFiles
from flaxformer.training import From, Run, Training

run = Run(
    model=ModelConfig(layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11)),
    task=TextFiles(path="TEXT", length=8, batch_size=2, evaluation_batches=1),
    training=Training(steps=1),
    init=From(path="job"),
)
RATE = Axis("optimizer.learning_rate", {"low": 1e-3}, name="rate")
study = Study(name="own", question="?", baseline=run, axes=[RATE], seeds=range(1))
"""
MEASURE = "def measure(params, run):\n    return {'layers': run.model.layers}\n"
POINTS = "N,D,L\n" + "".join(
    f"{n},{d},{1.7 + 400 * n**-0.34 + 400 * d**-0.28}\n" for n in (1e6, 1e7, 1e8) for d in (1e8, 1e9, 1e10)
)
"""Points of a joint scaling law."""
NEEDED = {
    "generate of a job": ["generate", "job", "--tokens", "1"],
    "generate of a study": ["generate", "results", "--arm", "rate=low", "--tokens", "1"],
    "generate of kept weights": ["generate", "results/weights/TRIAL", "--tokens", "1"],
    "measure": ["measure", "results", "measure.py"],
    "train": ["train", "from.py", "--output", "trained"],
    "declare": ["declare", "from.py", "--output", "declared"],
    "run": ["run", "from.py", "--output", "trained_study"],
    "load_run": lambda folder, trust: load_run(Path("job"), trust),
    "weights": lambda folder, trust: flaxformer.results("results").weights(trust_code=trust),
    "From": lambda folder, trust: initial_weights.read(started_from("job", trust)),
}
"""Whatever reads the run of a foreign folder."""
ALWAYS = {"replicate": ["replicate", "results"], "verify": ["verify", "results"]}
"""Commands that train the study of a folder again."""
NEVER = {
    "report": ["report", "results"],
    "report of all": ["report", "."],
    "status": ["status", "results"],
    "status --watch": ["status", "results", "--watch"],
    "compare": ["compare", "results", "results"],
    "plan": ["plan", "from.py"],
    "plan of it": ["plan", "other.py", "--output", "results"],
    "check": ["check", "from.py", "--laws", "causality"],
    "fit": ["fit", "points.csv", "--resamples", "2"],
    "new": ["new", "study", "mine", "--like", "from.py"],
    "results": lambda folder, trust: flaxformer.results("results").table,
    "join": lambda folder, trust: flaxformer.join("results", "results"),
}
"""What shows a folder, or reads a file of the user's beside it."""
REFUSED = {
    "prepare": ["prepare", "results/code", "tokens", "--pattern", "**/*.py"],
    "fit of a table": ["fit", "results/results.parquet"],
    "bench": ["bench", "--folder", "results"],
    "claims": ["claims", "--folder", "results", "--output", "claims_of_results"],
    "run into it": ["run", "other.py", "--output", "results"],
    "declare into it": ["declare", "other.py", "--output", "results"],
    "improve into it": ["improve", "ledger.py", "--output", "results"],
    "noise into it": ["noise", "other.py", "--output", "results"],
    "train into it": ["train", "other.py", "--output", "job"],
    "verify --file": ["verify", "results", "--file", "other.py"],
    "replicate --file": ["replicate", "results", "--file", "other.py", "--seeds", "7:8"],
}
"""What refuses a folder that holds another study or run, or nothing that the command reads."""
FLAGLESS = ("train", "declare", "run")
"""Commands whose own file says, in `From`, whom it trusts."""


def started_from(path, trust):
    return load_run(Path("sound")).replace(init=From(path=path, trust_code=trust))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the results of a study that has a class of its own, and kept weights."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "text.txt").write_text("to be or not to be " * 100)
    (folder / "own.py").write_text(FILE.replace("TEXT", str(folder / "text.txt")))
    with kept_programs(cache_folder(tmp_path_factory)):
        assert main(["run", str(folder / "own.py"), "--output", str(folder / "out"), "--devices", "1"]) == 0
        yield folder


@pytest.fixture
def foreign(trained, tmp_path, monkeypatch):
    """Make the folders `results` and `job` of somebody whose file leaves a trace when it is executed.

    Its class is not one of this process: the name of its module differs in each call.
    """
    monkeypatch.chdir(tmp_path)
    study = STUDY_FROM.replace("TEXT", str(trained / "text.txt"))
    other = study.replace("init=From", "# ")
    ledger = f"{other}\nfrom flaxformer import Ledger\nledger = Ledger(name='own', start=run, effect=0.1)\n"
    (tmp_path / "ledger.py").write_text(ledger)
    for name, text in {"from.py": study, "other.py": other, "measure.py": MEASURE, "points.csv": POINTS}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("flaxformer.report.figures.draw", lambda figures, folder: {})
    count = iter(range(99))

    def make(change=None):
        module = f"module{next(count)}_{digest_of(str(tmp_path).encode())}"
        for path in ("results", "job", "sound", "executed"):
            shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink(missing_ok=True)
        shutil.copytree(trained / "out", "results")
        [copy] = Path("results/code").glob("*/own.py")
        text = f"{copy.read_text()}\nPath({str(tmp_path / 'executed')!r}).touch()\n"
        digest = digest_of(f"{module}.py\0{text}\0".encode())
        shutil.rmtree("results/code")
        Path(f"results/code/{digest}").mkdir(parents=True)
        Path(f"results/code/{digest}/{module}.py").write_text(text)
        [config] = Path("results/weights").glob("*/config.json")
        sound = digests.read_document(config)
        data = json.loads(json.dumps(sound).replace("own.Own", f"{module}.Own" if change is None else "Dense"))
        data["source"] = f"code/{digest}/{module}.py"
        if change is not None:
            change(data["run"]["model"]["feed_forward"])
        digests.write_document(config, data)
        launches, _ = digests.lines(Path("results/launches.jsonl"))
        changed = [one | {"file": f"{module}.py", "code": digest} for one in launches]
        Path("results/launches.jsonl").write_bytes(b"".join(map(digests.line, changed)))
        shutil.copytree(config.parent, "job")
        shutil.copytree("results/code", "job/code")
        shutil.copytree(config.parent, "sound")
        digests.write_document(Path("sound/config.json"), json.loads(json.dumps(sound).replace("own.Own", "Dense")))
        return config.parent.name

    return make


def rename(data):
    data["kind"] = "evil.Dense"


def lose_a_field(data):
    del data["d_ff"]


def perform(action, trial, trust, capsys):
    """Do what a user does, and return the error message; nothing if it succeeds."""
    if callable(action):
        try:
            action(Path.cwd(), trust)
        except UserError as error:
            return str(error)
        return ""
    words = [word.replace("TRIAL", trial) for word in action]
    if words[0] in FLAGLESS and trust:
        Path("from.py").write_text(Path("from.py").read_text().replace('path="job")', 'path="job", trust_code=True)'))
    elif trust:
        words.append("--trust-code")
    capsys.readouterr()
    code, err = main(words), " ".join(capsys.readouterr().err.split())
    assert (code == 2) == bool(err), (code, err)
    return err


@pytest.mark.every(32, "long")
@pytest.mark.parametrize("change", [None, rename, lose_a_field], ids=lambda one: getattr(one, "__name__", "as written"))
@pytest.mark.parametrize("name", [*NEEDED, *ALWAYS, *NEVER, *REFUSED])
def test_no_code_of_a_folder_is_executed_without_trust(foreign, capsys, name, change):
    trial = foreign(change)
    message = perform({**NEEDED, **ALWAYS, **NEVER, **REFUSED}[name], trial, False, capsys)
    assert not Path("executed").exists()
    if name in NEVER or name in REFUSED:
        assert (message == "") == (name in NEVER), message
    elif name in NEEDED and change is lose_a_field:
        assert "has no 'd_ff'; expected every field" in message
    else:
        folder = "results" if name in ALWAYS or "stud" in name or name in ("measure", "weights") else ""
        why = "trained again" if name in ALWAYS else "is of kind 'evil.Dense'" if change else ".Own'"
        assert all(word in message for word in (folder, "--trust-code", "trust_code=True", why)), message


@pytest.mark.every(12, "long")
@pytest.mark.parametrize("name", [*NEEDED, *ALWAYS])
def test_code_of_a_folder_is_executed_with_trust_if_its_digest_is_right(foreign, capsys, name):
    action = {**NEEDED, **ALWAYS}[name]
    trial = foreign()
    [copy] = Path("results/code").glob("*/module*.py")
    for path in (copy, Path("job") / copy.relative_to("results")):
        path.write_text(path.read_text() + "x = 1\n")
    assert "was changed after it was written" in perform(action, trial, True, capsys)
    assert not Path("executed").exists()
    trial = foreign()
    message = perform(action, trial, True, capsys)
    assert Path("executed").exists()
    assert name in ALWAYS or message == ""


@pytest.mark.parametrize("name", [name for name in NEEDED if name != "From"])
def test_a_run_of_the_package_alone_executes_nothing_even_with_trust(foreign, capsys, name):
    trial = foreign(lose_a_field)
    assert "has no 'd_ff'; expected every field" in perform(NEEDED[name], trial, True, capsys)
    assert not Path("executed").exists()


def test_every_command_is_in_a_table():
    actions = [action for table in (NEEDED, ALWAYS, NEVER, REFUSED) for action in table.values()]
    assert {words[0] for words in actions if isinstance(words, list)} == {*COMMANDS} - {"catalog", "completion"}


def test_trust_is_no_part_of_the_identity_and_is_read_from_no_file(foreign, tmp_path):
    foreign()
    for trust in (False, True):
        assert "trust_code" not in json.dumps(flaxformer.core.canonical.canonical(started_from("job", trust)))
    data = digests.read_document(Path("sound/config.json"))
    run = flaxformer.core.canonical.canonical(started_from("job", True))
    run["init"]["trust_code"] = True
    digests.write_document(Path("sound/config.json"), data | {"run": run})
    with pytest.raises(UserError, match="From has no field 'trust_code'"):
        load_run(Path("sound"))
