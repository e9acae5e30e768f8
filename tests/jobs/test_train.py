"""A training job ends with the same bits however often it was stopped or killed, and says clearly what it refuses."""

import dataclasses
import importlib.util
import io
import re
import signal
import sys

import jax
import numpy as np
import pytest
from jobs.small import FILE, TEXT
from rich.console import Console

from flaxformer.checkpoint import Checkpoints, Stop
from flaxformer.checkpoint.marker import Marker
from flaxformer.cli import main
from flaxformer.cli.train import Price
from flaxformer.components import Attention, Dense
from flaxformer.config import ModelConfig
from flaxformer.core.paths import replace_at
from flaxformer.data import prepare
from flaxformer.devices.sharding import Devices
from flaxformer.jobs import Job, train
from flaxformer.jobs.progress import RunTotals, follow, show
from flaxformer.jobs.recording import Log
from flaxformer.jobs.train import steps_per_call
from flaxformer.runner.events import Compiled, Diverged, Evaluated, FirstLoss, Progressed, Sampled, Started
from flaxformer.store.job_log import read
from flaxformer.system import digests
from flaxformer.system.errors import UserError
from flaxformer.system.files import lock_folder
from flaxformer.system.remembered import remembered
from flaxformer.tasks import Copy, TokenFiles
from flaxformer.training import AdamW, Run, Training, compiling, evaluate, evaluation_params, start
from flaxformer.training.compiled_run import CompiledRun

RUN = Run(
    model=ModelConfig(
        vocabulary=7, layers=1, d_model=6, attention=Attention(heads=2), feed_forward=Dense(d_ff=5), dropout=0.1
    ),
    task=Copy(symbols=5, length=3, batch_size=4, evaluation_batches=1),
    optimizer=AdamW(learning_rate=1e-2, weight_decay=0.1, clip=0.5),
    training=Training(steps=12, evaluate_every=6, micro_batches=2, ema=0.9),
    seed=3,
)


def trained(folder, run=RUN, stop_after=None, kill_after=None, **settings):
    """Events of a launch that is asked to stop, or ends without a warning, once so many steps are taken."""
    stop, events = Stop(), []
    for event in train(run, Job(output=folder, **({"chunk_steps": 2} | settings)), stop):
        events.append(event)
        if isinstance(event, Progressed) and event.step == stop_after:
            stop.by = 15
        if isinstance(event, Progressed) and event.step == kill_after:
            break
    return events


def untimed(line):
    return {name: line[name] for name in line if name not in ("seconds", "elapsed", "goodput", "lost")}


def results(folder):
    """The log without times, and every number of the newest checkpoint."""
    lines = [untimed(line) for line in read(folder / "log.jsonl")]
    losses = [loss for line in lines if line["kind"] == "steps" for loss in line["loss"]]
    evaluations = [line for line in lines if line["kind"] in ("evaluation", "test")]
    _, state = Checkpoints(folder).restore(jax.eval_shape(start, RUN))
    return losses, evaluations, [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    events = trained(folder)
    return folder, events


@pytest.mark.long
def test_a_run_yields_its_events(whole):
    folder, events = whole
    assert events[0] == Started(0)
    assert isinstance(events[1], Compiled)
    assert events[1].bytes > 0
    assert [event.step for event in events if isinstance(event, Progressed)] == [2, 4, 6, 8, 10, 12]
    assert [event.step for event in events if isinstance(event, Evaluated) and not event.is_test] == [0, 6, 12]
    assert Checkpoints(folder).steps() == [6, 12]
    losses, evaluations, _ = results(folder)
    assert len(losses) == 12
    assert [(line["kind"], line["step"]) for line in evaluations] == [
        ("evaluation", 0), ("evaluation", 6), ("evaluation", 12), ("test", 12),
    ]  # fmt: skip
    [tested] = [event for event in events if isinstance(event, Evaluated) and event.is_test]
    assert tested.metrics == {name: x for name, x in evaluations[-1].items() if name not in ("kind", "step")}
    _, state = Checkpoints(folder).restore(jax.eval_shape(start, RUN))
    again = evaluate(evaluation_params(state, RUN), RUN, OnTestData(RUN.task.load()))
    assert tested.metrics["test_loss"] == pytest.approx(float(again["validation_loss"]), rel=1e-6)


@pytest.mark.long
def test_each_program_is_compiled_once_before_the_first_step(monkeypatch, tmp_path):
    compiling.known_options(compiling.ONCE_ON_CPU)  # compiles a program per option, once
    own, compiled = jax.stages.Lowered.compile, []

    def counted(lowered, **options):
        compiled.append(lowered)
        return own(lowered, **options)

    def priced(run):
        pytest.fail("a step was compiled for its price")

    monkeypatch.setattr(jax.stages.Lowered, "compile", counted)
    monkeypatch.setattr("flaxformer.cli.train.cost_of_run", priced)
    stop, job = Stop(), Job(output=tmp_path, chunk_steps=2, save_every=2)
    for event in train(RUN, job, stop):
        if isinstance(event, Progressed):
            assert len(compiled) == 3  # start, advance and evaluate, before the first steps are reported
            stop.by = signal.SIGTERM
    for kinds in ([Started, Compiled, Progressed], [Started]):  # a resumed run; one that has ended
        compiled.clear()
        events = list(train(RUN, job, Stop()))
        assert [type(event) for event in events[:3]] == kinds
        assert len(compiled) == (3 if Compiled in kinds else 0)
    job = ("train", "job.py", "--samples", "0", "--output", str(tmp_path / "command"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(FILE)
    (tmp_path / "text.txt").write_text(TEXT)
    assert main(job) == 0


@pytest.mark.parametrize("error", [MemoryError("advance needs 9 TB"), UserError("no such kernel")], ids=repr)
def test_a_run_that_does_not_compile_leaves_its_folder_to_another(monkeypatch, tmp_path, error):
    with monkeypatch.context() as broken:
        broken.setattr(CompiledRun, "compile", lambda *arguments, **options: (_ for _ in ()).throw(error))
        with pytest.raises(type(error)):
            trained(tmp_path)
    assert not (tmp_path / "config.json").exists()
    other = RUN.replace(seed=5)
    assert next(iter(train(other, Job(output=tmp_path), Stop()))) == Started(0)


def lines(folder):
    """The lines of the log without times."""
    return [untimed(line) for line in read(folder / "log.jsonl") if line["kind"] != "time"]


@pytest.mark.parametrize("devices", [None, pytest.param(Devices(data=2), marks=pytest.mark.long)], ids=str)
def test_the_first_loss_comes_before_the_first_evaluation(monkeypatch, tmp_path, devices):
    """The log has the lines of a run that evaluates its initial state first, for lack of memory for a second state."""
    events = [type(event) for event in trained(tmp_path / "room", devices=devices)]
    assert events[:5] == [Started, Compiled, FirstLoss, Evaluated, Progressed]
    monkeypatch.setattr(sys.modules["flaxformer.jobs.train"], "machine_bytes", lambda: 0)
    events = [type(event) for event in trained(tmp_path / "none", devices=devices)]
    assert events[:5] == [Started, Compiled, Evaluated, FirstLoss, Progressed]
    assert lines(tmp_path / "room") == lines(tmp_path / "none")
    assert results(tmp_path / "room")[2] == results(tmp_path / "none")[2]


def test_a_run_of_one_step_is_not_evaluated_unless_it_asks(tmp_path):
    run = replace_at(RUN, {"training.steps": 1, "training.evaluate_every": None})
    trial, asked = tmp_path / "trial", tmp_path / "asked"
    events = trained(trial, run)
    assert [type(event) for event in events] == [Started, Compiled, FirstLoss, Progressed]
    assert events[2].loss == events[3].curves["loss"][0]
    console = Console(file=io.StringIO())
    show(events[2], console)
    assert f"step       1  training loss {events[2].loss:.4g}" in console.file.getvalue()
    assert Checkpoints(trial).steps() == [1]
    assert main(["report", str(trial)]) == 0
    trained(asked, replace_at(run, {"training.evaluate_every": 1}))
    assert [(line["kind"], line["step"]) for line in lines(asked)[1:]] == [
        ("evaluation", 0), ("steps", 1), ("evaluation", 1), ("test", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("d_model", "expected"), [(6, 6), (6000, 1)])
def test_a_chunk_of_a_large_model_is_short(monkeypatch, d_model, expected):
    """Six steps are the interval of evaluations; a step of the large model takes a second and more."""
    run = replace_at(RUN, {"model.d_model": d_model, "task.batch_size": 64})
    monkeypatch.setattr("flaxformer.jobs.peak.cpu_cores", lambda: 2)
    assert steps_per_call(run, Job(output="unused"), None) == expected


class OnTestData:
    """A task's data with the test set in place of the evaluation set."""

    def __init__(self, source):
        self.evaluation = source.test


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 6, 10, 12])
def test_a_stopped_job_saves_and_resumes_bit_for_bit(whole, tmp_path, steps):
    trained(tmp_path, stop_after=steps)
    assert Checkpoints(tmp_path).steps()[-1] == steps
    assert trained(tmp_path)[0] == Started(steps)
    assert results(tmp_path) == results(whole[0])


@pytest.mark.long
@pytest.mark.every(2)
@pytest.mark.parametrize("steps", [2, 8])
def test_a_killed_job_resumes_from_its_checkpoint_bit_for_bit(whole, tmp_path, steps):
    trained(tmp_path, kill_after=steps)
    assert trained(tmp_path)[0] == Started(steps // 6 * 6)
    assert results(tmp_path) == results(whole[0])


@pytest.mark.slow
def test_chunks_saves_and_another_chunk_length_change_no_bit(whole, tmp_path):
    trained(tmp_path, stop_after=4)
    trained(tmp_path, chunk_steps=3, save_every=3)
    assert results(tmp_path) == results(whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data", "fsdp"])
def test_a_job_may_begin_on_a_mesh_and_end_on_one_device(whole, tmp_path, name):
    trained(tmp_path, stop_after=6, devices=Devices(**{name: 2}))
    trained(tmp_path)
    losses, evaluations, _ = results(tmp_path)
    np.testing.assert_allclose(losses, results(whole[0])[0], rtol=1e-5)
    assert [line["step"] for line in evaluations] == [0, 6, 12, 12]


@pytest.mark.slow
def test_batches_of_the_host_are_sharded_over_a_mesh(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 50)
    prepare(tmp_path / "text.txt", tmp_path / "tokens")
    task = TokenFiles(path=str(tmp_path / "tokens"), length=6, batch_size=4, evaluation_batches=1)
    run = RUN.replace(model=RUN.model.replace(vocabulary=256), task=task)
    trained(tmp_path / "near", run)
    monkeypatch.setattr("flaxformer.tasks.token_files.RESIDENT", 10)
    trained(tmp_path / "far", run, devices=Devices(data=2))
    near, far = (
        [line["loss"] for line in read(tmp_path / name / "log.jsonl") if "loss" in line] for name in ("near", "far")
    )
    np.testing.assert_allclose(far, near, rtol=1e-5)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (Devices(data=64), "64 devices; expected at most"),
        (Devices(data=2, fsdp=1), r"task.batch_size is 6; expected a multiple of 4, which is mesh data 2 × training"),
    ],
)
def test_unsuitable_devices_are_refused_before_anything_is_written(tmp_path, devices, message):
    run = RUN.replace(task=RUN.task.replace(batch_size=6))
    with pytest.raises(UserError, match=message):
        trained(tmp_path / "run", run, devices=devices)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_has_nothing_left_to_do(whole):
    folder, _ = whole
    before = (folder / "log.jsonl").read_bytes()
    assert trained(folder) == [Started(12)]
    assert (folder / "log.jsonl").read_bytes() == before


def test_a_run_that_diverges_ends_there(tmp_path):
    events = trained(tmp_path, RUN.replace(optimizer=RUN.optimizer.replace(learning_rate=float("1e30"))))
    diverged = [event for event in events if isinstance(event, Diverged)]
    assert len(diverged) == 1
    assert events[-1] == diverged[0]
    assert max(event.step for event in events if isinstance(event, Progressed)) < 12


def test_another_run_in_the_same_folder_is_refused(whole):
    with pytest.raises(UserError, match=r"model\.feed_forward\.d_ff"):
        trained(whole[0], replace_at(RUN, {"model.feed_forward.d_ff": 7}))


def test_two_at_once_are_refused(tmp_path):
    with lock_folder(tmp_path, "training"), pytest.raises(UserError, match="another process is training"):
        trained(tmp_path)


def test_files_are_read_again_after_a_job(tmp_path):
    """Also after one that is refused."""
    readings = []
    read = remembered(lambda: readings.append("read"))
    read()
    with lock_folder(tmp_path, "training"), pytest.raises(UserError, match="another process"):
        trained(tmp_path)
    read()
    read()
    assert readings == ["read", "read"]


@pytest.mark.parametrize("name", ["chunk_steps", "save_every"])
def test_a_length_of_nothing_is_refused(tmp_path, name):
    with pytest.raises(UserError, match=f"{name} is 0; expected a number at least 1"):
        Job(output=tmp_path, **{name: 0})


def test_a_log_drops_what_came_after_its_checkpoint_and_what_was_cut_short(tmp_path):
    lines = [{"kind": "steps", "step": step} for step in (2, 4, 6)]
    text = b"".join(map(digests.line, lines))
    (tmp_path / "log.jsonl").write_bytes(text[:-9])
    Log(tmp_path, 4).record(Evaluated(4, {}))
    assert [(line["kind"], line["step"]) for line in read(tmp_path / "log.jsonl")] == [
        ("steps", 2), ("steps", 4), ("evaluation", 4),
    ]  # fmt: skip


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """The command in a folder with a run's file and a text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "tiny.py").write_text(FILE)
    (tmp_path / "text.txt").write_text(TEXT)

    def call(*arguments):
        code = main(list(arguments))
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


@pytest.mark.long
def test_train_and_generate(command, tmp_path):
    code, out, _ = command("train", "tiny.py", "--samples", "0", "optimizer.learning_rate=0.02")
    assert code == 0
    assert "step       4  validation loss" in out
    assert command("train", "tiny.py", "--samples", "0", "optimizer.learning_rate=0.02")[0] == 0
    code, _, err = command("train", "tiny.py")
    assert code == 2
    assert "optimizer.learning_rate" in err
    for how in ((), ("--temperature", "0.8", "--top-k", "5"), ("--beams", "2")):
        code, out, _ = command("generate", "runs/tiny", "--prompt", "to be", "--tokens", "6", *how)
        assert code == 0
        assert out.startswith("to be")
        assert len(out.rstrip("\n").encode()) >= 5


def test_generating_from_no_run_gets_one_clear_message(command):
    code, _, err = command("generate", "runs/nothing")
    assert code == 2
    assert err.startswith("error: no folder 'runs/nothing'; expected a folder of results")


@pytest.mark.slow
def test_samples_and_trackers_are_shown_and_change_no_number(command, tmp_path):
    tracked = ("--track", "tensorboard") if importlib.util.find_spec("tensorboardX") else ()
    code, out, _ = command("train", "tiny.py", "--samples", "6", *tracked, "--output", "tracked")
    assert code == 0
    lines = read(tmp_path / "tracked" / "log.jsonl")
    said = [line for line in lines if line["kind"] == "sample"]
    assert [line["step"] for line in said] == [0, 2, 4]
    assert len({line["text"] for line in said}) > 1
    assert out.count(" " * 14 + said[0]["prompt"]) == 3
    assert bool(tracked) == any((tmp_path / "tracked").glob("tensorboard/events*"))
    assert command("train", "tiny.py", "--samples", "0", "--output", "silent")[0] == 0
    silent = read(tmp_path / "silent" / "log.jsonl")
    for kind in ("launch", "steps", "evaluation", "test"):
        with_kind = [[untimed(line) for line in log if line["kind"] == kind] for log in (lines, silent)]
        assert with_kind[0] == with_kind[1]
    markers = [(tmp_path / name / "4" / "published.json").read_bytes() for name in ("tracked", "silent")]
    assert Marker.decode(markers[0], 4).digests == Marker.decode(markers[1], 4).digests


@pytest.mark.long
@pytest.mark.parametrize("mesh", ["data=2", "fsdp=2", "tensor=2"])
def test_a_job_on_a_mesh_samples_as_one_device_does(command, tmp_path, mesh):
    texts = {}
    for name, options in (("one", ()), ("mesh", ("--mesh", mesh))):
        assert command("train", "tiny.py", "--samples", "6", *options, "--output", name)[0] == 0
        lines = read(tmp_path / name / "log.jsonl")
        texts[name] = [(line["step"], line["text"]) for line in lines if line["kind"] == "sample"]
    assert [step for step, _ in texts["mesh"]] == [0, 2, 4]
    assert texts["mesh"][0] == texts["one"][0]  # untrained weights have the same bits


def test_the_plan_says_what_a_run_will_take(command, tmp_path):
    code, out, _ = command("train", "tiny.py", "--plan")
    assert code == 0
    assert not (tmp_path / "runs").exists()
    for words in (
        r"blocks/\*/attention +query 8×2×4, .* 288\n",
        r"[\d,]+ parameters\n",
        r"17\.7 kFLOP per token, 565 kFLOP per step",
        r"4 steps of 32 tokens: 128 tokens\n",
        r"on 1 of 2 cpu devices\n",
        r"B of memory per step; about [\d.]+ s, without evaluations\n",
    ):
        assert re.search(words, out), words


def test_progress_shows_loss_speed_and_share_of_the_peak(monkeypatch):
    monkeypatch.setattr("flaxformer.jobs.progress.SECONDS_BETWEEN_LINES", -1)
    price = Price(flops=2 * 10**9, device="NVIDIA H200", devices=Devices(), peak=1e12)
    events = [
        Started(0),
        Compiled("", "cpu:0", 61.0, 53_300_000),
        Progressed("", 1, 2, 2 * RUN.tokens_per_step, 2, 0.01, {"loss": [1.75, 1.5]}),
        Evaluated(2, {"validation_loss": 1.25}),
        Sampled(2, "a\x1b", "b\x07"),
    ]
    console = Console(width=100, record=True, file=io.StringIO())
    assert not follow(events, console, RunTotals(runs=1, steps=12, describe=price.describe))
    out = console.export_text()
    assert "step 2: loss 1.5000  4,800 tokens/s  400 GFLOP/s  MFU 40.0%, 0.1 s left" in out
    assert "validation loss 1.25" in out
    assert "compiled in 1 min 01 s; the largest program needs 53.3 MB on a device" in out
    assert "a·b·" in out
    assert "MFU" not in dataclasses.replace(price, peak=None).describe(200.0)
