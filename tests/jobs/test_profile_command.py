"""`--profile` of `train` and `run`: a trace that other programs read, and the costs by part of the model."""

import gzip
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from jobs.small import FILE, TEXT
from study.tiny import FILE as STUDY

from flaxformer.checkpoint import Checkpoints
from flaxformer.cli import main
from flaxformer.study.load import load
from flaxformer.training import Run, start
from flaxformer.training.flops import flops_per_step

MORE = FILE.replace("steps=4, evaluate_every=2", "steps=12, evaluate_every=6")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("text.txt").write_text(TEXT)
    Path("job.py").write_text(MORE)
    Path("tiny.py").write_text(STUDY)

    def call(*words):
        code = main(list(words))
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    return call


def check_trace(folder):
    """Check that there is one trace, for Perfetto and for xprof, with instructions of a training step."""
    (session,) = (folder / "profile" / "plugins" / "profile").iterdir()
    (perfetto,) = session.glob("*.trace.json.gz")
    events = json.loads(gzip.decompress(perfetto.read_bytes()))["traceEvents"]
    timed = [event for event in events if event.get("ph") == "X" and "hlo_op" in event.get("args", {})]
    assert {event["args"]["hlo_module"] for event in timed} & {"jit_train_chunk", "jit_map_trials"}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in timed)
    (planes,) = session.glob("*.xplane.pb")
    names = [plane.name for plane in jax.profiler.ProfileData.from_file(str(planes)).planes]
    assert "/host:CPU" in names
    return session


def rows(text):
    """The rows of the printed table, by part and direction."""
    table = text[text.index("part  ") :].split("Trace:")[0]
    lines = [re.split(r" {2,}|(?<=[a-z]) (?=\\d)", line.strip()) for line in table.splitlines()[1:] if line.strip()]
    return {tuple(cell for cell in line if re.fullmatch("[a-z_]+", cell)): line for line in lines}


@pytest.mark.long
def test_a_job_is_profiled_and_has_the_same_bits(command, tmp_path):
    out = command("train", "job.py", "--samples", "0", "--profile", "3", "--output", "profiled")
    session = check_trace(tmp_path / "profiled")
    assert "profile of steps 7 to 9: a step takes " in out
    assert "no roofline: there are no published figures of cpu" in out
    assert f"Trace: {session.relative_to(tmp_path)}" in out
    found = rows(out)
    assert {("attention", "forward"), ("feed_forward", "backward"), ("optimizer",), ("head", "forward")} <= set(found)
    flops = flops_per_step(load(Path("job.py"), "run", Run)) / 1e9
    assert float(found["total",][3]) == pytest.approx(flops, rel=0.01)
    command("train", "job.py", "--samples", "0", "--output", "plain")
    run = load(Path("job.py"), "run", Run)
    states = [Checkpoints(tmp_path / name).restore(jax.eval_shape(start, run))[1] for name in ("profiled", "plain")]
    for leaf, other in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(leaf, other)
    assert not (tmp_path / "plain" / "profile").exists()


@pytest.mark.long
def test_the_first_program_of_a_study_is_profiled(command, tmp_path):
    out = command("run", "tiny.py", "--seeds", "1", "--profile", "3:2", "--output", "out", "--devices", "1")
    check_trace(tmp_path / "out")
    assert out.count("profile of steps 3 to 4: a step takes ") == 1
    assert ("attention", "backward") in rows(out)


@pytest.mark.parametrize("words", [("train", "job.py"), ("run", "tiny.py")])
def test_steps_that_are_none_are_refused(command, capsys, words):
    assert main([*words, "--profile", "3:x"]) == 2
    assert "profile is '3:x'; expected a number of steps, or FIRST:COUNT, such as 101:10" in capsys.readouterr().err
    assert not Path("runs").exists()
