"""Launchers: assignment of trials, payloads, validation of options, and reports about dead workers."""

import dataclasses
import io
import itertools
import json
import os
import pickle
import stat
import subprocess
import sys

import pytest
from rich.console import Console
from study.tiny import FILE, tiny

from flaxformer.cli import launcher, main
from flaxformer.cli.arguments import RunStudy
from flaxformer.cli.parsing import with_set
from flaxformer.devices.sharding import Devices
from flaxformer.launchers import (
    LAUNCHERS,
    Options,
    Payload,
    division,
    launching,
    local,
    payload,
    ray,
    rendezvous,
    slurm,
    work,
)
from flaxformer.runner.execution import Execution
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


@pytest.fixture
def example(tmp_path):
    file = tmp_path / "tiny.py"
    file.write_text(FILE)
    execution = Execution(output=tmp_path / "out", devices=1, chunk_steps=3, layout="scanned", mesh=Devices(data=2))
    return Payload(
        file=file, jobs=(("a", "b"), None), execution=execution, overrides=("seed=1",), seeds="1000:1002",
        retry_failed=True, on_error="stop", interface="lo", code={"commit": None, "source": "0"},
    )  # fmt: skip


def said_by(function):
    out = io.StringIO()
    value = function(Console(file=out, width=200))
    return value, out.getvalue()


# --- who gets what ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2, 3, 4, 5, 7, 24, 30])
def test_each_trial_is_assigned_once(planned, jobs):
    dealt = division.names(division.assign(planned, jobs))
    assert len(dealt) == min(jobs, 24)
    assert sorted(itertools.chain(*dealt)) == sorted(trial.name for group in planned for trial in group.trials)
    sizes = [len(job) for job in dealt]
    assert max(sizes) - min(sizes) <= (6 if jobs < 4 else 1)


def test_largest_groups_are_assigned_first():
    def group(name, trials):
        return dataclasses.replace(whole, name=name, trials=whole.trials[:trials])

    (whole,) = groups(tiny(axes=(tiny().axes[1],), claims=()).trials())
    found = division.assign([group("a", 1), group("b", 2), group("c", 3), group("d", 5)], 2)
    assert [[one.name for one in job] for job in found] == [["d", "a"], ["c", "b"]]


def test_no_groups_give_no_jobs():
    assert division.assign([], 3) == []
    assert division.shares([], 0) == []


def test_local_workers_share_all_groups_or_get_their_trials(planned, monkeypatch):
    monkeypatch.setattr(local, "places", lambda: (["0", "1", "2"], "cores"))
    assert local.divide(planned, Options()) == [division.EVERYTHING] * 3
    assert local.divide(planned, Options(workers=2)) == [division.EVERYTHING] * 2
    assert len(local.divide(planned[:1], Options())) == 3
    with pytest.raises(UserError, match="workers is 4; expected at most 3, the cores of this machine"):
        local.divide(planned, Options(workers=4))
    assert division.shares(["0", "1", "2"], 2) == [["0"], ["1", "2"]]


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


# --- the payload -----------------------------------------------------------------------------------------


def test_a_payload_is_read_as_it_was_written(example, tmp_path):
    example.write(tmp_path / "one.json")
    assert payload.read(tmp_path / "one.json") == example
    assert example.job(0) == ("a", "b")
    assert example.job(1) is None
    study = dataclasses.replace(example, overrides=("training.steps=9",)).study()
    assert (study.baseline.training.steps, len(study.seeds)) == (9, 2)
    with pytest.raises(UserError, match="job is 2; expected one from 0 to 1"):
        example.job(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:40], "is damaged"),
        (lambda text: text.replace('"format": 1', '"format": 7'), "not a payload of format 1"),
        (lambda text: "[]", "not a payload of format 1"),
        (lambda text: text.replace('"chunk_steps"', '"chunks"'), "is damaged .*chunks"),
        (lambda text: text.replace('"chunk_steps": 3', '"chunk_steps": 0'), "chunk_steps is 0; expected at least 1"),
        (lambda text: text.replace('"jobs"', '"work"'), "is damaged .*jobs"),
        (lambda text: text.replace('"file"', '"pickle": "x", "file"'), "is damaged .*pickle"),
        (lambda text: "[" * 100_000, "is damaged"),
    ],
)
def test_invalid_payload_raises_an_error(example, tmp_path, change, message):
    path = tmp_path / "one.json"
    example.write(path)
    path.write_text(change(path.read_text()))
    with pytest.raises(UserError, match=message):
        payload.read(path)


def test_missing_payload_raises_an_error(tmp_path):
    with pytest.raises(UserError, match=r"nothing.json' cannot be read .*; expected a file written by --launcher"):
        payload.read(tmp_path / "nothing.json")


def test_launch_folders_are_private(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    for name in ("open", "new"):
        assert stat.S_IMODE(payload.private(tmp_path / name).stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(UserError, match="link' is a link or belongs to another user; expected a folder of your own"):
        payload.private(tmp_path / "link")


# --- launching -------------------------------------------------------------------------------------------


def test_launch_declares_the_study_and_assigns_missing_trials(example, tmp_path, monkeypatch):
    handed = []

    def start(path, given, options, console):
        handed.append((path, payload.read(path)))
        return False

    monkeypatch.setitem(LAUNCHERS, "local", launching.Launcher(lambda groups, _: division.assign(groups, 2), start))
    example = dataclasses.replace(example, overrides=())
    study = example.study()
    for kind, options in (("local", Options(slurm=("time=5",))), ("loca", Options())):
        with pytest.raises(UserError, match=r"launcher is local; expected|did you mean 'local'"):
            launching.launch(kind, study, example, options, Console())
    assert launching.launch("local", StudyPlan(study), example, Options(workers=2), Console()) is False
    ((path, found),) = handed
    assert path.parent == tmp_path / "out" / "launches"
    assert sorted(itertools.chain(*found.jobs)) == sorted(trial.name for trial in study.trials())
    assert set(found.code) == {"commit", "source", "study_file"}
    assert found == dataclasses.replace(example, jobs=found.jobs, code=found.code, interface=None)
    assert len(Store(tmp_path / "out").declaration.trials) == len(study.trials())


def test_launch_without_missing_trials_starts_no_job(example, tmp_path, monkeypatch):
    monkeypatch.setattr(launching, "missing", lambda *_, **__: [])
    monkeypatch.setitem(LAUNCHERS, "local", launching.Launcher(lambda groups, options: [], None))
    assert launching.launch("local", StudyPlan(example.study()), example, Options(), Console()) is True
    assert (tmp_path / "out" / "study.json").exists()


WORDS = {
    0: "print('hello', flush=True)",
    1: "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    2: "raise SystemExit(2)",
    3: "raise SystemExit(1)",
}


def test_dead_worker_is_reported_and_others_continue(example, monkeypatch):
    def worker(path, index, own, kind):
        return subprocess.Popen([sys.executable, "-c", WORDS[index]], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(local, "start_worker", worker)
    example = dataclasses.replace(example, jobs=(None,) * 4)
    ended, said = said_by(lambda console: local.start(None, example, Options(), console))
    assert ended is True
    assert "worker 0: hello" in said
    assert "worker 1 was killed by SIGKILL; its runs are kept" in said
    assert "worker 2 ended with exit code 2" in said
    assert "worker 3" not in said


def test_workers_get_cores_or_gpus_and_the_compilation_cache(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(local.subprocess, "Popen", lambda words, **settings: started.append((words, settings)))
    local.start_worker(tmp_path / "p.json", 1, ["2", "3"], "cores")
    local.start_worker(tmp_path / "p.json", 0, ["1"], "GPUs")
    (first, _), (second, settings) = started
    assert first[1:] == ["-m", "flaxformer.launchers.worker", str(tmp_path / "p.json"), "1", "--cores", "2,3"]
    assert second[-1] == "0"
    assert settings["env"]["CUDA_VISIBLE_DEVICES"] == "1"
    assert settings["start_new_session"]


def test_worker_reports_unreadable_payload(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        work.work(tmp_path / "nothing.json", 0, Console())


# --- SLURM, Ray, several processes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"), [("90", 90), ("1:30:00", 90), ("0:00:30", 1), ("2-01:00:01", 2941), ("00:05:00", 5)]
)
def test_time_limits_have_the_formats_of_sbatch(text, found):
    assert slurm.minutes(text) == found


def test_slurm_options_become_submitit_parameters():
    asked = slurm.parameters(Options(slurm=("time=2:00:00", "gpus=4", "cpus=8", "partition=big", "mem-per-cpu=2G")))
    assert asked == {
        "time": 120,
        "signal_delay_s": 90,
        "gpus_per_node": 4,
        "cpus_per_task": 8,
        "ntasks_per_node": 1,
        "additional_parameters": {"partition": "big", "mem-per-cpu": "2G", "requeue": True},
    }


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
        (["nodes=2"], "nodes=2 and interface is None; expected --interface NAME"),
    ],
)
def test_invalid_slurm_options_raise_errors(words, message):
    with pytest.raises(UserError, match=message):
        slurm.parameters(Options(slurm=tuple(words)))


def test_missing_slurm_raises_an_error(planned, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="sbatch and srun are not found; run it on a machine"):
        slurm.divide(planned, Options())


def test_pickled_job_holds_only_the_path():
    data = pickle.dumps(slurm.SlurmJob("/somewhere/one.json"))
    assert pickle.loads(data) == slurm.SlurmJob("/somewhere/one.json")
    assert len(data) < 150


def test_requeued_job_has_the_same_arguments():
    pytest.importorskip("submitit")
    job = slurm.SlurmJob("/somewhere/one.json")
    again = job.checkpoint(3)
    assert (again.function, again.args) == (job, (3,))


@pytest.mark.parametrize("words", [["cpus=2", "gpus=1"]])
def test_ray_options_become_task_resources(words):
    assert ray.resources(Options(ray=tuple(words))) == {"num_cpus": 2, "num_gpus": 1}
    with pytest.raises(UserError, match="--ray is given disk=3; expected cpus=N or gpus=N"):
        ray.resources(Options(ray=("disk=3",)))


def test_interfaces_have_addresses():
    assert rendezvous.address_of("lo") == "127.0.0.1"
    assert rendezvous.address_of("10.1.2.3") == "10.1.2.3"
    with pytest.raises(UserError, match=r"interface is 'none0'; expected an address, or one of .*lo"):
        rendezvous.address_of("none0")


def test_processes_connect_to_the_address_of_the_first(tmp_path, monkeypatch):
    met = []
    monkeypatch.setattr(rendezvous.distributed, "initialize", lambda *arguments: met.append(arguments))
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "")
    for process in (0, 1):
        rendezvous.rendezvous(tmp_path, "7-0", "lo", 2, process)
    (address, *first), (same, *second) = met
    assert (first, second) == ([2, 0], [2, 1])
    assert (
        address
        == same
        == os.environ["JAX_COORDINATOR_BIND_ADDRESS"]
        == json.loads((tmp_path / "7-0.coordinator").read_text())
    )
    assert address.startswith("127.0.0.1:")
    monkeypatch.setattr(rendezvous, "SECONDS", 0.0)
    with pytest.raises(UserError, match=r"8-0.coordinator' does not exist after 0 s; expected it from the first"):
        rendezvous.rendezvous(tmp_path, "8-0", "lo", 2, 1)


# --- the command -----------------------------------------------------------------------------------------


def test_slurm_options_are_not_overrides():
    words = ["a.py", "--slurm", "time=60", "nodes=2", "model.layers=3", "--ray", "cpus=2", "--seeds", "2", "seed=4"]
    rest = ["a.py", "--slurm", "time=60", "nodes=2", "--ray", "cpus=2", "--seeds", "2"]
    assert with_set(RunStudy, words) == [*rest, "--set", "model.layers=3", "seed=4"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--workers", "2"],
            "--workers is given 2 and launcher is None; expected --launcher local",
        ),
        (["--launcher", "local", "--workers", "0"], "workers is 0; expected at least 1"),
        (["--launcher", "local", "--slurm", "time=5"], "--slurm is given ('time=5',) and launcher is local; expected"),
        (["--launcher", "local", "--processes", "2"], "--processes is given 2 and launcher is local; expected one of"),
        (["--launcher", "local", "--workers", "999"], "workers is 999; expected at most"),
        (["--launcher", "slurm", "--slurm", "nodes=2"], "expected --interface NAME"),
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
