"""Every block of code in the documentation runs: its Python here, its commands on small models in the slow tests."""

import re
from pathlib import Path

import jax
import matplotlib as mpl
import pytest
from pages import ROOT, blocks, pages
from study.tiny import fill, run

from flaxformer import cli
from flaxformer.catalog import import_named
from flaxformer.cli.parsing import parse
from flaxformer.core.overrides import override
from flaxformer.report.files import write
from flaxformer.runner.execution import Execution
from flaxformer.study.load import load, load_study
from flaxformer.system.python_files import declares
from flaxformer.training import Run

PAGES = pages()
LANGUAGES = {"python", "bash", "bash setup", "text", "latex"}
SMALL = {
    "induction.py": ["training.steps=4", "training.evaluate_every=2", "model.d_model=8", "task.batch_size=4"],
    "parity.py": ["training.steps=4", "training.evaluate_every=2", "model.d_model=8", "task.batch_size=4"],
    "rates.py": ["model.layers=1", "model.d_model=8", "task.length=8", "task.batch_size=2"],
    "norms.py": ["training.steps=4", "training.evaluate_every=2", "model.layers=1", "model.d_model=8", "--seeds", "2"],
    "norms_by_size.py": ["task.length=8", "task.batch_size=2", "--seeds", "1"],
    "bard.py": ["training.steps=4", "training.evaluate_every=2", "model.layers=1", "model.d_model=8", "--samples", "4"],
    "bard_table.py": ["training.steps=4", "training.evaluate_every=2", "model.layers=1", "model.d_model=8"],
    "experiments/norm_and_scale.py": [
        *("training.steps=2", "training.evaluate_every=1", "model.layers=1", "model.d_model=8", "--seeds", "2"),
        "model.feed_forward.d_ff=8",
    ],
    "power.py": ["training.steps=2", "model.d_model=8", "task.batch_size=4"],
}
"""Further words for commands on these files: small models and few steps; the page's own overrides come after them."""
FEW = ["task.evaluation_batches=1"]
LESS = {"check": ["--laws", "causality"]}
"""Further options of other commands."""
LONGER = re.compile(r"training\.steps=\d+")
"""A page's own number of steps, which a small model takes as 6."""
NEEDS_COMMANDS = {"long_runs", "own_data"}
"""Pages whose Python reads what their commands write."""
RUN_ELSEWHERE = NEEDS_COMMANDS | {name for name in PAGES if name.startswith("component")}
"""Pages whose Python runs in `test_every_command_runs` or in test_component_guide.py."""


@pytest.fixture(autouse=True)
def as_in_a_users_program():
    """Promotion of ranks is as by default, in all threads; figures need no display."""
    before = jax.config.jax_numpy_rank_promotion
    jax.config.update("jax_numpy_rank_promotion", "allow")
    with mpl.rc_context({"backend": "agg"}):
        yield
    jax.config.update("jax_numpy_rank_promotion", before)


def with_files_of_pages(root):
    """A folder with the repository's experiments, a text, and the pages' files."""
    (root / "experiments").symlink_to(ROOT / "experiments")
    (root / "my_text.txt").write_text("To be, or not to be, that is the question. " * 100)
    (root / "reviews.csv").symlink_to(ROOT / "examples" / "reviews.csv")
    for page in PAGES.values():
        for block in blocks(page):
            if block.title:
                (root / block.title).write_text(block.text)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return with_files_of_pages(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def finished(folder):
    """The folders of results that pages read, filled with invented scores; one of a small study with its weights."""
    for name in ("induction", "rates"):
        study = load_study(folder / f"{name}.py")
        write(fill(folder / "runs" / name, study, lambda trial: 1.0 + 0.1 * trial.seed / (1 + trial.seed)))
    train_with_weights(folder)
    gpt2(folder / "gpt2")


def train_with_weights(folder):
    """Train a small study whose weights are kept, which several pages read."""
    small = load_study(folder / "induction.py", [*SMALL["induction.py"], *FEW], seeds=[0])
    list(run(small, Execution(output=folder / "runs" / "induction_kept", devices=1, keep="final")))


def gpt2(folder):
    """Write a checkpoint of GPT-2's kind with two small layers."""
    from flaxformer.components import Attention, Dense, LanguageModel, LearnedPositions, Tokens
    from flaxformer.config import ModelConfig
    from flaxformer.interop import save
    from flaxformer.model import init

    config = ModelConfig(
        vocabulary=17,
        layers=2,
        d_model=8,
        attention=Attention(heads=2),
        feed_forward=Dense(activation="gelu_tanh"),
        positions=LearnedPositions(max_length=16),
        head=LanguageModel(tied=True, bias=False),
        inputs=Tokens(std=0.02),
    )
    save(folder, config, init(jax.random.key(0), config), family="gpt2")


def run_python(page):
    """Execute the blocks of Python of a page, in order, in one namespace."""
    names = {"__name__": "page"}
    for block in snippets(page):
        exec(compile(block.text, f"{page}.md", "exec"), names)
    return names


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_known_language_and_is_run_or_says_why_not(page):
    text = PAGES[page].read_text()
    assert text.count("\n```") == 2 * len(blocks(PAGES[page]))
    for block in blocks(PAGES[page]):
        assert block.language in LANGUAGES, block
        if block.language == "bash" and not block.reason:
            assert all(Path(line[0]).name == "flaxformer" for line in block.commands), block.text
    assert len(re.findall("<!-- not run: ", text)) == sum(block.reason is not None for block in blocks(PAGES[page]))


def snippets(page):
    """The blocks of Python of a page that run in its namespace."""
    return [own for own in blocks(PAGES[page]) if own.language == "python" and not own.title and not own.reason]


SLOW_PAGES = {"interpretability", "models", "other_libraries", "parametrization", "studies"}
WITH_PYTHON = [page for page in PAGES if snippets(page) and page not in RUN_ELSEWHERE]


@pytest.mark.long
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW_PAGES)) for page in WITH_PYTHON]
)
def test_the_python_of_a_page_runs(page, folder, finished, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    names = run_python(page)
    defined = re.findall(r"^(\w+) = ", "".join(block.text for block in snippets(page)), re.MULTILINE)
    assert set(defined) <= set(names)
    assert len(names) > 1


def command_lines():
    """Every command of every page, with its page."""
    return [
        (page, line)
        for page, path in PAGES.items()
        for block in blocks(path)
        if block.language == "bash" and not block.reason
        for line in block.commands
    ]


@pytest.mark.long
def test_every_command_is_one_that_the_command_line_takes(folder, finished, monkeypatch):
    monkeypatch.chdir(folder)
    for page, line in command_lines():
        if line[1].startswith("-"):
            assert cli.main(line[1:]) == 0, (page, line)
            continue
        arguments = parse(line[1:])
        import_named(line[1:])  # as the command does
        overrides, file = getattr(arguments, "overrides", ()), getattr(arguments, "file", None)
        if overrides and file.exists():
            own = load(file, "run", Run) if line[1] == "train" else load_study(file).baseline
            assert override(own, overrides) != own, (page, line)


def shortened(line):
    """A command on a small model."""
    if line[1] == "claims":
        return [line[0], "claims", "1", "--quick"]
    if line[1] == "replicate":  # its folder's command is that of the tests, and has no overrides
        return [*line, *SMALL[f"{Path(line[2]).name}.py"], *FEW]
    words = [*line, *LESS.get(line[1], [])]
    for file, small in SMALL.items():
        if file in words:
            end = words.index(file) + 1
            return [*words[:end], *small, *FEW, *(LONGER.sub("training.steps=6", word) for word in words[end:])]
    return words


@pytest.mark.slow
def test_every_command_runs(tmp_path, monkeypatch, capsys):
    """Pages in the order of the navigation, each command in the order of its page, in one folder."""
    folder = with_files_of_pages(tmp_path)
    train_with_weights(folder)
    monkeypatch.chdir(folder)
    (folder / "power.py").write_text(
        "\n".join(block.text for block in blocks(PAGES["components"]) if block.language == "python")
    )
    for page in PAGES:
        for own, line in command_lines():
            if own == page:
                assert cli.main(shortened(line)[1:]) == 0, (page, line, capsys.readouterr().err)
        if page in NEEDS_COMMANDS:
            run_python(page)
    assert "Traceback" not in capsys.readouterr().err
    assert (folder / "runs/norm_and_scale/report.html").stat().st_size > 10_000


def test_files_of_pages_declare_a_study_or_a_run(folder):
    titled = [block.title for page in PAGES.values() for block in blocks(page) if block.title]
    assert len(titled) == len(set(titled))
    for title in titled:
        is_function = "def measure(params, run" in (folder / title).read_text()
        assert is_function or declares(folder / title, "study") or declares(folder / title, "run"), title
