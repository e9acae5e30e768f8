"""Several processes on one ledger, and commands that are given again."""

import threading

import pytest
from ledger.ledgers import START, ledger

from flaxformer.ledger import budget, joining, log
from flaxformer.ledger.improve import OpenLedger
from flaxformer.ledger.opening import open_ledger
from flaxformer.ledger.reading import read_ledger
from flaxformer.runner.execution import Execution
from flaxformer.runner.launchers.options import Share
from flaxformer.store.store import Store
from flaxformer.system.errors import UserError

HIGHER = ["optimizer.learning_rate=0.01"]


def opened(root, share=None, **changes):
    return OpenLedger(ledger(**changes), root, Execution(devices=1), share=share)


def propose(book, changes=HIGHER, reason="it may help", rates=()):
    generator = book.propose(changes, None, reason, rates)
    while True:
        try:
            next(generator)
        except StopIteration as stop:
            return stop.value


def attempts(root):
    return [entry for entry in log.read(root)[0] if isinstance(entry, log.Attempt)]


def test_the_same_command_goes_on_with_its_attempt(tmp_path):
    first = propose(opened(tmp_path / "tiny"))
    assert propose(opened(tmp_path / "tiny")) == first
    assert len(attempts(tmp_path / "tiny")) == 1
    for words in ({"changes": ["optimizer.learning_rate=0.02"]}, {"reason": "another"}, {"rates": (0.1, 0.2)}):
        with pytest.raises(UserError, match="has no verdict yet"):
            propose(opened(tmp_path / "tiny"), **words)


@pytest.mark.long
def test_the_same_command_after_the_verdict_trains_nothing(tmp_path):
    root = tmp_path / "tiny"
    book = opened(root)
    entry = propose(book)
    list(book.train(entry))
    before = (root / log.NAME).read_bytes()
    late = opened(root)
    again = propose(late)
    assert (again, list(late.train(again))) == (entry, [])
    assert (root / log.NAME).read_bytes() == before
    with pytest.raises(UserError, match="is the best recipe itself"):
        propose(late, reason="another")


@pytest.mark.long
def test_a_tuned_attempt_is_recognised_by_its_rates(tmp_path):
    entry = propose(opened(tmp_path / "tiny"), ["model.feed_forward.activation=gelu"], rates=(1e-2, 1e-5))
    assert entry.changes[-1].startswith("optimizer.learning_rate=")
    assert propose(opened(tmp_path / "tiny"), ["model.feed_forward.activation=gelu"], rates=(1e-5, 1e-2)) == entry


@pytest.mark.parametrize("case", ["declared", "judged"])
def test_processes_that_propose_at_once_make_one_attempt(tmp_path, case, monkeypatch):
    """The other process is faster while this one plans; at equal seconds, it has also measured other times."""
    root, seconds = tmp_path / "tiny", [1.0, 1.5]
    monkeypatch.setattr(budget, "seconds_per_step", lambda runs: list(seconds))
    slow, fast = (opened(root, compare="equal seconds") for _ in range(2))
    wider = ["model.feed_forward.d_ff=64"]
    results = slow.begin()
    monkeypatch.setattr(OpenLedger, "begin", lambda book: results if book is slow else book.results())
    winner = propose(fast, wider)
    if case == "judged":
        fast.withdraw()
    seconds[1] = 2.0
    joined = propose(slow, wider)
    assert joined == winner
    assert joined.adjusted == {"training.steps": 4}
    assert slow.plans == {}
    assert len(attempts(root)) == 1
    assert read_ledger(root).faults == []


def test_another_entry_meanwhile_is_refused(tmp_path, monkeypatch):
    slow, fast = (opened(tmp_path / "tiny") for _ in range(2))
    results = slow.begin()
    monkeypatch.setattr(OpenLedger, "begin", lambda book: results if book is slow else book.results())
    propose(fast, reason="another")
    with pytest.raises(UserError, match="another process has added"):
        propose(slow)


def test_processes_that_measure_a_budget_at_once_begin_one_ledger(tmp_path, monkeypatch):
    root, times, both = tmp_path / "tiny", iter([1.0, 2.0]), threading.Barrier(2)

    def seconds_per_step(runs):
        both.wait(60)  # neither process has begun the ledger
        return [next(times)]

    monkeypatch.setattr(budget, "seconds_per_step", seconds_per_step)
    books, threads = [], []
    for _ in range(2):
        threads.append(
            threading.Thread(target=lambda: books.append(open_ledger(ledger(), root, Execution(), budget="12s")))
        )
        threads[-1].start()
    for thread in threads:
        thread.join()
    steps = {book.begin().begun.steps for book in books} | {book.ledger.start.training.steps for book in books}
    assert len(books) == 2
    assert steps in ({6}, {12})


@pytest.mark.long
def test_shares_train_every_run_once(tmp_path):
    books = [opened(tmp_path / "tiny", Share(number, 2), seeds=4, effect=1e-9) for number in (1, 2)]
    entry = propose(books[0])
    assert propose(books[1]) == entry
    book = books[0]
    plan = book.plans[1]
    names = [trial.trial for trial in plan.declaration.trials]
    folder = tmp_path / "tiny" / "attempts" / "001"
    execution = Execution(devices=1, output=folder)
    stopped = joining.train_runs(plan, execution, Share(1, 2), names)
    trained = []
    for event in stopped:
        trained.append(getattr(event, "row", None))
        if len(Store(folder).rows()) == len(names) // 2:
            break
    stopped.close()
    assert sorted(Store(folder).rows()) == sorted(Share(1, 2).names(plan.declaration.trials))
    list(joining.train_runs(plan, execution, Share(2, 2), names))
    assert sorted(Store(folder).rows()) == sorted(names)
    list(books[1].train(entry))
    assert read_ledger(tmp_path / "tiny").attempts[0].verdict is not None
    assert START.training.steps == 6
