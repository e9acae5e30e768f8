"""Every notebook runs from first to last cell, with reduced sizes, and is stored with its outputs."""

import ast
import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
SMALL = {
    "attention": {"KEYS, QUERIES = 64, 256": "KEYS, QUERIES = 64, 32"},
    "norm_placement": {
        "[2, 6, 12, 24], range(3)": "[2, 3], range(2)",
        "layers=6,": "layers=1,",
        "StandardLibrary(length=32, batch_size=16)": "StandardLibrary(length=32, batch_size=2, evaluation_batches=1)",
        "steps=200, evaluate_every=50": "steps=6, evaluate_every=3",
        "range(3000, 3005)": "range(3000, 3002)",
    },
    "your_own_ablation": {"STEPS = 300": "STEPS = 6", "seeds=range(5)": "seeds=range(2)", "layers=2,": "layers=1,"},
}
"""Replacements that reduce the cost of each notebook."""


def code_of(name):
    """The cells of code of a notebook."""
    return ["".join(cell["source"]) for cell in NOTEBOOKS[name]["cells"] if cell["cell_type"] == "code"]


def run(name):
    """Execute the code of a notebook in the working folder; return its variables."""
    names = {"__name__": "notebook"}
    for code in code_of(name):
        for large, small in SMALL[name].items():
            code = code.replace(large, small)
        exec(compile(code, name, "exec"), names)  # our own notebooks
    plt.close("all")
    return names


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with mpl.rc_context({"backend": "agg"}):
        yield


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
    assert any({"image/png", "text/html"} & {*output.get("data", {})} for output in outputs)
    assert "/tmp" not in json.dumps(NOTEBOOKS[name])


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_import_few_names_of_the_package_and_read_no_file(name):
    nodes = [node for code in code_of(name) for node in ast.walk(ast.parse(code))]
    modules = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    assert len([module for module in modules if module.startswith("flaxformer")]) <= 2
    assert set(modules) <= {"flaxformer", "flaxformer.nn", "jax", "jax.numpy", "matplotlib.pyplot", "numpy"}
    assert not any(isinstance(node, ast.Call) and ast.unparse(node.func) == "open" for node in nodes)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_end_with_something_to_look_at(name):
    outputs = [cell["outputs"] for cell in NOTEBOOKS[name]["cells"] if cell["cell_type"] == "code"][-1]
    shown = "".join("".join(output.get("data", {}).get("text/html", "")) for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs) or ("<svg" in shown and "Claims" in shown)


@pytest.mark.long
def test_attention(capsys):
    names = run("attention")
    assert (names["influence"][np.triu_indices(6, 1)] == 0).all()
    assert "rows sum to [1.]" in capsys.readouterr().out


@pytest.mark.long
def test_norm_placement(capsys):
    names = run("norm_placement")
    assert set(names["norms"]["pre"]) == {2, 3}
    out = capsys.readouterr().out
    assert "pre-norm: the last block's gradient goes as L^" in out
    table = names["results"].table
    losses = {(row["norm"], row["warmup"], row["seed"]): row["validation_loss"] for row in table.iter_rows(named=True)}
    differences = [losses["post", "100", seed] - losses["pre", "100", seed] for seed in (3000, 3001)]
    assert f"post − pre, warm-up 100: {np.mean(differences):+.3f}" in out
    assert [claim.judgement.verdict for claim in names["results"].claims] == ["inconclusive"] * 2  # two seeds only


@pytest.mark.long
def test_your_own_ablation(capsys):
    names = run("your_own_ablation")
    assert names["results"].table.height == 8
    assert len(names["results"].claims) == 3
    out = capsys.readouterr().out
    assert "heads is 3; expected a divisor of d_model 32" in out
    assert "Can a model know where a token stands without being told?" in out
    context = names["SumAttention"]().normalize(None, np.zeros((2, 3)), np.array([[True, True, False]] * 2))
    np.testing.assert_allclose(context, [[0.125, 0.125, 0]] * 2)
