"""`flaxformer.run` and the command `run` continue each other; its messages speak Python; progress in a notebook."""

import sys
import warnings

import numpy as np
import pytest
from study.tiny import BASELINE, RATE, results, tiny

import flaxformer
from flaxformer import Attention, Classifier, ModelConfig, TableRows, TextFiles, cli
from flaxformer.core.struct import qualified_name
from flaxformer.jobs.progress import Totals
from flaxformer.jobs.run_study import follow_line
from flaxformer.runner.events import Compiled, Finished, Message, Progressed
from flaxformer.store.rows import Row
from flaxformer.store.store import Store
from flaxformer.system.errors import UserError

FILE = """
from flaxformer import AdamW, Attention, Axis, Copy, Dense, ModelConfig, Run, Study, Training


class Slow(AdamW):
    def direction(self, *arguments):
        return super().direction(*arguments)


study = Study(
    name="tiny",
    question="Does it run?",
    baseline=Run(
        model=ModelConfig(vocabulary=6, layers=1, d_model=8, attention=Attention(heads=2), feed_forward=Dense(d_ff=11)),
        task=Copy(symbols=5, length=3, batch_size=2, evaluation_batches=2),
        optimizer=Slow(learning_rate=1e-3),
        training=Training(steps=4, evaluate_every=2),
    ),
    axes=[Axis("optimizer.learning_rate", {"low": 1e-3, "high": 1e-2}, name="rate")],
    seeds=range(2),
)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which Python has run the study of a file, and that file."""
    root = tmp_path_factory.mktemp("door")
    file = root / "own_study.py"
    file.write_text(FILE)
    flaxformer.run(file, root / "python", devices=1)
    return file, root / "python"


def text_of(folder, letter):
    (folder / "text.txt").write_text(f"{letter} b c d e " * 200)
    return BASELINE.replace(
        task=TextFiles(path=str(folder / "text.txt"), length=4, batch_size=2, evaluation_batches=1),
        model=BASELINE.model.replace(vocabulary=256),
    )


def table_of(folder, letter):
    rows = [f"{i % 7},{letter if i % 2 else 'b'},{i % 3}" for i in range(80)]
    (folder / "rows.csv").write_text("\n".join(["x,kind,y", *rows]))
    fields = {"numbers": ("x",), "categories": ("kind",), "label": "y", "batch_size": 2, "evaluation_batches": 1}
    task = TableRows(path=str(folder / "rows.csv"), **fields)
    model = ModelConfig(
        inputs=task.inputs, mask_pattern="bidirectional", head=Classifier(classes=3), layers=1, d_model=8
    )
    return BASELINE.replace(task=task, model=model.replace(attention=Attention(heads=2)))


@pytest.mark.parametrize("baseline_of", [text_of, pytest.param(table_of, marks=pytest.mark.long)])
def test_a_second_call_reads_data_that_has_changed(tmp_path, baseline_of):
    """A notebook keeps its process while files change: the folder refuses other data, and a new one has them."""

    def data_of(letter, folder):
        study = tiny(baseline=baseline_of(tmp_path, letter), axes=(RATE,), claims=(), seeds=range(1))
        results = flaxformer.run(study, tmp_path / folder, devices=1, progress=False)
        return {str(recipe.data) for recipe in results.analysis.study.recipes.values()}

    before = data_of("a", "first")
    with pytest.raises(UserError, match="data"):
        data_of("z", "first")
    assert not before & data_of("z", "second")


@pytest.mark.long
def test_the_command_continues_what_python_has_run(trained, capsys):
    file, folder = trained
    assert cli.main(["run", str(file), "--output", str(folder)]) == 0
    assert "tiny: 0 runs to train, 4 already finished" in capsys.readouterr().out


@pytest.mark.long
def test_both_train_the_same_numbers(trained, capsys):
    file, folder = trained
    assert cli.main(["run", str(file), "--output", str(file.parent / "command"), "--devices", "1"]) == 0
    assert results(Store(file.parent / "command").rows()) == results(Store(folder).rows())
    again = flaxformer.run(str(file), file.parent / "command", devices=1)
    assert again.table.height == 4


def test_nothing_is_printed_where_nobody_watches(trained, capsys):
    file, folder = trained
    flaxformer.run(file, folder)
    assert capsys.readouterr() == ("", "")
    assert (folder / "report.html").exists()


def test_a_study_of_a_module_has_the_identity_of_its_file(trained, monkeypatch):
    """A study that was imported, and not loaded by its path, is the same one."""
    file, folder = trained
    monkeypatch.syspath_prepend(file.parent)
    import own_study

    before = Store(folder).declaration.arms
    assert flaxformer.run(own_study.study, folder).table.height == 4
    assert Store(folder).declaration.arms == before


def test_changed_code_is_refused_in_terms_of_python(trained):
    file, folder = trained
    file.write_text(FILE.replace("super().direction(*arguments)", "AdamW.direction(self, *arguments)"))
    with pytest.raises(UserError, match=r'(?s)own_study.py: Slow.*on_code_change="keep" to keep') as error:
        flaxformer.run(file, folder)
    assert "--" not in str(error.value)
    file.write_text(FILE)


@pytest.mark.parametrize(
    ("study", "settings", "message"),
    [
        (5, {}, "study is 5; expected a Study, or the path of a file"),
        (flaxformer.Run, {}, "expected a Study, or the path of a file"),
        ("not_there.py", {}, "no file 'not_there.py'"),
        (tiny(name="other"), {}, "holds the study 'tiny', not the study 'other'; give another folder"),
        (tiny(), {"keep": "last"}, "keep is 'last'"),
        (tiny(), {"exact": True, "group_size": 2}, "group_size is 2 and exact is given"),
        (tiny(), {"on_error": "ignore"}, "on_error is 'ignore'"),
    ],
)
def test_a_mistake_is_one_message(trained, study, settings, message):
    with pytest.raises(UserError, match=message) as error:
        flaxformer.run(study, trained[1], **settings)
    assert "--" not in str(error.value)


def finished(status, seed):
    return Finished("group", Row(trial=f"seed={seed}", group="group", seed=seed, status=status))


def test_the_line_of_a_notebook_moves_and_ends_with_the_number_of_runs(monkeypatch):
    monkeypatch.setattr("flaxformer.jobs.run_study.SECONDS_BETWEEN_UPDATES", -1)
    events = [Compiled("group", "cpu:0", 0.1), Progressed("group", 2, 5, 100), finished("done", 0)]
    shown, totals = [], Totals(2, 20)
    assert follow_line([*events, Progressed("group", 2, 5, 100), finished("done", 1)], totals, shown.append) == 0
    assert [line.count("█") for line in shown[:-1]] == [0, 12, 12, 24, 24]
    assert "1/2 runs, 50 % of the steps" in shown[2]
    assert shown[-1].startswith("2 runs in ")


def test_messages_and_failures_are_warnings():
    with pytest.warns(UserWarning, match="give another folder to train all with keep="):
        follow_line([Message("give another --output to train all with --keep")], Totals(1, 1), None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert follow_line([finished("failed", 0)], Totals(1, 1), None) == 1


@pytest.mark.long
def test_a_failed_run_is_a_warning_and_the_results_name_its_cause(tmp_path, monkeypatch):
    from flaxformer.runner import program

    def fail(*arguments, **settings):
        raise RuntimeError("no luck")

    monkeypatch.setattr(program, "compiled_run", fail)
    with pytest.warns(UserWarning, match="2 runs of tiny failed: results.table has the causes"):
        failed = flaxformer.run(tiny(axes=(RATE,), seeds=[0], claims=()), tmp_path, devices=1)
    assert all("no luck" in cause for cause in failed.table["cause"])


def test_a_class_of_a_script_is_named_by_its_file(tmp_path, monkeypatch):
    kind = type("Own", (), {"__module__": "__main__"})
    script = tmp_path / "attempt.py"
    script.write_text("")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    assert qualified_name(kind) == "attempt.Own"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "<stdin>")
    assert qualified_name(kind) == "__main__.Own"
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    assert qualified_name(kind) == "__main__.Own"


def test_results_keep_the_bits_of_the_rows(trained):
    _, folder = trained
    table = flaxformer.results(folder).table
    rows = Store(folder).rows()
    for row in table.iter_rows(named=True):
        np.testing.assert_array_equal(row["validation_loss_curve"], rows[row["trial"]]["validation_loss_curve"])
