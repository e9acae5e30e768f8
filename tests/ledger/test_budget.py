"""Budgets of a run, and candidates at equal seconds."""

import math

import pytest
from ledger.ledgers import START, ledger

from flaxformer import Dense, Training
from flaxformer.core.overrides import override
from flaxformer.ledger import budget, log
from flaxformer.ledger.budget import RunBudget, equal_seconds, with_budget
from flaxformer.ledger.improve import OpenLedger
from flaxformer.ledger.opening import check_first, open_ledger
from flaxformer.runner.execution import Execution
from flaxformer.system.errors import UserError
from flaxformer.training.cost import run_cost

TEXTS = {
    "5m": ("seconds", 300),
    "5 min": ("seconds", 300),
    "90s": ("seconds", 90),
    "1.5 h": ("seconds", 5400),
    "10M tokens": ("tokens", 1e7),
    "300 tokens": ("tokens", 300),
    "2e15 FLOPs": ("FLOPs", 2e15),
    "3 TFLOP": ("FLOPs", 3e12),
}
MISTAKES = ["5", "5 hours", "-5m", "0s", "1.2.3s", "10M", "tokens", "nan s", "1e999 FLOPs", "five minutes", "5M"]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_budgets(text):
    assert RunBudget.of(text) == TEXTS[text]


@pytest.mark.parametrize("text", MISTAKES)
def test_other_texts_are_refused_when_a_ledger_is_declared(text):
    with pytest.raises(UserError, match=r"budget is .*expected a time, tokens or FLOPs"):
        ledger(budget=text)


@pytest.mark.parametrize("quantity", ["tokens", "FLOPs"])
@pytest.mark.parametrize("every", [None, 3, 1])
def test_a_run_costs_as_much_of_its_budget_as_whole_intervals_allow(quantity, every):
    run = START.replace(training=Training(steps=6, evaluate_every=every))
    evaluations = 6 // run.training.interval
    unit = run.tokens_per_step if quantity == "tokens" else run_cost(run).flops_per_step
    allowed = run_within(run, f"{20.5 * unit:.0f} {quantity}")
    assert allowed.training.steps == 20 // evaluations * evaluations
    assert allowed.training.steps // allowed.training.interval == evaluations
    with pytest.raises(UserError, match=rf"budget is '.*', at .* per step, which allows 0 steps.*{evaluations}"):
        with_budget(run, f"{unit // 2} {quantity}")


def run_within(run, text):
    """The run with its budget, which changes nothing but the number of steps."""
    allowed = with_budget(run, text)
    assert allowed.replace(training=run.training) == run
    return allowed


@pytest.mark.long
def test_seconds_are_measured_for_each_run():
    slower = override(START, ["model.layers=3"])
    times = budget.seconds_per_step([START, slower])
    assert len(times) == 2
    assert all(math.isfinite(seconds) and seconds > 0 for seconds in times)


@pytest.fixture
def clock(monkeypatch):
    """A device on which a step takes a second per layer, and half as long again with wider layers."""
    measured = []

    def seconds_per_step(runs):
        measured.append(runs)
        return [run.model.layers * (1.5 if run.model.feed_forward == Dense(d_ff=64) else 1) for run in runs]

    monkeypatch.setattr(budget, "seconds_per_step", seconds_per_step)
    return measured


def test_a_budget_in_seconds_is_the_time_of_its_steps(clock):
    assert run_within(START, "1m").training.steps == 60
    assert run_within(override(START, ["model.layers=2"]), "1m").training.steps == 30


def test_a_candidate_trains_for_as_long_as_the_best_recipe(clock):
    wider = override(START, ["model.feed_forward.d_ff=64"])
    assert equal_seconds(START, wider, 0.05) == {"training.steps": 4}
    assert equal_seconds(wider, START, 0.05) == {"training.steps": 9}
    assert equal_seconds(START, wider, 0.5) == {}  # within the tolerance
    assert equal_seconds(START, override(START, ["optimizer.learning_rate=1"]), 0.05) == {}
    longer = override(START, ["optimizer.learning_rate=1", "training.steps=12"])
    assert equal_seconds(START, longer, 0.05) == {"training.steps": 6}
    assert len(clock) == 3  # numbers and steps have one program, which is not timed
    with pytest.raises(UserError, match="takes 9 × as long, which allows 0 steps"):
        equal_seconds(START, override(START, ["model.layers=9"]), 0.05)


@pytest.mark.long
def test_the_measured_steps_are_those_of_the_log(clock, tmp_path, monkeypatch):
    def opened(text=""):
        return open_ledger(ledger(compare="equal seconds"), tmp_path / "tiny", Execution(devices=1), budget=text)

    book = opened("12s")
    entry = last(book.propose(["model.layers=2"], None, "deeper"))
    assert book.results().begun.steps == 12
    assert entry.adjusted == {"training.steps": 6}
    assert any("6 steps beside 12" in note for note in entry.notes)
    monkeypatch.setattr(budget, "seconds_per_step", lambda runs: pytest.fail("measured again"))
    again = opened()
    list(again.train(again.begin().unfinished.entry))
    assert opened("12s").begin().attempts[0].verdict is not None
    with pytest.raises(UserError, match=r"another declaration: .*budget"):
        opened("10M tokens")


def last(generator):
    """What a generator returns at its end."""
    while True:
        try:
            next(generator)
        except StopIteration as stop:
            return stop.value


def test_the_steps_of_a_budget_are_part_of_the_declaration(tmp_path):
    book = open_ledger(ledger(budget="1M tokens"), tmp_path / "tiny", Execution(devices=1))
    begun = book.begin().begun
    assert isinstance(begun, log.Begun)
    assert (begun.budget, begun.steps) == ("1M tokens", book.ledger.start.training.steps)
    assert begun.steps > START.training.steps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["optimizer.lerning_rate=1"], "did you mean 'learning_rate'"),
        (["model.layers=two"], "layers"),
        (["seed=7"], "changes seed"),
        (["training.steps=12"], "the comparison at equal compute adjusts"),
        (["optimizer.learning_rate=1e-5"], "the candidate is the best recipe itself"),
    ],
)
def test_a_mistake_in_the_first_attempt_begins_no_ledger(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        check_first(ledger(), tmp_path / "tiny", changes, None)
    with pytest.raises(UserError, match="no file"):
        check_first(ledger(), tmp_path / "tiny", [], tmp_path / "candidate.py")
    with pytest.raises(UserError, match="has kept no change"):
        list(OpenLedger(ledger(), tmp_path / "tiny", Execution(devices=1)).confirm())
    assert not (tmp_path / "tiny").exists()


def test_a_budget_that_cannot_be_read_is_not_compared_with_that_of_the_log(tmp_path):
    OpenLedger(ledger(), tmp_path / "tiny", Execution(devices=1)).begin()
    with pytest.raises(UserError, match="budget is '5x'; expected a time, tokens or FLOPs"):
        open_ledger(ledger(), tmp_path / "tiny", Execution(devices=1), budget="5x")
