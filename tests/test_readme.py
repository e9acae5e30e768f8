"""The README is short, its study and its component work, its links exist, and CI runs its set-up commands."""

import re
import subprocess
from pathlib import Path

import jax
import pytest

from flaxformer.model import apply, init
from flaxformer.study.load import load_study

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def python(part):
    """The block of Python of the README that has this text in it."""
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if part in block)


def test_the_readme_has_at_most_120_lines():
    assert len(README.splitlines()) <= 120


def test_the_study_loads_and_is_the_one_that_the_text_describes(tmp_path):
    (tmp_path / "induction.py").write_text(python("study = Study("))
    study = load_study(tmp_path / "induction.py")
    assert f"{study.name}.py" in README
    assert len(study.trials()) == int(re.search(r"# (\d+) runs, about a minute", README).group(1))


def test_the_component_is_in_every_layer_and_its_number_changes_the_output():
    names = {"__name__": "readme"}
    exec(python("class Power"), names)
    config = names["config"].replace(d_model=16)
    params = init(jax.random.key(0), config)
    assert [block.feed_forward.up.shape for block in params.blocks] == [(16, 64)] * config.layers
    tokens = jax.numpy.arange(5)[None]
    other = config.replace(feed_forward=names["Power"](power=1.0))
    assert apply(params, config, tokens).shape == (1, 5, 256)
    assert not jax.numpy.allclose(apply(params, config, tokens), apply(params, other, tokens))


@pytest.mark.parametrize("page", ["docs/models.md"])
def test_the_table_of_choices_is_the_same_in_the_documentation(page):
    rows = [line for line in README.splitlines() if line.startswith("|") and "`" in line and "flaxformer/" not in line]
    table = [line for line in rows if "examples/" not in line]
    assert len(table) >= 12
    assert [line for line in table if line not in (ROOT / page).read_text()] == []


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


def test_every_link_and_every_path_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 15
    for link in links:
        assert (ROOT / link).exists(), link
    for path in re.findall(r"`((?:flaxformer|examples|experiments|notebooks)/[\w./]*)`", README):
        assert (ROOT / path).exists(), path
