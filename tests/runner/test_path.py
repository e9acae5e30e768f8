"""The path of calls from the command line to the training step: few files, each entered once."""

import json
import re
from itertools import groupby
from pathlib import Path

import pytest

import flaxformer
from flaxformer import runner
from flaxformer.cli import main

ROOT = Path(flaxformer.__file__).parent
FILE = '''
import json, sys, threading, traceback
from pathlib import Path

import jax.numpy as jnp

from flaxformer import Attention, Dense, ModelConfig
from flaxformer.study import Study
from flaxformer.tasks import Copy
from flaxformer.training import LossTerm, Run, Training


class Recorder(LossTerm):
    """Adds nothing to the loss, and writes down the calls by which it is traced, of the main thread and of its own."""

    def value(self, params, outcome, batch):
        frames = [sys._current_frames()[threading.main_thread().ident], sys._getframe()]
        stacks = [reversed(list(traceback.walk_stack(frame))) for frame in frames]
        calls = [(frame.f_code.co_filename, frame.f_code.co_name) for stack in stacks for frame, _ in stack]
        with Path(__file__).with_name("calls.jsonl").open("a") as file:
            file.write(json.dumps(calls) + "\\n")
        return jnp.float32(0), jnp.float32(1)


study = Study(
    name="path",
    question="Which files lie between the command and the training step?",
    baseline=Run(
        model=ModelConfig(vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11)),
        task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
        training=Training(steps=2),
        loss_terms=(Recorder(),),
    ),
    axes=[],
    seeds=range(2),
)
'''


@pytest.mark.long
def test_the_path_to_the_training_step_has_at_most_nine_files_without_returns(tmp_path, capsys):
    (tmp_path / "path.py").write_text(FILE)
    assert main(["run", str(tmp_path / "path.py"), "--devices", "1", "--output", str(tmp_path / "results")]) == 0
    stacks = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    # Programs are also traced for mistakes in user code and for their FLOPs; those are other paths.
    other = ("study/tracing.py", "training/flops.py")
    stacks = [calls for calls in stacks if not any(file.endswith(other) for file, _ in calls)]
    assert stacks
    documented = re.findall(r"^\d\. `([\w/.]+)`", runner.__doc__, re.MULTILINE)
    assert len(documented) <= 9
    for calls in stacks:
        names = [function for _, function in calls]
        down_to_step = calls[: names.index("train_step") + 1]
        inside = [Path(file) for file, _ in down_to_step if Path(file).is_relative_to(ROOT)]
        assert [path.relative_to(ROOT).as_posix() for path, _ in groupby(inside)] == documented
