"""The log of a ledger shows whatever was changed, removed, inserted or copied."""

import json

import pytest
from ledger.ledgers import begun

from flaxformer.ledger import log
from flaxformer.ledger.log import Attempt, Confirmation, Decision
from flaxformer.ledger.reading import read_ledger
from flaxformer.system import digests
from flaxformer.system.errors import UserError


@pytest.fixture
def root(tmp_path):
    entries = []
    for number in (1, 2, 3):
        attempt = Attempt(number=number, reason="why", changes=("a=1",), best="b", recipe=f"r{number}")
        verdict = Decision(number=number, verdict="withdrawn", pairs=0, results="")
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


def test_removed_last_lines_leave_a_folder_without_an_entry(root):
    for number in (1, 2, 3):
        (root / "attempts" / f"{number:03}").mkdir(parents=True)
    assert read_ledger(root).faults == []
    (root / log.NAME).write_bytes(b"".join(lines(root)[:5]))
    assert read_ledger(root).faults == ["attempts/003 has no entry in ledger.jsonl"]


def test_a_last_line_that_a_kill_cut_short_does_not_count(root):
    whole = lines(root)
    (root / log.NAME).write_bytes(b"".join(whole) + whole[1][:40])
    results = read_ledger(root)
    assert (results.faults, len(results.entries)) == ([], 7)
    log.append(root, results.entries, Confirmation(metric="test_loss", attempts=3))
    assert len(read_ledger(root).confirmations) == 1


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
