"""`flaxformer new`: each file that it writes loads, plans and takes a training step."""

import dataclasses
import re
from pathlib import Path

import jax
import pytest

from flaxformer import Ledger
from flaxformer.cli import main
from flaxformer.cli.arguments import Improve
from flaxformer.cli.new import COMPONENTS
from flaxformer.study.load import load, load_study
from flaxformer.study.plan import declaration
from flaxformer.study.program_groups import groups
from flaxformer.training import Run, start, train_step


@pytest.mark.long
@pytest.mark.every(2)
@pytest.mark.parametrize(
    "words",
    [["study"], ["component"], *(["component", "--kind", kind] for kind in COMPONENTS[1:]), ["task"]],
    ids=" ".join,
)
def test_a_new_file_declares_a_study_that_trains(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    assert main(["new", words[0], "my_idea", *words[1:]]) == 0
    assert "my_idea.py" in capsys.readouterr().out
    study = load_study(tmp_path / "my_idea.py")
    assert study.name == "my_idea"
    assert len(declaration(study).trials) == 10
    for group in groups(study.trials()):
        run = group.example
        state, metrics = jax.jit(train_step)(start(run), run, run.task.load().batch(jax.random.key(0), 0))
        assert float(metrics["loss"]) > 0
        assert state.step == 1
    text = (tmp_path / "my_idea.py").read_text()
    assert "NAME" not in text
    assert "KIND" not in text


@pytest.mark.long
def test_a_new_run_is_a_job_that_trains_and_generates(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "run", "my_model"]) == 0
    assert "flaxformer train my_model.py " in capsys.readouterr().out
    text = (tmp_path / "my_model.py").read_text()
    assert "NAME" not in text
    run = load(tmp_path / "my_model.py", "run", Run)
    assert run.training.steps % run.training.interval == 0
    assert main(["train", "my_model.py", "--samples", "0", "training.steps=2", "training.evaluate_every=2"]) == 0
    capsys.readouterr()
    assert main(["generate", "runs/my_model", "--prompt", "def ", "--tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("def ")


def test_a_new_ledger_is_declared_and_its_agent_knows_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "ledger", "my_recipe"]) == 0
    assert main(["new", "agent", "my_recipe"]) == 0
    assert capsys.readouterr().out.count("flaxformer improve my_recipe.py PATH=VALUE") == 2
    ledger = load(tmp_path / "my_recipe.py", "ledger", Ledger)
    assert ledger.name == "my_recipe"
    words = (tmp_path / "my_recipe_agent.md").read_text()
    assert "flaxformer improve my_recipe.py" in words
    assert "NAME" not in words + (tmp_path / "my_recipe.py").read_text()
    options = set(re.findall(r"(?<!-)--[a-z-]+", words))
    assert options == {"--reason", "--json", "--candidate", "--tune", "--confirm", "--trust-code"}
    assert options <= {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Improve)}


@pytest.mark.long
@pytest.mark.parametrize("kind", COMPONENTS)
def test_a_component_of_each_kind_keeps_the_laws(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "component", "mine", "--kind", kind]) == 0
    laws = ["causality", "padding", "decoding"]
    assert main(["check", "mine.py", "--laws", *laws]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["component", "mine", "--kind", "norms"], "--kind is 'norms'; did you mean 'norm'?"),
        (["component", "mine", "--kind", "xyz"], "it has: feed_forward, attention, mixer, norm"),
        (["study", "mine", "--kind", "norm"], "--kind is norm with 'new study'; expected 'new component NAME'"),
    ],
)
def test_kinds_that_there_are_not(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["new", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["My Idea", "class", "../x"])
def test_invalid_file_name_raises_an_error(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "study", name]) == 2
    assert f"name is '{name}'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_existing_file_is_not_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "idea.py").write_text("mine")
    assert main(["new", "study", "idea.py"]) == 2
    assert "idea.py exists already" in capsys.readouterr().err
    assert (tmp_path / "idea.py").read_text() == "mine"


def test_a_study_can_be_copied_under_a_new_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "study", "mine", "--like", "experiments/norm_and_scale.py"]) == 0
    text = (tmp_path / "mine.py").read_text()
    assert "norm_and_scale" not in text
    assert "flaxformer run mine.py" in text
    study = load_study(tmp_path / "mine.py")
    assert study.name == "mine"
    assert study.claims == load_study(Path("experiments/norm_and_scale.py")).claims
    capsys.readouterr()
    assert main(["new", "study", "yours", "--like", "experiments/training/mnist.py"]) == 2
    assert "expected a Python file that defines `study`" in capsys.readouterr().err
