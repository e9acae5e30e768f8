"""A command makes the plan of its study once, and traces a component no more often than it must."""

import pytest

from flaxformer.cli import main
from flaxformer.study import plan

TRACES = """
from flaxformer import FeedForward, static
from flaxformer.nn.activations import ACTIVATIONS


class Counted(FeedForward):
    width: int = static(8)

    def apply(self, weights, x, context):
        with open({log!r}, "a") as log:
            log.write("apply\\n")
        return ACTIVATIONS["relu"](x)
"""
STUDY = """
from flaxformer import AdamW, Axis, Copy, ModelConfig, Run, Study, Training

study = Study(
    name="counted",
    question="How often is it planned?",
    baseline=Run(
        model=ModelConfig(vocabulary=8, layers=1, d_model=8{model}),
        task=Copy(symbols=6, length=3, batch_size=2, evaluation_batches=1),
        optimizer=AdamW(),
        training=Training(steps=2, evaluate_every=1),
    ),
    axes=[Axis("optimizer.learning_rate", {{"low": 1e-3, "high": 1e-2}})],
    seeds=range(2),
)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def counted(monkeypatch, name):
    """A list that grows with each call of a function of `study.plan`."""
    calls, function = [], getattr(plan, name)

    def counting(*arguments):
        calls.append(name)
        return function(*arguments)

    monkeypatch.setattr(plan, name, counting)
    return calls


@pytest.mark.every(3, "long")
@pytest.mark.parametrize("command", ["plan", "declare", "run"])
def test_a_study_is_grouped_and_declared_once(folder, monkeypatch, command):
    (folder / "counted.py").write_text(STUDY.format(model=""))
    calls = [counted(monkeypatch, name) for name in ("groups", "declaration")]
    assert main([command, "counted.py"]) == 0
    assert [len(names) for names in calls] == [1, 0 if command == "plan" else 1]


@pytest.mark.long
def test_each_round_of_a_search_is_grouped_and_declared_once(folder, monkeypatch):
    pytest.importorskip("optuna")
    space = 'space={"optimizer.learning_rate": LogUniform(1e-3, 1e-1)}, rounds=2, samples=2,'
    text = STUDY.format(model="").replace("= Study(", "= Search(").replace("    seeds", f"    {space}\n    seeds")
    lines = [line for line in text.replace(" Study,", "").splitlines() if "axes" not in line]
    imports = "from flaxformer.study import LogUniform, Search\n"
    (folder / "counted.py").write_text(imports + "\n".join(lines))
    calls = [counted(monkeypatch, name) for name in ("groups", "declaration")]
    assert main(["run", "counted.py"]) == 0
    assert [len(names) for names in calls] == [2, 2]


@pytest.mark.long
def test_a_component_is_traced_at_most_four_times_in_a_run_of_one_program(folder):
    log = folder / "log.txt"
    (folder / "counted.py").write_text(TRACES.format(log=str(log)) + STUDY.format(model=", feed_forward=Counted()"))
    assert main(["run", "counted.py"]) == 0
    assert 1 <= len(log.read_text().splitlines()) <= 4
