"""A training job ends with the same bits however often it was stopped or killed, and says clearly what it refuses."""

import json

import jax
import numpy as np
import pytest

from flaxformer.checkpoint import Checkpoints, Stop
from flaxformer.cli import main
from flaxformer.config import ModelConfig
from flaxformer.files import locked
from flaxformer.jobs import Advanced, Diverged, Evaluated, Job, Saved, Started, train
from flaxformer.jobs.log import Log, read
from flaxformer.struct import UserError
from flaxformer.tasks import Copy
from flaxformer.training import AdamW, Run, Training, start

RUN = Run(
    model=ModelConfig(vocabulary=7, layers=1, d_model=6, heads=2, d_ff=5, dropout=0.1),
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
        if isinstance(event, Advanced) and event.step == stop_after:
            stop.by = 15
        if isinstance(event, Advanced) and event.step == kill_after:
            break
    return events


def results(folder):
    """The log without times, and every number of the newest checkpoint."""
    lines = [{name: line[name] for name in line if name != "seconds"} for line in read(folder / "log.jsonl")]
    losses = [loss for line in lines if line["kind"] == "steps" for loss in line["loss"]]
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    _, state = Checkpoints(folder).restore(jax.eval_shape(start, RUN))
    return losses, evaluations, [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    events = trained(folder)
    return folder, events


def test_a_run_tells_what_it_does(whole):
    folder, events = whole
    assert events[0] == Started(0)
    assert [event.step for event in events if isinstance(event, Advanced)] == [2, 4, 6, 8, 10, 12]
    assert [event.step for event in events if isinstance(event, Evaluated)] == [0, 6, 12]
    assert [event.step for event in events if isinstance(event, Saved)] == [6, 12]
    assert Checkpoints(folder).steps() == [6, 12]
    losses, evaluations, _ = results(folder)
    assert len(losses) == 12
    assert [line["step"] for line in evaluations] == [0, 6, 12]


@pytest.mark.parametrize("steps", [2, 6, 10, 12])
def test_stopped_anywhere_it_saves_and_goes_on_bit_for_bit(whole, tmp_path, steps):
    events = trained(tmp_path, stop_after=steps)
    assert events[-1] == Saved(steps)
    assert trained(tmp_path)[0] == Started(steps)
    assert results(tmp_path) == results(whole[0])


@pytest.mark.parametrize("steps", [2, 8])
def test_killed_anywhere_it_goes_on_from_its_checkpoint_bit_for_bit(whole, tmp_path, steps):
    trained(tmp_path, kill_after=steps)
    assert trained(tmp_path)[0] == Started(steps // 6 * 6)
    assert results(tmp_path) == results(whole[0])


def test_chunks_saves_and_another_chunk_length_change_no_bit(whole, tmp_path):
    trained(tmp_path, stop_after=4)
    trained(tmp_path, chunk_steps=3, save_every=3)
    assert results(tmp_path) == results(whole[0])


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
    assert max(event.step for event in events if isinstance(event, Advanced)) < 12


def test_another_run_in_the_same_folder_is_refused(whole):
    with pytest.raises(UserError, match=r"model\.d_ff"):
        trained(whole[0], RUN.replace(model=RUN.model.replace(d_ff=7)))


def test_two_at_once_are_refused(tmp_path):
    with locked(tmp_path, "training"), pytest.raises(UserError, match="another process is training"):
        trained(tmp_path)


@pytest.mark.parametrize("name", ["chunk_steps", "save_every"])
def test_a_length_of_nothing_is_refused(tmp_path, name):
    with pytest.raises(UserError, match=f"{name} is 0; expected at least 1"):
        Job(output=tmp_path, **{name: 0})


def test_a_log_drops_what_came_after_its_checkpoint_and_what_was_cut_short(tmp_path):
    lines = [{"kind": "steps", "step": step} for step in (2, 4, 6)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "log.jsonl").write_text(text[:-9])
    Log(tmp_path, 4).append(kind="evaluation", step=4)
    assert [(line["kind"], line["step"]) for line in read(tmp_path / "log.jsonl")] == [
        ("steps", 2), ("steps", 4), ("evaluation", 4),
    ]  # fmt: skip


FILE = """
from flaxformer.config import ModelConfig
from flaxformer.tasks import TextFiles
from flaxformer.training import AdamW, Run, Training

run = Run(
    model=ModelConfig(layers=1, d_model=8, heads=2),
    task=TextFiles(path="text.txt", length=8, batch_size=4, evaluation_batches=1),
    optimizer=AdamW(learning_rate=1e-2),
    training=Training(steps=4, evaluate_every=2),
)
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """The command in a folder with a run's file and a text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "tiny.py").write_text(FILE)
    (tmp_path / "text.txt").write_text("to be or not to be " * 50)

    def call(*arguments):
        code = main(list(arguments))
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


def test_train_and_generate(command, tmp_path):
    code, out, _ = command("train", "tiny.py", "--plan")
    assert code == 0
    assert "4 steps of 32 tokens, 128 in all" in out
    assert not (tmp_path / "runs").exists()
    code, out, _ = command("train", "tiny.py", "optimizer.learning_rate=0.02")
    assert code == 0
    assert "step       4  validation loss" in out
    assert command("train", "tiny.py", "optimizer.learning_rate=0.02")[0] == 0
    code, _, err = command("train", "tiny.py")
    assert code == 2
    assert "optimizer.learning_rate" in err
    for how in ((), ("--temperature", "0.8", "--top-k", "5"), ("--beams", "2")):
        code, out, _ = command("generate", "runs/tiny", "--prompt", "to be", "--tokens", "6", *how)
        assert code == 0
        assert out.startswith("to be")
        assert len(out.rstrip("\n").encode()) >= 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "none.py"), "no file 'none.py'; expected a Python file that defines `run`"),
        (("train", "tiny.py", "task.path=none.txt"), "none.txt"),
        (("train", "tiny.py", "task.pth=none.txt"), "did you mean 'path'"),
        (("generate", "runs/nothing"), "runs/nothing"),
    ],
)
def test_a_mistake_gets_one_clear_message(command, arguments, message):
    code, _, err = command(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert message in " ".join(err.split())
