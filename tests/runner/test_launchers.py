"""Launchers: shares of the runs, words of the workers, validation of options, and reports about dead workers."""

import io
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from study.tiny import FILE, tiny

from flaxformer.cli import launcher, main
from flaxformer.cli.arguments import RunStudy
from flaxformer.cli.parsing import parse, with_set
from flaxformer.runner.execution import Execution
from flaxformer.runner.launchers import launching, local, ray, slurm
from flaxformer.runner.launchers.launching import LAUNCHERS
from flaxformer.runner.launchers.options import Options, Share, shares
from flaxformer.store.declaration import DeclaredTrial
from flaxformer.store.store import Store
from flaxformer.study import Axis
from flaxformer.study.plan import StudyPlan
from flaxformer.study.program_groups import groups
from flaxformer.system.errors import UserError

WIDTHS = Axis("model.feed_forward.d_ff", {str(width): width for width in (5, 7, 11, 13)}, name="width")


@pytest.fixture(scope="module")
def planned():
    """Return four groups of 6 trials each."""
    return groups(tiny(axes=(WIDTHS, tiny().axes[1]), claims=()).trials())


def said_by(function):
    out = io.StringIO()
    value = function(Console(file=out, width=200))
    return value, out.getvalue()


# --- who gets what ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5, 7, 24, 30])
def test_each_trial_is_in_one_share(parts):
    about = {"arm": "a", "labels": {}, "fingerprint": "f"}
    names = [(f"{group}{seed}", group, seed) for seed in range(6) for group in "dbca"]
    declared = [DeclaredTrial(trial=name, group=group, seed=seed, **about) for name, group, seed in names]
    divided = [share.names(declared) for share in shares(parts)]
    assert sorted(itertools.chain(*divided)) == sorted(trial.trial for trial in declared)
    lengths = [len(names) for names in divided]
    assert max(lengths) - min(lengths) <= 1
    programs = sum(len({name[0] for name in names}) for names in divided)
    assert programs <= 4 + parts - 1
    assert programs == 4 or 4 % parts


@pytest.mark.parametrize("text", ["2", "0/3", "4/3", "1/0", "-1/2", "1/2/3", "\u0661/2", "1/1e1", ""])
def test_invalid_share_raises_an_error(text):
    assert str(Share.parse("2/4")) == "2/4"
    with pytest.raises(UserError, match=rf"share is '{text}'; expected K/N, the K-th of N shares"):
        Share.parse(text)


def test_local_workers_share_all_programs_or_get_their_trials(planned, monkeypatch):
    monkeypatch.setattr(local, "places", lambda: (["0", "1", "2"], "cores"))
    assert local.divide(planned, Options()) == [Share(1, 1)] * 3
    assert local.divide(planned, Options(workers=2)) == [Share(1, 1)] * 2
    assert local.divide(planned[:1], Options()) == shares(3)
    with pytest.raises(UserError, match="workers is 4; expected at most 3, the cores of this machine"):
        local.divide(planned, Options(workers=4))


def test_devices_are_found_without_starting_jax(monkeypatch):
    monkeypatch.setattr(local, "entry_points", lambda group: [type("Plugin", (), {"name": "xla_cuda13"})])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert local.places() == (["3", "GPU-5"], "GPUs")
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert local.places() == (cores, "cores")
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert local.places() == (cores, "cores")
    monkeypatch.setattr(local, "entry_points", lambda group: [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert local.places() == (cores, "cores")


# --- the words of a worker ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        [],
        [
            "--seeds",
            "3:9",
            "--exact",
            "--mesh",
            "data=2",
            "--chunk-steps",
            "7",
            "--save-minutes",
            "0.5",
            "--retry-failed",
        ],
        ["--devices", "1", "--keep", "final", "--on-error", "stop", "model.layers=2", "optimizer.learning_rate=0.1"],
        ["--profile", "101:10"],
    ],
)
def test_workers_get_the_arguments_of_the_command(words):
    arguments = parse(["run", "tiny.py", *words])
    ours = [
        "--launcher",
        "slurm",
        "--workers",
        "2",
        "--slurm",
        "time=9",
        "--on-code-change",
        "retrain",
        "--track",
        "wandb",
    ]
    launched = parse(["run", "tiny.py", *words, *ours])
    passed = parse(["run", *launcher.words_of(launched, Path("/a b/tiny.py"), Path("/out"))])
    changed = {"file": Path("/a b/tiny.py"), "output": Path("/out")}
    assert vars(passed) == vars(arguments) | changed


# --- launching -------------------------------------------------------------------------------------------


def launch(plan, store, kind="local", options=None):
    return launching.launch(kind, plan, Execution(output=store.root), ["tiny.py"], options or Options(), Console())


def test_launch_declares_the_study_and_starts_shares_with_missing_trials(tmp_path, monkeypatch):
    started = []

    def start(words, workers, root, options, console):
        started.append((words, workers, root))
        return False

    plan, store = StudyPlan(tiny(claims=())), Store(tmp_path / "out")
    for kind, options in (("local", Options(slurm=("time=5",))), ("loca", Options())):
        with pytest.raises(UserError, match=r"launcher is local; expected|did you mean 'local'"):
            launch(plan, store, kind, options)
    todo = [group for group in plan.groups if group.name == plan.declaration.trials[0].group]
    monkeypatch.setattr(launching, "missing", lambda *_, **__: todo)
    monkeypatch.setitem(LAUNCHERS, "local", launching.Launcher(lambda groups, _: shares(4), start))
    assert launch(plan, store) is False
    assert started == [(["tiny.py"], shares(4)[:2], (tmp_path / "out").resolve())]
    assert len(store.declaration.trials) == 12


def test_launch_without_missing_trials_starts_no_job(tmp_path, monkeypatch):
    monkeypatch.setattr(launching, "missing", lambda *_, **__: [])
    monkeypatch.setitem(LAUNCHERS, "local", launching.Launcher(lambda groups, options: shares(2), None))
    assert launch(StudyPlan(tiny()), Store(tmp_path / "out")) is True
    assert (tmp_path / "out" / "study.json").exists()


WORDS = {
    0: "print('hello', flush=True)",
    1: "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    2: "raise SystemExit(2)",
    3: "raise SystemExit(1)",
}


def test_dead_worker_is_reported_and_others_continue(monkeypatch):
    def worker(words, own, kind):
        code = WORDS[int(words[-1][0]) - 1]
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(local, "start_worker", worker)
    ended, said = said_by(lambda console: local.start([], shares(4), None, Options(), console))
    assert ended is True
    assert "worker 0: hello" in said
    assert "worker 1 was killed by SIGKILL; its runs are kept" in said
    assert "worker 2 ended with exit code 2" in said
    assert "worker 3" not in said


def test_workers_get_cores_or_gpus(monkeypatch):
    started, cores = [], os.sched_getaffinity(0)
    first = min(cores)

    def start(words, **settings):
        started.append((words, settings, os.sched_getaffinity(0)))

    monkeypatch.setattr(local.subprocess, "Popen", start)
    local.start_worker(["tiny.py"], [str(first)], "cores")
    local.start_worker(["tiny.py"], ["1"], "GPUs")
    (words, settings, own), (_, other, all_cores) = started
    assert words[1:] == ["-m", "flaxformer.cli", "run", "tiny.py"]
    assert settings["start_new_session"]
    assert (own, all_cores, os.sched_getaffinity(0)) == ({first}, cores, cores)
    assert other["env"]["CUDA_VISIBLE_DEVICES"] == "1"


# --- SLURM and Ray -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"), [("90", 90), ("1:30:00", 90), ("0:00:30", 1), ("2-01:00:01", 2941), ("00:05:00", 5)]
)
def test_time_limits_have_the_formats_of_sbatch(text, found):
    assert slurm.minutes(text) == found


def test_slurm_options_become_options_of_sbatch():
    words = ("time=2:00:00", "gpus=4", "cpus=8", "parallel=3", "warning=120", "partition=big", "mem-per-cpu=2G")
    assert slurm.parameters(Options(slurm=words)) == {
        "time": "120",
        "signal": "USR2@120",
        "gpus-per-node": "4",
        "cpus-per-task": "8",
        "parallel": "3",
        "partition": "big",
        "mem-per-cpu": "2G",
    }


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Put an sbatch into PATH that keeps its arguments and its script; return the folder."""
    for name in ("sbatch", "srun"):
        (tmp_path / name).write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/asked\ncat > {tmp_path}/script\necho 7\n'
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_submitted_script_runs_the_command_with_the_share_of_the_job(sbatch):
    root, options = sbatch / "a b", Options(slurm=("cpus=2", "parallel=5"))
    words, some = ["x y.py", "--seeds", "2"], [Share(2, 4), Share(3, 4)]
    ended, said = said_by(lambda console: slurm.start(words, some, root, options, console))
    assert ended is False
    assert "submitted 2 jobs as 7; their output is in" in said
    asked = (sbatch / "asked").read_text().splitlines()
    assert {"--requeue", "--array=2,3%5", "--ntasks-per-node=1", "--cpus-per-task=2", "--signal=USR2@90"} <= set(asked)
    said = (sbatch / "script").read_text()
    assert "srun --cpus-per-task=2 " in said
    check = 'srun() { shift; "$@"; }; python() { printf "%s\\n" "$@"; return "$CODE"; }\n'
    check += said.replace(sys.executable, "python")
    words = ["-m", "flaxformer.cli", "run", "x y.py", "--seeds", "2", "--share", "3/4"]
    again = ["-m", "flaxformer.runner.launchers.resubmit", str(root), "3/4"]
    for code in (0, 1, 2, 130, 137):
        environment = os.environ | {"SLURM_ARRAY_TASK_ID": "3", "CODE": str(code)}
        done = subprocess.run(["bash", "-c", check], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert done.stdout.splitlines() == words + ([*again, str(code)] if code > 128 else [])


def test_refused_jobs_give_one_message(sbatch):
    (sbatch / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    with pytest.raises(UserError, match="sbatch refused the jobs: sbatch: error: invalid partition"):
        slurm.start(["tiny.py"], shares(2), sbatch, Options(), Console())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["time"], "--slurm is given 'time'; expected KEY=VALUE"),
        (["time="], "--slurm is given 'time='; expected KEY=VALUE"),
        (["partition=a\nrm x"], "expected KEY=VALUE"),
        (["Bad Key=1"], "expected KEY=VALUE"),
        (["time=60", "time=70"], "--slurm is given time twice, as 60 and 70"),
        (["time=soon"], "--slurm is given time=soon; expected minutes"),
        (["time=0"], "--slurm is given time=0; expected at least a minute"),
        (["time=2"], "time=2 and warning=90; expected a time limit at least 50 s longer"),
        (["nodes=0"], "--slurm is given nodes=0; expected a whole number of at least 1"),
        (["gpus=all"], "--slurm is given gpus=all; expected a whole number"),
        (["array=1-9"], "--slurm is given array=1-9, which the launcher sets itself"),
    ],
)
def test_invalid_slurm_options_raise_errors(words, message):
    with pytest.raises(UserError, match=message):
        slurm.parameters(Options(slurm=tuple(words)))


def test_missing_slurm_raises_an_error(planned, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="sbatch and srun are not found; run it on a machine"):
        slurm.divide(planned, Options())


@pytest.mark.parametrize("words", [["cpus=2", "gpus=1"]])
def test_ray_options_become_task_resources(words):
    assert ray.resources(Options(ray=tuple(words))) == {"num_cpus": 2, "num_gpus": 1}
    with pytest.raises(UserError, match="--ray is given disk=3; expected cpus=N or gpus=N"):
        ray.resources(Options(ray=("disk=3",)))


# --- the command -----------------------------------------------------------------------------------------


def test_slurm_options_are_not_overrides():
    words = ["a.py", "--slurm", "time=60", "nodes=2", "model.layers=3", "--ray", "cpus=2", "--seeds", "2", "seed=4"]
    rest = ["a.py", "--slurm", "time=60", "nodes=2", "--ray", "cpus=2", "--seeds", "2"]
    assert with_set(RunStudy, words) == [*rest, "--set", "model.layers=3", "seed=4"]


def test_the_value_of_an_option_is_no_override():
    noise = parse(["noise", "a.py", "--change", "model.dropout=0.12", "model.layers=3", "--seeds", "4"])
    assert (noise.change, noise.overrides, noise.seeds) == ("model.dropout=0.12", ("model.layers=3",), "4")
    attempt = parse(["improve", "--reason", "layers=3 is deeper", "a.py", "--confirm", "model.layers=3"])
    assert (attempt.reason, attempt.overrides, attempt.confirm) == ("layers=3 is deeper", ("model.layers=3",), True)
    assert parse(["run", "a.py", "--output", "rate=3"]).output == Path("rate=3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--workers", "2"],
            "--workers is given 2 and launcher is None; expected --launcher local",
        ),
        (["--launcher", "local", "--workers", "0"], "workers is 0; expected a number at least 1"),
        (["--launcher", "local", "--slurm", "time=5"], "--slurm is given ('time=5',) and launcher is local; expected"),
        (["--launcher", "local", "--processes", "2"], "--processes is given 2 and launcher is local; expected one of"),
        (["--launcher", "local", "--workers", "999"], "workers is 999; expected at most"),
        (["--launcher", "slurm", "--slurm", "nodes=0"], "nodes=0; expected a whole number of at least 1"),
        (["--launcher", "local", "--share", "1/2"], "--share is given 1/2 and launcher is local; expected one of them"),
        (["--share", "3/2"], "share is '3/2'; expected K/N"),
    ],
)
def test_invalid_launcher_options_raise_errors(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher.jax.config, "update", lambda *_: None)  # this process goes on to other tests
    (tmp_path / "tiny.py").write_text(FILE)
    assert main(["run", "tiny.py", *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
