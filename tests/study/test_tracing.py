"""Mistakes in user code: found by tracing, before training, with file, line, function and arm."""

import pytest

from flaxformer.cli import main

STUDY = """
import sys
import jax.numpy as jnp
from jaxtyping import Array, Float
from flaxformer import Attention, Dense, FeedForward, ModelConfig
from flaxformer.core.params import Parameters, param
from flaxformer.core.struct import leaf, static
from flaxformer.study import Axis, Study
from flaxformer.tasks import Copy
from flaxformer.tasks.base import Source
from flaxformer.training import Run, Training

class Own(FeedForward):
    class Weights(Parameters):
        up: Float[Array, "d_model d_model"] = param(fan_in="d_model")

    def apply(self, weights, x, context):
        return APPLY

class OwnTask(Copy):
    def load(self):
        return LOAD

def measure(params, run):
    return MEASURE

study = Study(
    name="own",
    question="Does it run?",
    baseline=Run(
        model=ModelConfig(vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=5)),
        task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
        training=Training(steps=2),
    ),
    axes=[AXIS],
    seeds=range(2),
    measure=measure,
)
"""
PARTS = {"APPLY": "x @ weights.up", "LOAD": "super().load()", "MEASURE": '{"size": jnp.float32(1)}'}
OWN = 'Axis("model.feed_forward", {"dense": Dense(d_ff=5), "own": Own()}, name="ff")'
TASK = 'Axis("task", {"copy": Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2), '
TASK += '"own": OwnTask(symbols=5, length=3, batch_size=2, evaluation_batches=2)})'
MISTAKES = {
    "an exception": (OWN, {"APPLY": "x @ weights.nothing"}, "arm 'ff=own' fails", "in apply: AttributeError"),
    "a shape": (
        OWN,
        {"APPLY": "(x @ weights.up)[..., :3]"},
        "arm 'ff=own' fails",
        "its own classes: Own (",
        "line 13)",
    ),
    "an end": (OWN, {"APPLY": "sys.exit(0)"}, "arm 'ff=own' fails", "in apply: SystemExit: 0"),
    "a task": (TASK, {"LOAD": "1 / 0"}, "arm 'task=own' fails", "in load: ZeroDivisionError: division by zero"),
    "no source": (TASK, {"LOAD": "None"}, "arm 'task=own' fails", "its own classes: OwnTask ("),
    "a measure": (
        OWN,
        {"MEASURE": '{"size": params.blocks[0].feed_forward.down.sum()}'},
        "arm 'ff=own' fails",
        "in measure",
    ),
    "an escape": (OWN, {"APPLY": 'int("\\x1b[2J")'}, "arm 'ff=own' fails", "in apply: ValueError"),
}


@pytest.mark.every(5, "long")
@pytest.mark.parametrize(("axis", "changes", "words"), [(a, c, w) for a, c, *w in MISTAKES.values()], ids=MISTAKES)
def test_a_mistake_in_user_code_is_found_before_training(tmp_path, monkeypatch, capsys, axis, changes, words):
    monkeypatch.chdir(tmp_path)
    text = STUDY.replace("AXIS", axis)
    for name, value in (PARTS | changes).items():
        text = text.replace(name, value)
    (tmp_path / "own.py").write_text(text)
    for command in (["run"], ["plan"]):
        assert main([*command, "own.py"]) == 2
        out, err = capsys.readouterr()
        said = " ".join(err.split())
        assert said.startswith("error: ")
        assert "Traceback" not in out + err
        assert "own.py, line " in said
        assert "\x1b" not in said
        for word in words:
            assert word in said
    assert not list(tmp_path.glob("runs/**/groups/*"))


def test_user_code_without_mistakes_is_traced_once(tmp_path, monkeypatch):
    from flaxformer.study import tracing
    from flaxformer.study.load import load_study

    text = STUDY.replace("AXIS", OWN)
    for name, value in PARTS.items():
        text = text.replace(name, value)
    (tmp_path / "own.py").write_text(text)
    study, calls = load_study(tmp_path / "own.py"), []
    count = tracing.flops_per_step
    monkeypatch.setattr(tracing, "flops_per_step", lambda *arguments: calls.append(1) or count(*arguments))
    for _ in range(3):
        tracing.check_traces(study)
    assert len(calls) == 2
