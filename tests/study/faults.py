"""A study whose programs are arithmetic on names, so that folders and processes can be tested without compiling."""

import hashlib
import time

from study.tiny import INCIDENTAL, NORM, RATE, run, tiny

from flaxformer.runner import launch
from flaxformer.runner import program as program_module
from flaxformer.runner.events import Progressed
from flaxformer.runner.execution import Execution
from flaxformer.store.rows import Row
from flaxformer.store.store import Store

STUDY = tiny(axes=(NORM, RATE), seeds=range(2), claims=())
TRIALS = [trial.name for trial in STUDY.trials()]


def number(text):
    return int(hashlib.blake2b(text.encode(), digest_size=4).hexdigest(), 16) / 2**32


class Program:
    """Stand-in for `Program`: trains nothing, and derives a trial's results from its name."""

    seconds = 0.0
    broken = frozenset()

    def __init__(self, group, device, execution, *_, **__):
        self.group, self.compile_seconds, self.stack_size, self.bytes = group, 0.0, 1, 0

    def train(self, trials, stops, partial_run, weights, profile=None):
        rows = []
        for trial in trials:
            for _ in range(4):
                time.sleep(self.seconds / 4)
                yield Progressed(self.group.name, len(trials), 2, 2)
                if stops():
                    return None
            if trial.name in self.broken:
                raise FloatingPointError(f"no luck with {trial.name}")
            loss = number(trial.name)
            numbers = {"validation_loss": loss, "validation_accuracy": number(trial.name + "a")}
            initial = {f"initial_{name}": 9.0 + value for name, value in numbers.items()}
            rows.append(
                Row(
                    trial=trial.name,
                    group=self.group.name,
                    seed=trial.seed,
                    status="done",
                    evaluated_at=[0, 6],
                    seconds=0.1,
                    labels=trial.arm.labels,
                    metrics=numbers | initial,
                    curves={"validation_loss": [9.0 + loss, loss], "train_loss": [loss]},
                )
            )
        return rows


def use(monkeypatch, **changes):
    """Put the arithmetic in the place of programs, and leave git alone."""
    fake = type("Program", (Program,), changes)
    monkeypatch.setattr(program_module, "Program", fake)
    monkeypatch.setattr(launch, "provenance", provenance)
    return fake


def provenance(file=None):
    return {"launched": "2020-01-01T00:00:00", "commit": "c", "source": "s", "study_file": None, "devices": "none"}


def train(root, study=STUDY, **changes):
    """Run to the end; returns what happened."""
    return list(run(study, Execution(output=root, devices=1, chunk_steps=3), **changes))


def results(root):
    """What the folder says of each trial, without how it went."""
    rows = Store(root).rows()
    return {trial: {k: v for k, v in rows[trial].items() if k not in INCIDENTAL} for trial in sorted(rows)}
