"""Test data: scored at the end of every run, and no choice is made by them; and what intervals cover."""

import math

import pytest
from study.tiny import BASELINE, NORM, fill, run, tiny

from flaxformer.analysis import tuned_value
from flaxformer.analysis.analysis import analyse
from flaxformer.components import Classifier, Patches
from flaxformer.report import markdown
from flaxformer.report.document import document
from flaxformer.runner.execution import Execution
from flaxformer.store.store import Store
from flaxformer.study import Halving, LogUniform, Search
from flaxformer.study.divergence import score
from flaxformer.study.plan import declaration
from flaxformer.system.errors import UserError
from flaxformer.tasks import Digits

FINAL = {"test_loss", "test_loss_se", "test_accuracy", "validation_loss_se"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("test_data")
    study = tiny(name="tested", axes=[NORM], seeds=range(2), claims=(), metric="test_loss")
    list(run(study, Execution(output=folder, devices=1, chunk_steps=3)))
    return folder


@pytest.mark.long
def test_every_finished_run_has_the_scores_of_the_test_data(trained):
    rows = Store(trained).rows().values()
    assert len(rows) == 4
    for row in rows:
        assert {*row.metrics} >= FINAL
        assert all(math.isfinite(row.metrics[name]) for name in FINAL)
        assert row.metrics["test_loss"] != row.metrics["validation_loss"]
        assert not {name for name in row.curves if name.startswith("test_") or name.endswith("_se")}
        assert not {name for name in row.metrics if name.startswith("initial_test") or name == "initial_loss_se"}


@pytest.mark.long
def test_a_study_can_be_judged_on_the_test_data(trained):
    analysis = analyse(Store(trained))
    assert analysis.arms[0].scores == [row["test_loss"] for row in analysis.arms[0].rows]
    page = markdown.render(document(analysis))
    assert "test loss (nats)" in page
    text = (
        "Intervals cover the seeds; the test examples are the same for all of them. With other examples, the test loss"
    )
    assert text in page


def test_no_value_is_chosen_by_the_test_data(trained):
    with pytest.raises(UserError, match=r"the metric of .* is test_loss; expected a metric of the validation data"):
        tuned_value(trained, "optimizer.learning_rate", seeds=[9])
    with pytest.raises(UserError, match=r"metric is 'test_loss' and halving is .*expected validation_loss"):
        tiny(metric="test_loss", halving=Halving(factor=2, first=3))
    with pytest.raises(UserError, match=r"metric is 'test_accuracy' and keep is 'best'.*expected validation_accuracy"):
        tiny(metric="test_accuracy", keep="best")
    with pytest.raises(UserError, match=r"metric is 'test_loss', and a Search chooses points by it"):
        Search(
            name="search",
            question="?",
            baseline=BASELINE,
            space={"optimizer.learning_rate": LogUniform(1e-4, 1e-1)},
            metric="test_loss",
        )


def test_a_metric_of_the_test_data_needs_a_test_set():
    head = Classifier(classes=10)
    model = BASELINE.model.replace(
        inputs=Patches(height=8, width=8, channels=1, size=4), head=head, mask_pattern="bidirectional"
    )
    baseline = BASELINE.replace(model=model, task=Digits(evaluation_batches=32))
    with pytest.raises(UserError, match=r"metric is 'test_loss' and Digits.* has no test set"):
        declaration(tiny(baseline=baseline, axes=[NORM], claims=(), metric="test_loss"))
    declaration(tiny(baseline=baseline, axes=[NORM], claims=()))


def test_a_run_that_diverged_counts_with_the_validation_score_before_training(tmp_path):
    rows = fill(tmp_path, tiny(), lambda trial: 1.0).rows().values()
    row = next(iter(rows)) | {"status": "diverged", "diverged_at": 3, "test_loss": 1.0, "test_accuracy": 0.5}
    assert score(row, "test_loss") == row["initial_validation_loss"]
    assert score(row, "test_accuracy") == row["initial_validation_accuracy"]


def test_a_report_without_stored_errors_says_what_its_intervals_cover(tmp_path):
    analysis = analyse(fill(tmp_path, tiny(), lambda trial: trial.seed))
    assert analysis.coverage == "Intervals cover the seeds; the 4 evaluation examples are the same for all of them."


def test_the_error_over_examples_is_the_root_mean_square_of_the_runs(tmp_path):
    store = fill(tmp_path, tiny(), lambda trial: trial.seed)
    for i, row in enumerate(store.rows().values()):
        store.append("again", row | {"validation_loss_se": 0.3 if i % 2 else 0.4})
    assert "a standard error of 0.35" in analyse(store).coverage


def test_accuracy_of_the_test_data_is_a_share():
    assert tiny(metric="test_accuracy").unit == "of accuracy"
