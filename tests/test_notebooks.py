"""Every notebook runs from first to last cell, with reduced sizes, and is stored with its outputs."""

import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from study.tiny import fill

from flaxformer.report.write import write
from flaxformer.study.load import load_study

ROOT = Path(__file__).parents[1]
NOTEBOOKS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
SMALL = {
    "attention": {"KEYS, QUERIES = 64, 256": "KEYS, QUERIES = 64, 32"},
    "norm_placement": {"[2, 6, 12, 24], range(3)": "[2, 3], range(2)"},
    "your_own_ablation": {"STEPS = 300": "STEPS = 6", "seeds=range(5)": "seeds=range(2)", "layers=2,": "layers=1,"},
}
"""Replacements that reduce the cost of each notebook."""


def run(name):
    """Execute the code of a notebook; return its variables."""
    names = {}
    for cell in NOTEBOOKS[name]["cells"]:
        if cell["cell_type"] == "code":
            code = "".join(cell["source"])
            for large, small in SMALL[name].items():
                code = code.replace(large, small)
            exec(compile(code, name, "exec"), names)  # our own notebooks
    plt.close("all")
    return names


@pytest.fixture(autouse=True)
def _quietly(monkeypatch):
    with mpl.rc_context({"backend": "agg"}):
        yield


@pytest.fixture
def finished_study(tmp_path, monkeypatch):
    """Fill the output folder of the default study, as if it had been run."""
    study = load_study(ROOT / "experiments/norm_and_scale.py")
    store = fill(tmp_path / "norm_and_scale", study, lambda trial: 2.5 + 0.5 * (trial.arm.labels["norm"] == "post"))
    write(store)
    monkeypatch.setenv("STUDY", str(store.root))


def test_three_notebooks_exist():
    assert set(NOTEBOOKS) == set(SMALL)
    for name, changes in SMALL.items():
        text = "".join("".join(cell["source"]) for cell in NOTEBOOKS[name]["cells"])
        assert all(large in text for large in changes), name


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_stored_with_their_outputs(name):
    code = [cell for cell in NOTEBOOKS[name]["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert "/tmp" not in json.dumps(NOTEBOOKS[name])


@pytest.mark.long
def test_attention(capsys):
    names = run("attention")
    assert (names["influence"][np.triu_indices(6, 1)] == 0).all()
    assert "rows sum to [1.]" in capsys.readouterr().out


@pytest.mark.slow
def test_norm_placement(finished_study, capsys):
    names = run("norm_placement")
    assert set(names["norms"]["pre"]) == {2, 3}
    out = capsys.readouterr().out
    assert "pre-norm: the last block's gradient goes as L^" in out
    assert "post − pre, warm-up none: +0.500" in out


@pytest.mark.slow
def test_your_own_ablation(capsys):
    names = run("your_own_ablation")
    assert len(names["runs"]) == 8
    assert len(names["analysis"].claims) == 3
