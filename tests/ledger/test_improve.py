"""Attempts of a ledger with a tiny model: kept, dropped, refused, interrupted, confirmed."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import pytest
from ledger.ledgers import START, ledger

from flaxformer import AdamW, Dense, EqualCost, Ledger
from flaxformer.analysis.analysis import analyse
from flaxformer.ledger import log, rules
from flaxformer.ledger.improve import Looked, OpenLedger
from flaxformer.ledger.page import as_json, describe, write_page
from flaxformer.ledger.reading import read_ledger
from flaxformer.nn import losses
from flaxformer.runner.execution import Execution
from flaxformer.store import log_head
from flaxformer.store.store import Store
from flaxformer.study.load import load
from flaxformer.system.errors import UserError

HIGHER = ["optimizer.learning_rate=0.01"]


def opened(root, **changes):
    return OpenLedger(ledger(**changes), root, Execution(devices=1))


def propose(book, changes, file=None, rates=()):
    generator = book.propose(changes, file, "it may help", rates)
    while True:
        try:
            next(generator)
        except StopIteration as stop:
            return stop.value


def attempt(book, changes, **options):
    """Make an attempt, and return its verdict."""
    entry = propose(book, changes, **options)
    list(book.train(entry))
    return book.results().attempts[-1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A ledger with a change that helps, one that hurts, one of another program, and a confirmation."""
    root = tmp_path_factory.mktemp("ledger") / "tiny"
    book = opened(root)
    verdicts = [attempt(book, HIGHER), attempt(book, ["optimizer.learning_rate=0.00001"])]
    list(book.confirm())
    return root, verdicts


@pytest.mark.long
def test_a_change_that_helps_is_kept_and_one_that_hurts_is_dropped(finished):
    _, (helped, hurt) = finished
    assert (helped.verdict, hurt.verdict) == ("kept", "dropped")
    assert helped.evidence.mean > 0.01 > 0 > hurt.evidence.mean
    assert helped.entry.programs == hurt.entry.programs == 1


@pytest.mark.long
def test_the_folder_has_all_results(finished):
    root, _ = finished
    results = read_ledger(root)
    assert results.faults == []
    assert [attempt.verdict for attempt in results.attempts] == ["kept", "dropped"]
    assert [a.entry.best for a in results.attempts] == [results.begun.recipe, results.attempts[0].entry.recipe]
    seeds = [int(path.stem) for path in sorted((root / "attempts").iterdir())]
    assert seeds == [1, 2]
    data = json.loads(json.dumps(as_json(results)))
    assert (data["looks_at_test_data"], data["best"]) == (1, HIGHER)
    [claim] = analyse(Store(root / "confirmation")).claims
    assert data["confirmation"]["verdict"] == claim.judgement.verdict
    assert (data["confirmation"]["effect"], data["confirmation"]["n"]) == (claim.judgement.effect.mean, 8)
    assert any("Confirmation on test_loss" in line for line in describe(results))
    page = write_page(results).read_text()
    assert "it may help" in page
    assert (root / "confirmation" / "report.html").is_file()


@pytest.mark.long
def test_attempts_do_not_see_the_test_data(finished):
    root, _ = finished
    rows = [json.loads(line) for path in root.glob("attempts/*/groups/*.jsonl") for line in path.open()]
    names = {name for row in rows for name in row}
    assert not any(name.startswith("test_") for name in names)
    import polars as pl

    for path in root.glob("attempts/*/groups/*.parquet"):
        assert not any(name.startswith("test_") for name in pl.read_parquet(path).columns)
    assert any("test_loss" in pl.read_parquet(path).columns for path in root.glob("confirmation/groups/*.parquet"))


@pytest.mark.long
def test_a_confirmed_ledger_is_closed(finished):
    root, _ = finished
    before = (root / log.NAME).read_bytes()
    with pytest.raises(UserError, match="is confirmed, which ends it"):
        propose(opened(root), ["optimizer.learning_rate=0.02"])
    list(opened(root).confirm())  # the same command again shows the same confirmation
    assert (root / log.NAME).read_bytes() == before


@pytest.mark.long
def test_results_that_were_exchanged_are_a_fault(finished, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(finished[0], root)
    shutil.rmtree(root / "attempts" / "001")
    shutil.copytree(root / "attempts" / "002", root / "attempts" / "001")
    assert any("attempt 1" in fault for fault in read_ledger(root).faults)
    with pytest.raises(UserError, match="expected a ledger as it was written"):
        propose(opened(root), HIGHER)


@pytest.mark.long
def test_another_study_as_the_confirmation_is_a_fault(finished, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(finished[0], root)
    shutil.rmtree(root / "confirmation")
    assert read_ledger(root).faults == []  # it would be run again, with the same results
    shutil.copytree(root / "attempts" / "001", root / "confirmation")
    faults = read_ledger(root).faults
    assert any(fault.startswith("confirmation: its study has other seeds than 1000 to 1007") for fault in faults)
    assert "confirmation: its study has other recipes than the log" in faults


@pytest.mark.long
def test_a_changed_log_of_declarations_of_an_attempt_is_a_fault(finished, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(finished[0], root)
    (root / "attempts" / "002" / "declarations.jsonl").unlink()
    assert read_ledger(root).faults[0] == "attempt 2: 1 of 1 line of declarations.jsonl is missing"


@pytest.mark.long
def test_an_attempt_that_its_results_decide_is_not_withdrawn(finished, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(finished[0], root)
    shutil.rmtree(root / "confirmation")
    path = root / log.NAME
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))  # as a kill before the verdict would
    log_head.write(path, log_head.line_digests(path))
    opened(root).withdraw()
    results = read_ledger(root)
    assert ([attempt.verdict for attempt in results.attempts], results.faults) == (["kept", "dropped"], [])


@pytest.mark.long
def test_an_interrupted_attempt_goes_on_to_the_same_results(finished, tmp_path):
    book = opened(tmp_path / "tiny")
    entry = propose(book, HIGHER)
    for event in book.train(entry):
        if isinstance(event, Looked) and event.evidence.pairs:
            break  # as a kill would: the look is on the disk, and there is no verdict
    with pytest.raises(UserError, match="has no verdict yet"):
        propose(book, ["optimizer.learning_rate=0.02"])
    again = opened(tmp_path / "tiny")
    list(again.train(again.results().unfinished.entry))
    roots = (finished[0], book.root)
    decisions = [next(e for e in log.read(root)[0] if isinstance(e, log.Decision)) for root in roots]
    assert decisions[0].results == decisions[1].results
    assert decisions[0].pairs == decisions[1].pairs


@pytest.fixture(scope="module")
def begun_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("ledger") / "tiny"
    opened(root).begin()
    return root


REFUSED = {
    "the best recipe itself": (["optimizer.learning_rate=0.00001"], "is the best recipe itself"),
    "a seed": (["seed=3"], "changes seed"),
    "a seed of the data": (["seeds.data=3"], "changes seeds"),
    "more evaluation data": (["task.evaluation_batches=2"], "evaluated on other examples"),
    "another task": (["task.values=16"], "evaluated on other examples"),
    "the adjusted field": (["training.steps=12"], "training.steps, which the comparison"),
    "a misspelt field": (["optimizer.lerning_rate=1"], "learning_rate"),
    "a value of the wrong kind": (["model.layers=two"], "layers"),
}


@pytest.mark.every(3, "long")
@pytest.mark.parametrize("case", REFUSED)
def test_attempts_that_could_fool_are_refused(begun_root, case):
    changes, message = REFUSED[case]
    before = (begun_root / log.NAME).read_bytes()
    with pytest.raises(UserError, match=message):
        propose(opened(begun_root), changes)
    assert (begun_root / log.NAME).read_bytes() == before


@pytest.mark.parametrize(
    "change", [{"effect": 0.02}, {"seeds": 20}, {"false_keeps": 0.3}, {"first_seed": 5}, {"start": 1}]
)
def test_a_ledger_whose_declaration_changed_is_refused(begun_root, change):
    if "start" in change:
        change = {"start": START.replace(optimizer=START.optimizer.replace(learning_rate=0.5))}
    with pytest.raises(UserError, match="another declaration"):
        opened(begun_root, **change).begin()


LOOKS_AHEAD = """
import jax.numpy as jnp
from flaxformer import Dense
from ledger.ledgers import START


class Peeks(Dense):
    def apply(self, weights, x, context):
        return super().apply(weights, jnp.roll(x, -1, axis=-2), context)


run = START.replace(model=START.model.replace(feed_forward=Peeks(d_ff=8)))
"""


def test_a_component_that_reads_later_tokens_is_refused(begun_root, tmp_path):
    file = tmp_path / "peeks.py"
    file.write_text(LOOKS_AHEAD)
    with pytest.raises(UserError, match="violates the law 'causality'"):
        propose(opened(begun_root), [], file=file)


@pytest.mark.parametrize("case", ["a seed", "more evaluation data"])
def test_what_is_refused_is_not_tuned_first(begun_root, case):
    changes, message = REFUSED[case]
    with pytest.raises(UserError, match=message):
        propose(opened(begun_root), changes, rates=(0.1, 0.2))
    assert not (begun_root / "tuning").exists()


@pytest.mark.parametrize("text", ["x = 1\n", "run = 3\n", "run = (\n"])
def test_files_that_declare_no_candidate_are_refused(begun_root, tmp_path, text):
    file = tmp_path / "candidate.py"
    file.write_text(text)
    with pytest.raises(UserError, match=r"candidate\.py"):
        propose(opened(begun_root), [], file=file)


@pytest.mark.parametrize(
    ("place", "replacement"),
    [
        ("losses.mean", "lambda *parts: before(*parts)"),
        ("losses.mean", "functools.wraps(before)(lambda *parts: before(*parts))"),
        ("losses.mean", "functools.partial(lambda *parts: before(*parts))"),
        ("losses.mean", "jax.jit(lambda *parts: before(*parts))"),
        ("Dense.apply", "lambda *parts: before(*parts)"),
        ("AdamW.direction", "property(lambda self: before)"),
    ],
)
def test_a_candidate_that_replaces_functions_of_the_package_is_refused(
    begun_root, tmp_path, monkeypatch, place, replacement
):
    """They would change both arms of the attempt, and so count for neither."""
    owner, name = place.split(".")
    thing = {"losses": losses, "Dense": Dense, "AdamW": AdamW}[owner]
    monkeypatch.setattr(thing, name, vars(thing)[name])  # restores it afterwards
    file = tmp_path / "candidate.py"
    file.write_text(
        "import functools\nimport jax\nfrom ledger.ledgers import START\nfrom flaxformer import AdamW, Dense\n"
        f"from flaxformer.nn import losses\nbefore = {place}\n{place} = {replacement}\n"
        "run = START.replace(optimizer=START.optimizer.replace(learning_rate=0.01))\n"
    )
    with pytest.raises(UserError, match=rf"user code replaces flaxformer\..*{name}, which also changes the best"):
        propose(opened(begun_root), [], file=file)


@pytest.mark.long
def test_a_candidate_of_a_file_is_kept_as_it_was(tmp_path):
    file = tmp_path / "wider.py"
    text = (
        "from ledger.ledgers import START\nrun = START.replace(optimizer=START.optimizer.replace(learning_rate={}))\n"
    )
    file.write_text(text.format(0.01))
    book = opened(tmp_path / "tiny")
    entry = propose(book, [], file=file)
    file.write_text(text.format(0.0))
    list(book.train(entry))
    [judged] = book.results().attempts
    assert judged.verdict == "kept"
    assert book.best(book.results()).optimizer.learning_rate == 0.01
    with pytest.raises(UserError, match="--trust-code"):
        opened(book.root).best(book.results())
    copy = book.root / entry.file
    copy.write_text(text.format(0.5))
    with pytest.raises(UserError, match=r"is not executed|was changed"):
        book.best(book.results())


@pytest.mark.long
def test_equal_compute_is_kept_with_the_change_and_rates_are_tuned(tmp_path):
    book = opened(tmp_path / "tiny", compare=EqualCost("compute", tolerance=0.2))
    entry = propose(book, ["model.feed_forward.d_ff=64"], rates=(1e-5, 1e-2))
    assert entry.adjusted["training.steps"] < START.training.steps
    assert entry.changes == ("model.feed_forward.d_ff=64", "optimizer.learning_rate=0.01")
    assert entry.rates == (1e-5, 1e-2)
    list(book.train(entry))
    best = book.best(book.results())
    assert best.model.feed_forward == Dense(d_ff=64)
    assert best.training.steps == entry.adjusted["training.steps"]
    following = propose(book, ["optimizer.learning_rate=0.02"])
    assert following.best == entry.recipe


def spread(params, run):
    """Standard deviation of all weights, of which a larger learning rate moves more away from their initial values."""
    return {"moved": jnp.std(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(params)]))}


@pytest.mark.long
def test_a_number_of_measure_can_be_the_metric(tmp_path):
    book = opened(
        tmp_path / "tiny", measure=spread, metric="moved", metric_unit="of weight", goal="higher", effect=1e-4
    )
    judged = attempt(book, ["optimizer.learning_rate=0.1"])
    assert judged.verdict == "kept"
    assert book.results().begun.unit == "of weight"
    list(book.confirm())
    assert book.results().confirmations[0].metric == "moved"
    rows = Store(tmp_path / "tiny" / "confirmation").rows()
    assert all("moved" in row.metrics for row in rows.values())


MEASURED = """
from ledger.ledgers import ledger as small

def measure(params, run):
    return {"moved": params.embedding.tokens.std() * 1.0}

ledger = small(measure=measure, metric="moved")
"""


def test_a_ledger_with_another_measure_is_refused(tmp_path):
    file = tmp_path / "measured.py"
    file.write_text(MEASURED)
    book = OpenLedger(load(file, "ledger", Ledger).in_file(file), tmp_path / "out", Execution(devices=1))
    assert book.begin().begun.metric == "moved"
    file.write_text(MEASURED.replace("* 1.0", "* 2.0"))
    changed = OpenLedger(load(file, "ledger", Ledger).in_file(file), tmp_path / "out", Execution(devices=1))
    with pytest.raises(UserError, match=r"another declaration: .*recipe"):
        changed.begin()


def test_an_attempt_can_be_withdrawn_and_counts(tmp_path):
    book = opened(tmp_path / "tiny")
    propose(book, HIGHER)
    book.withdraw()
    with pytest.raises(UserError, match="has a verdict"):
        book.withdraw()
    second = propose(book, HIGHER)
    assert second.number == 2
    assert rules.level(book.ledger, 2, 0) == pytest.approx(0.2 * 0.9 / 2)


MISTAKES = {
    "effect": 0.0,
    "attempts": 0,
    "seeds": 3,
    "together": 0,
    "false_keeps": 1.0,
    "false_drops": 0.0,
    "confirmation_seeds": 1,
    "tuning_seeds": 0,
    "first_seed": 2**31 - 10,
    "metric": "test_loss",
    "metric_unit": "a\x1bb",
    "measure": 3,
    "name": "a/b",
}


@pytest.mark.parametrize("field", MISTAKES)
def test_mistakes_in_a_declaration_name_the_field(field):
    with pytest.raises(UserError, match=field):
        ledger(**{field: MISTAKES[field]})


def test_seeds_of_attempts_confirmation_and_tuning_are_all_different():
    book = ledger()
    sets = [rules.seeds_of_confirmation(book), rules.seeds_of_tuning(book)]
    sets += [rules.seeds_of(book, k) for k in range(1, 40)]
    used = [seed for seeds in sets for seed in seeds]
    assert len(used) == len(set(used))
    assert {field.name for field in dataclasses.fields(Ledger)} - {
        "start",
        "file",
        "goal",
        "compare",
        "measure",
        "metric_unit",
    } <= {*log.Begun.__struct_fields__}
