"""The log of a ledger shows whatever was changed, removed, inserted or copied."""

import json

import pytest
from ledger.ledgers import begun
from msgspec.structs import replace

from flaxformer.ledger import log
from flaxformer.ledger.log import Attempt, Confirmation, Decision
from flaxformer.ledger.reading import digest_of_scores, read_ledger
from flaxformer.store import log_head
from flaxformer.system import digests
from flaxformer.system.errors import UserError


@pytest.fixture
def root(tmp_path):
    entries = []
    for number in (1, 2, 3):
        attempt = Attempt(number=number, reason="why", changes=("a=1",), best="r", recipe=f"r{number}")
        verdict = Decision(number=number, verdict="withdrawn", pairs=0, results=digest_of_scores([], []))
        for entry in ([begun()] if not entries else []) + [attempt, verdict]:
            entries.append(log.append(tmp_path, entries, entry))
    return tmp_path


def lines(root):
    return (root / log.NAME).read_bytes().splitlines(keepends=True)


def rewritten(line, **changes):
    """The line with other fields and a digest that fits, as someone who knows the form would write it."""
    row = json.loads(line)
    del row["digest"]
    return digests.line(row | changes)


def test_a_log_as_it_was_written_has_no_faults(root):
    results = read_ledger(root)
    assert results.faults == []
    assert [attempt.verdict for attempt in results.attempts] == ["withdrawn"] * 3
    assert results.unfinished is None


CHANGES = {
    "a field of the declaration": lambda old: [rewritten(old[0], effect=0.1), *old[1:]],
    "a reason": lambda old: [old[0], rewritten(old[1], reason="another"), *old[2:]],
    "a verdict": lambda old: [*old[:2], rewritten(old[2], verdict="kept"), *old[3:]],
    "a byte": lambda old: [*old[:2], old[2].replace(b"withdrawn", b"withdrawm"), *old[3:]],
    "an attempt removed": lambda old: [*old[:3], *old[5:]],
    "a verdict removed": lambda old: [*old[:2], *old[3:]],
    "a verdict twice": lambda old: [*old, old[2]],
    "an attempt twice": lambda old: [*old, old[1]],
    "two lines exchanged": lambda old: [*old[:3], old[4], old[3], *old[5:]],
    "a line of another kind": lambda old: [*old, digests.line({"kind": "other", "previous": ""})],
    "a line of text": lambda old: [*old, b"kept\n"],
    "a wrong type": lambda old: [*old[:1], rewritten(old[1], number="one"), *old[2:]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_log_has_faults(root, change):
    (root / log.NAME).write_bytes(b"".join(CHANGES[change](lines(root))))
    assert read_ledger(root).faults


def chained(root, entries):
    """Write entries with digests and a head that fit, as someone who knows the form would."""
    for path in (root / log.NAME, log_head.head_of(root / log.NAME)):
        path.unlink()
    for place, entry in enumerate(entries):
        log.append(root, entries[:place] and log.read(root)[0], entry)


LOOK = Confirmation(metric="test_loss", attempts=3)
ORDERS = {
    "a declaration twice": lambda e: [e[0], *e],
    "a verdict before its attempt": lambda e: [e[0], e[2], e[1], *e[3:]],
    "an attempt before the verdict on the last one": lambda e: [*e[:2], e[3], e[2], *e[4:]],
    "an attempt renamed": lambda e: [*e[:5], replace(e[5], number=4), replace(e[6], number=4)],
    "two confirmations": lambda e: [*e, LOOK, LOOK],
    "an attempt after the confirmation": lambda e: [*e[:5], LOOK, *e[5:]],
    "a confirmation before a verdict": lambda e: [*e[:6], LOOK, e[6]],
    "another best recipe": lambda e: [*e[:5], replace(e[5], best="s"), e[6]],
    "a verdict without results": lambda e: [*e[:6], replace(e[6], verdict="dropped")],
}


@pytest.mark.parametrize("order", ORDERS)
def test_entries_that_no_command_writes_are_faults_although_their_digests_fit(root, order):
    entries = log.read(root)[0]
    chained(root, [*entries, LOOK])
    assert read_ledger(root).faults == []
    chained(root, ORDERS[order](entries))
    assert read_ledger(root).faults


@pytest.mark.parametrize("left", range(1, 7))
def test_removed_last_lines_are_a_fault_also_without_their_folders(root, left):
    (root / log.NAME).write_bytes(b"".join(lines(root)[:left]))
    gone = 7 - left
    assert f"{gone} of 7 lines of ledger.jsonl {'is' if gone == 1 else 'are'} missing" in read_ledger(root).faults


def test_a_changed_last_line_is_a_fault(root):
    (root / log.NAME).write_bytes(b"".join([*lines(root)[:-1], rewritten(lines(root)[-1], time="2020-01-01")]))
    assert read_ledger(root).faults == ["line 7 of ledger.jsonl is not the one that was written"]


def test_a_log_that_a_kill_left_ahead_of_its_head_has_no_fault(root):
    head = log_head.head_of(root / log.NAME)
    before = head.read_bytes()
    log.append(root, read_ledger(root).entries, LOOK)
    head.write_bytes(before)
    assert read_ledger(root).faults == []


@pytest.mark.parametrize("folder", ["attempts/004", "confirmation"])
def test_folders_without_an_entry_are_faults(root, folder):
    for number in (1, 2, 3):
        (root / "attempts" / f"{number:03}").mkdir(parents=True)
    assert read_ledger(root).faults == []
    (root / folder).mkdir()
    assert read_ledger(root).faults == [f"{folder} has no entry in ledger.jsonl"]


def test_a_damaged_study_of_an_attempt_is_a_fault(root):
    (root / "attempts/002").mkdir(parents=True)
    (root / "attempts/002/study.json").write_text("x")
    assert any(fault.startswith("attempt 2: study.json is damaged") for fault in read_ledger(root).faults)


@pytest.mark.parametrize("end", [40, -1])
def test_a_last_line_that_a_kill_cut_short_does_not_count(root, end):
    whole = lines(root)
    (root / log.NAME).write_bytes(b"".join(whole) + whole[1][:end])
    results = read_ledger(root)
    assert (results.faults, len(results.entries)) == ([], 7)
    log.append(root, results.entries, LOOK)
    results = read_ledger(root)
    assert (results.faults, len(results.confirmations)) == ([], 1)


@pytest.mark.parametrize("changes", [{"false_keeps": -1}, {"false_drops": 1.0}, {"seeds": 0}, {"attempts": -3}])
def test_a_declaration_out_of_range_is_refused(root, changes):
    (root / log.NAME).write_bytes(rewritten(lines(root)[0], **changes))
    with pytest.raises(UserError, match=f"holds no ledger: {log.NAME}, row 1: {next(iter(changes))}"):
        read_ledger(root)


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\x00" * 100 + b"\n"])
def test_a_folder_without_a_declaration_is_refused(tmp_path, content):
    (tmp_path / log.NAME).write_bytes(content)
    with pytest.raises(UserError, match="holds no ledger"):
        read_ledger(tmp_path)
