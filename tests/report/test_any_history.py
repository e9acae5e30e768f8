"""Reports are total: whatever was declared in a folder, in whatever order, nothing raises anything but a UserError."""

import contextlib
import dataclasses
import functools
import io
import math
import os
import shutil
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from rich.console import Console
from study.tiny import tiny

import flaxformer
from flaxformer.analysis.analysis import analyse
from flaxformer.analysis.compare import compare
from flaxformer.analysis.replication import check_fresh, check_same_recipes, compare_claims, fresh_seeds, used_seeds
from flaxformer.report import files, html, markdown, replication, terminal, tex, verdicts
from flaxformer.report.document import document
from flaxformer.report.files import write
from flaxformer.report.table import Table
from flaxformer.report.width import fit_width
from flaxformer.runner.launch import derive_numbers
from flaxformer.store.declarations import declare
from flaxformer.store.rows import Row, is_finished
from flaxformer.store.status import status
from flaxformer.store.store import Store
from flaxformer.study import Axis, Claim, plan
from flaxformer.study.metrics import METRICS
from flaxformer.system.errors import UserError

EXAMPLES = int(os.environ.get("FLAXFORMER_DECLARATIONS", "10"))
LABELS = ("low", "high", "two", "x", "ünï 語", "a|b<c>")
RATES = (1e-3, 1e-2, 1e-1, 1e30, 5e-324)
STATUSES = ("done", "done", "done", "done", "diverged", "failed", "stopped")
VALUES = st.sampled_from((0.0, 1.0, -1.0, 3e38, 1e-30)) | st.floats(-3, 3, width=32)


def score(params, run):
    return {"score": params}


def gap(rows):
    first, *_, last = rows.values()
    return {"gap": last["validation_loss"] - first["validation_loss"], "nan": math.nan}


def ratio(rows):
    first, *_, last = rows.values()
    return {"gap": last["validation_loss"] / (first["validation_loss"] or 1.0)}


@st.composite
def axes(draw):
    found = []
    if draw(st.booleans()):
        labels = draw(st.lists(st.sampled_from(LABELS), min_size=1, max_size=4, unique=True))
        rates = draw(st.permutations(RATES))
        name = draw(st.sampled_from(("rate", "pace", "layers")))
        found.append(Axis("optimizer.learning_rate", dict(zip(labels, rates, strict=False)), name=name))
    if draw(st.booleans()):
        labels = draw(st.lists(st.sampled_from(LABELS), min_size=1, max_size=2, unique=True))
        name = draw(st.sampled_from(("pace", "depth")))
        found.append(Axis("model.layers", dict(zip(labels, (1, 2), strict=False)), name=name))
    return tuple(draw(st.permutations(found)))


@st.composite
def claims(draw, own, has_derive):
    if has_derive and draw(st.booleans()):
        return Claim(draw(st.sampled_from(("text", "other"))), higher={"quantity": "gap"}, than=draw(VALUES))
    arms = [{axis.name: draw(st.sampled_from([*axis.levels])) for axis in own} for _ in range(2)]
    text = draw(st.sampled_from(("text", "other", "the gap is positive")))
    kind = draw(st.sampled_from(("lower", "higher", "number", "equal", "interaction")))
    if kind == "number":
        return Claim(text, lower=arms[0], than=draw(VALUES))
    if kind == "equal":
        return Claim(text, equal=arms[0], to=arms[1], within=draw(st.sampled_from((0.5, 1e-300, 1e300))))
    if kind == "interaction" and len(own) > 1:
        first, second = ({own[0].name: arm[own[0].name]} for arm in arms)
        where, other = ({own[1].name: arm[own[1].name]} for arm in arms)
        return Claim(text, lower=first, than=second, where=where, more_than_where=other)
    return Claim(
        text, **{kind if kind in ("lower", "higher") else "lower": arms[0]}, than=arms[1], by=draw(VALUES.map(abs))
    )


@st.composite
def steps(draw):
    """A study, what becomes of its results, and the results that it gets."""
    own, metric = draw(axes()), draw(st.sampled_from(("validation_loss", "validation_accuracy", "score")))
    derive = draw(st.sampled_from((None, None, gap, ratio)))
    begin, n = draw(st.sampled_from(((0, 4), (0, 6), (3, 3), (10, 5), (0, 1))))
    fields = {
        "name": draw(st.sampled_from(("tiny",) * 9 + ("other",))),
        "question": draw(st.sampled_from(("Does it run?", "Is it *larger*? <b>", "x" * 3000))),
        "caveats": draw(st.sampled_from(((), ("It is tiny.",)))),
        "axes": own,
        "seeds": range(begin, begin + n),
        "metric": metric,
        "measure": score if metric == "score" else None,
        "derive": derive,
        "claims": tuple(draw(st.lists(claims(own, derive is not None), max_size=3))),
    }
    share = draw(st.sampled_from((1.0, 1.0, 0.7, 0.0)))
    return fields, draw(st.sampled_from(("retrain", "keep", "refuse"))), share, draw(st.integers(0, 2**16))


@functools.cache
def evaluation_data():
    return plan.evaluation_data(tiny())


@contextlib.contextmanager
def without_traces():
    """Within, no program of a study is traced: its declaration is plain data."""
    known = evaluation_data()
    with contextlib.ExitStack() as stack:
        for name in ("check_sizes", "check_measure", "check_traces", "check_test_set"):
            stack.enter_context(mock.patch.object(plan, name))
        stack.enter_context(mock.patch.object(plan, "evaluation_data", return_value=known))
        yield


def row_of(study, trial, declared, rng):
    """A row of any status and of any numbers, some of them not finite."""
    state = rng.choice(STATUSES)
    about = {name: getattr(trial, name) for name in ("trial", "group", "seed", "fingerprint", "labels")}
    if state == "failed":
        return Row(**about, status=state, declaration=declared, cause="no luck", error="Traceback: no luck")
    loss = rng.choice((rng.gauss(2, 1), 2.0, math.nan if rng.random() < 0.1 else 2.5, 3e38))
    metrics = {"validation_loss": loss, "validation_accuracy": rng.random()}
    if study.metric not in METRICS:
        metrics[study.metric] = rng.choice((loss, math.nan, 1.0))
    curves = {name: [value + 1, value] for name, value in metrics.items()} | {"train_loss": [9.0, loss]}
    metrics |= {f"initial_{name}": value + 1 for name, value in metrics.items()}
    end = {"diverged_at": 3} if state == "diverged" else {"stopped_at": 6} if state == "stopped" else {}
    costs = dict.fromkeys(("flops", "flops_per_step"), 1e6) | dict.fromkeys(("parameters", "active_parameters"), 100)
    costs |= {"parameters_without_embeddings": 90, "training_tokens": 50, "seconds": 0.1}
    costs = rng.choice((costs, {}))
    return Row(
        **about, **end, **costs, status=state, declaration=declared, evaluated_at=[0, 6], metrics=metrics, curves=curves
    )


def take(root, fields, how, share, seed):
    """Declare a study in a folder, and write results of some of its missing trials."""
    import random

    rng, study, store = random.Random(seed), tiny(**fields), Store(root)
    with store.locked():
        declared = declare(store, plan.declaration(study), how)
        known = store.rows()
        for trial in declared.trials:
            if not is_finished(known.get(trial.trial)) and rng.random() < share:
                store.append(trial.group, row_of(study, trial, declared.declaration, rng))
        for group in store.unmerged_groups():
            store.finish(group)
        if study.derive is not None:
            rows = [{"measured_by": declared.measured_by} | row for row in derive_numbers(study, store.rows())]
            store.replace_measurements(rows, declared.measured_by)
    return study


def read_everything(root, other):
    """What every command that reads the folder does, without the figures."""
    store = Store(root)
    assert status(store)["declared"] == len(store.declaration.trials)
    results = flaxformer.results(root)
    assert len(results.claims) == len(store.declaration.claims)
    analysis = analyse(store)
    assert verdicts.verdict(analysis).endswith((".", "…", "?"))
    terminal.show(Console(file=io.StringIO(), width=80), analysis)
    assert html.render(document(analysis), {}).endswith("</html>\n")
    assert markdown.render(document(analysis))
    assert isinstance(tex.render(document(analysis)), str)
    files.write_files(analysis, document(analysis), root)
    for first, second in ((analysis, analyse(Store(other))), (analyse(Store(other)), analysis)):
        with contextlib.suppress(UserError):
            assert compare(first, second).arms is not None
        found = compare_claims(first, second)
        assert replication.answer(found).endswith(".") if found else not found
        with contextlib.suppress(UserError):
            check_same_recipes(first.study, second.study)
    used = used_seeds(store, analysis)
    check_fresh(fresh_seeds(analysis.study.seeds, used), used, root)
    assert not analysis.log_faults, analysis.log_faults
    assert not analysis.results.foreign
    assert not store.corrupt_files, store.corrupt_files


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)
@given(history=st.lists(steps(), min_size=2, max_size=4), replicate=steps())
def test_any_sequence_of_declarations_is_reported(tmp_path_factory, history, replicate):
    root, other = (tmp_path_factory.mktemp(name) for name in ("folder", "other"))
    with without_traces():
        declared = False
        for n, (fields, how, share, seed) in enumerate([replicate, *history]):
            try:
                take(root if n else other, {**fields, "name": "tiny"} if not n else fields, how, share, seed)
            except UserError as error:
                note(f"{n}: {error}")
            declared = (root / "study.json").exists()
            if n and declared:
                if (other / "study.json").exists():
                    read_everything(root, other)
                else:
                    read_everything(root, root)
    shutil.rmtree(root)
    shutil.rmtree(other)


@pytest.mark.parametrize("change", [{"name": "other"}, {"name": "Tiny"}])
def test_another_study_in_a_folder_is_refused_with_two_ways_on(tmp_path, change):
    own = {"axes": (Axis("optimizer.learning_rate", {"a": 1e-3, "b": 1e-2}),), "claims": (), "seeds": range(2)}
    with without_traces():
        take(tmp_path, own, "refuse", 1.0, 0)
        before = (tmp_path / "study.json").read_bytes(), (tmp_path / "declarations.jsonl").read_bytes()
        with pytest.raises(UserError) as error:
            take(tmp_path, own | change, "refuse", 1.0, 0)
    text = str(error.value)
    assert f"holds the study 'tiny', not the study '{change['name']}'; give --output another folder, or " in text
    assert "\n" not in text
    assert before == ((tmp_path / "study.json").read_bytes(), (tmp_path / "declarations.jsonl").read_bytes())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_a_folder_whose_arms_were_renamed_there_and_back_has_figures_too(tmp_path):
    first, second = ({"a": 1e-3, label: 1e-2} for label in ("b", "two"))
    with without_traces():
        for levels in (first, second, first):
            axis = Axis("optimizer.learning_rate", levels, name="rate")
            labels = [*levels]
            claim = Claim("b is higher", higher={"rate": labels[1]}, than={"rate": "a"})
            take(tmp_path, {"axes": (axis,), "claims": (claim,), "seeds": range(4)}, "refuse", 1.0, 3)
            analysis = write(Store(tmp_path))
    assert (tmp_path / "figures/claims.svg").exists()
    assert [dataclasses.astuple(one)[0] for one in analysis.withdrawn] == ["b is higher"] * len(analysis.withdrawn)


@pytest.mark.parametrize("width", [1, 20, 200])
@pytest.mark.parametrize("texts", [0, 1, 3])
def test_a_table_of_any_form_fits_or_is_divided(width, texts):
    """A study without axes has no column of text."""
    table = Table("Arms", [f"column {i}" for i in range(6)], [[f"{i}.{'5' * i}" for i in range(6)]], texts)
    console = Console(file=io.StringIO(), width=max(width, 20))
    console.print(fit_width(table, width))
    assert all(f"{i}.{'5' * i}" in console.file.getvalue() for i in range(texts, 6))
