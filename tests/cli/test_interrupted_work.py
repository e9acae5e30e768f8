"""Interruption of every command while it works: in Python, in native code, while it compiles, trains and generates.

A command runs in a process of its own, in which one function is replaced by one that says that it was called, and then
waits for ever, or goes on. The signal is sent when it was called, so that no test depends on time.
"""

import signal
import subprocess
import sys

import pytest
from jobs.small import FILE as JOB
from jobs.small import TEXT
from study.tiny import FILE as STUDY

PROGRAM = '''
import ctypes, importlib, sys, time

place, how = sys.argv[1:3]
sys.argv[:3] = ["flaxformer"]

def in_native_code(function, arguments, options):
    """Wait for a lock that is taken: no signal ends it, and Python calls no handler."""
    library, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)

def in_python(function, arguments, options):
    while True:
        time.sleep(0.01)

def goes_on(function, arguments, options):
    return function(*arguments, **options)

def replaced(function, then):
    def call(*arguments, **options):
        print("\\nCALLED", flush=True)
        return then(function, arguments, options)
    return call

module, _, path = place.partition(":")
*owners, name = path.split(".")
owner = importlib.import_module(module)
for one in owners:
    owner = getattr(owner, one)
setattr(owner, name, replaced(getattr(owner, name), globals()[how]))
from flaxformer.cli import main
sys.exit(main())
'''
MEASURE = "def measure(params, run):\n    return {'layers': run.model.layers}\n"
POINTS = "N,D,L\n" + "".join(f"{n * 1e8},{d * 1e9},{2 + 1 / n + 1 / d}\n" for n in (1, 2, 4) for d in (1, 2, 4))
LONG = "training.steps=3000000"
COMPILATION = "jax.stages:Lowered.compile"

MOMENTS = {
    "run": (["run", "tiny.py", LONG], COMPILATION),
    "train": (["train", "job.py", LONG], COMPILATION),
    "train, before it compiles": (["train", "job.py", LONG], "flaxformer.jobs.train:CompiledRun"),
    "plan": (["plan", "tiny.py"], COMPILATION),
    "check": (["check", "tiny.py"], "flaxformer.cli.check:check_subject"),
    "verify": (["verify", "results", "--file", "tiny.py", "--trials", "1"], COMPILATION),
    "measure": (["measure", "results", "measure.py"], "flaxformer.runner.trial_measurements:read_weights"),
    "report": (["report", "results"], "flaxformer.report.html:render"),
    "generate": (["generate", "job"], "flaxformer.cli.generate:stream"),
    "fit": (["fit", "points.csv"], "flaxformer.cli.fit:fit_joint_law"),
    "prepare": (
        ["prepare", "text.txt", "out", "--tokenizer", "bpe", "--vocabulary", "300"],
        "flaxformer.data.prepare:train_bpe",
    ),
}  # fmt: skip
"""A command at work, and the function in which the signal finds it."""
DEFAULT = {("run", "in_native_code"), ("train", "in_native_code"), ("fit", "in_python")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a finished study whose weights are kept, a finished job, and inputs of the other commands."""
    folder = tmp_path_factory.mktemp("interrupted")
    files = {
        "program.py": PROGRAM, "tiny.py": STUDY.replace("    caveats=", '    keep="final",\n    caveats='),
        "job.py": JOB, "text.txt": TEXT, "measure.py": MEASURE, "points.csv": POINTS,
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def finished(folder):
    for words in (["run", "tiny.py", "--output", "results"], ["train", "job.py", "--output", "job"]):
        subprocess.run([sys.executable, "-m", "flaxformer.cli", *words], cwd=folder, check=True, capture_output=True)
    return folder


def start(folder, words, place, how):
    """Start a command, and return its process when the function at `place` was called."""
    command = [sys.executable, "program.py", place, how, *words]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert any(line == "CALLED\n" for line in process.stdout), process.stderr.read()
    return process


def end(process, code=130):
    """Wait for the end of a process, and return what it has printed since."""
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in out + err
    assert "ignored" not in err
    assert process.returncode == code, out + err
    return out, err


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "how"),
    [
        pytest.param(command, how, marks=() if (command, how) in DEFAULT else pytest.mark.slow)
        for command in MOMENTS
        for how in ("in_native_code", "in_python")
    ],
)
def test_a_signal_ends_a_command_wherever_it_is(folder, command, how, request):
    words, place = MOMENTS[command]
    if {"results", "job"} & set(words):
        request.getfixturevalue("finished")
    process = start(folder, words, place, how)
    process.send_signal(signal.SIGINT)
    _, err = end(process)
    assert err.count("Stopped.") == 1


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_a_study_that_trains(folder, number, tmp_path):
    words = ["run", "tiny.py", LONG, "--devices", "1", "--output", str(tmp_path / "out")]
    process = start(folder, words, "flaxformer.runner.program:Program._add", "goes_on")
    process.send_signal(number)
    assert "Stopped." in end(process)[1]
    assert not list((tmp_path / "out/leases").glob("*.json"))


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_a_job_that_trains_after_a_save(folder, number, tmp_path):
    words = ["train", "job.py", LONG, "--output", str(tmp_path / "out"), "--save-every", "1000000"]
    process = start(folder, words, "flaxformer.training.compiled_run:CompiledRun.advance", "goes_on")
    process.send_signal(number)
    assert f"stopped by {number.name}" in end(process)[0]
    [step] = [int(path.name) for path in (tmp_path / "out").iterdir() if path.name.isdigit()]
    assert 0 < step < 1000


@pytest.mark.slow
def test_a_signal_ends_generation_between_tokens(finished):
    words = ["generate", "job", "--tokens", "1000000", "--temperature", "1"]
    command = [sys.executable, "-m", "flaxformer.cli", *words]
    process = subprocess.Popen(command, cwd=finished, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.read(3)
    process.send_signal(signal.SIGINT)
    end(process)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_second_signal_ends_a_study_whose_steps_do_not_end(folder, number, tmp_path):
    words = ["run", "tiny.py", "--devices", "1", "--output", str(tmp_path / "out")]
    process = start(folder, words, "flaxformer.runner.program:Program._add", "in_native_code")
    process.send_signal(number)
    assert process.stderr.readline().startswith("Stopping: waiting")
    process.send_signal(number)
    end(process, 128 + number)
