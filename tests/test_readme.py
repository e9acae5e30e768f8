"""What the README shows works: its commands (made small), its Python, its links."""

import re
import shlex
import subprocess
from pathlib import Path

import jax
import pytest

from flaxformer import cli
from flaxformer.model import apply, init
from flaxformer.study.load import load_study

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SMALL = {
    "experiments/norm_and_scale.py": [
        *("training.steps=2", "training.evaluate_every=1", "model.layers=1", "model.d_model=8"),
        *("model.feed_forward.d_ff=8", "task.evaluation_batches=1", "--seeds", "2"),
    ],
    "heads.py": ["training.steps=2", "task.evaluation_batches=1", "--seeds", "2"],
}
ONE_CLAIM = ["claims", "1", "--quick"]
TRAINED = [  # small, on a text that is there; the checkpoint is what `generate` reads
    *("model.layers=1", "model.d_model=8", "model.attention.heads=2", "training.steps=2"),
    *("training.evaluate_every=1", "task.evaluation_batches=1"),
]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands():
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if "flaxformer" in line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A place that looks like a fresh clone, with the README's own study saved as it says."""
    root = tmp_path_factory.mktemp("clone")
    (root / "experiments").symlink_to(ROOT / "experiments")
    study = next(block for block in blocks("python") if "study = Study(" in block)
    (root / "heads.py").write_text(study)
    return root


@pytest.mark.slow
def test_every_command_runs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert {line[1] for line in commands()} == {"plan", "run", "status", "report", "claims", "train", "generate"}
    (folder / "input.txt").write_text("To be, or not to be, that is the question. " * 100)
    for line in commands():
        line = [line[0], *ONE_CLAIM] if line[1] == "claims" else line
        line = [*line, *TRAINED] if line[1] == "train" else line
        line = [*line, "--tokens", "5"] if line[1] == "generate" else line
        for file, small in SMALL.items():
            if file in line:  # the user's own overrides come last and stay
                line = [*line[: line.index(file) + 1], *small, *line[line.index(file) + 1 :]]
        assert Path(line[0]).name == "flaxformer"
        assert cli.main(line[1:]) == 0, line
    assert "Traceback" not in capsys.readouterr().err
    assert (folder / "runs/norm_and_scale/report.html").stat().st_size > 10_000


def test_the_readmes_own_study_is_ten_lines_of_declaration_and_loads(folder):
    study = load_study(folder / "heads.py")
    assert study.name in README
    assert len(study.trials()) == 12


def test_the_model_snippet_gives_the_shape_it_says():
    snippet = next(block for block in blocks("python") if "jax.jit(apply)" in block)
    names = {}
    exec(snippet, names)
    said = tuple(int(size) for size in re.search(r"\[([\d, ]+)\]$", snippet.strip()).group(1).split(","))
    assert names["logits"].shape == said
    assert names["answer"].tokens.shape == (1, 5)


def test_the_component_snippet_is_a_model():
    snippet = next(block for block in blocks("python") if "class Power" in block)
    names = {"__name__": "readme"}
    exec(snippet, names)
    config = names["config"].replace(d_model=16)
    params = init(jax.random.key(0), config)
    assert params.blocks[1].feed_forward.up.shape == (16, 64)
    assert apply(params, config, jax.numpy.arange(5)[None]).shape == (1, 5, 256)


def test_the_data_snippet_makes_batches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    for number in range(20):
        (tmp_path / f"books/{number}.txt").write_text(f"Chapter {number}. " * 100)
    snippet = next(block for block in blocks("python") if "prepare(" in block)
    names = {}
    exec(snippet.replace("8192", "300").replace("length=256", "length=16"), names)
    batch = names["task"].load().batch(jax.random.key(0), 0)
    assert batch.inputs.shape == (64, 16)


def test_ci_runs_the_two_setup_commands_word_for_word():
    setup = re.findall(r"^```bash setup\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(setup) == 1
    lines = setup[0].splitlines()
    assert len(lines) == 2
    script = (ROOT / ".ci/run").read_text()
    extract = re.search(r"^commands=\$\((.*)\)$", script, re.MULTILINE).group(1)
    done = subprocess.run(["bash", "-c", extract], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == lines
    assert 'bash -c "$run_tests"' in script
    assert 'bash -c "$run_study"' in script
    assert "bash .ci/run" in (ROOT / ".github/workflows/ci.yml").read_text()


def test_every_link_and_every_path_in_the_map_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    for link in links:
        assert (ROOT / link).exists(), link
    for path in re.findall(r"`(flaxformer/[\w./]+)`", README):
        assert (ROOT / path).exists(), path
