"""`flaxformer generate --edit FILE`: the model generates under the edits that the file declares."""

import pytest
from jobs.small import FILE, TEXT

from flaxformer.cli import main

ALWAYS_A = """
def favour(x):
    return x.at[..., ord("a")].add(1e3)

edit = {"output": favour}
"""
OF_WEIGHTS = """
from flaxformer.interpret import ablate
import jax.numpy as jnp

def edit(params, run):
    assert params.embedding is not None
    return ablate("output", value=100 * jnp.eye(run.model.vocabulary)[ord("b")])
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A folder with a trained job."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "tiny.py").write_text(FILE)
    (folder / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "tiny.py", "--samples", "0"]) == 0
    return folder


@pytest.fixture
def generate(job, monkeypatch, capsys):
    """The command on this job with a file of edits; returns exit code, output and errors."""
    monkeypatch.chdir(job)
    monkeypatch.setenv("COLUMNS", "500")

    def call(text, *arguments):
        (job / "change.py").write_text(text)
        words = ["generate", "runs/tiny", "--prompt", "to be", "--tokens", "4", "--edit", "change.py", *arguments]
        return main(words), *capsys.readouterr()

    return call


@pytest.mark.long
@pytest.mark.every(2)
@pytest.mark.parametrize("how", ["--top-k 1", "--temperature 0.9", "--beams 2"])
def test_text_is_generated_under_the_edits_of_a_file(generate, how):
    for text, letter in ((ALWAYS_A, "a"), (OF_WEIGHTS, "b")):
        assert generate(text, *how.split()) == (0, f"to be{4 * letter}\n", "")


EXPECTED = "expected a file that defines edit, a dict of functions by path, or edit(params, run) that returns one"
MISTAKES = {
    "nothing": ("", f"'change.py' has edit = None; {EXPECTED}"),
    "empty": ("edit = {}", "'change.py' has edit = {}; expected a file"),
    "list": ("edit = ['final']", "'change.py' has edit = ['final']; expected a file"),
    "arguments": ("def edit(params): return {}", "'change.py' has edit(params); expected a file"),
    "no function": ("edit = {'final': 3}", "edit['final'] is 3; expected a function of the activation"),
    "typo": (
        "edit = {'fina': lambda x: x}",
        "edit has 'fina', which matches no point of this model; did you mean 'final'",
    ),
    "shape": ("edit = {'final': lambda x: x[..., 0]}", "edit['final'] returns float32[1, 8] at final; expected"),
    "raises": ("edit = {'final': lambda x: x.nothing}", "change.py, line 1, in <lambda>"),
    "raises of weights": (
        "def edit(params, run):\n    return 1 / 0",
        "change.py, line 2, in edit: ZeroDivisionError: division by zero",
    ),
    "file": ("edit = ", "change.py, line 1: invalid syntax"),
    "last position": (
        "from flaxformer.interpret import ablate\nedit = ablate('final', positions=[-1])",
        "positions has -1",
    ),
}


@pytest.mark.every(6, "long")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_file_is_one_message(generate, name):
    text, message = MISTAKES[name]
    code, out, err = generate(text)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err
