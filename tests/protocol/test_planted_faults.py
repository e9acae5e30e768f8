"""Faults planted in the store, the leases and the checkpoints: random histories find each of them."""

import contextlib
import os
from unittest import mock

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from protocol.test_protocol import Damage, Network, Protocol, expected, undisturbed

from flaxformer.checkpoint import checkpoints
from flaxformer.store import columns, declaration_log, leases, store
from flaxformer.system import digests, files

HISTORIES = 3000
"""Histories after which a fault counts as not found."""


def append_without_flush(path, row):
    file = files.open_to_append(path)
    try:
        os.write(file, digests.line(row))
    finally:
        os.close(file)


def append_without_new_line(path, row):
    """Add a row behind whatever a kill left of the last line."""
    file = files.open_to_append(path)
    try:
        is_new = not os.fstat(file).st_size
        os.write(file, digests.line(row))
        os.fsync(file)
        if is_new:
            files.flush(path.parent)
    finally:
        os.close(file)


@contextlib.contextmanager
def always_unchanged(path, size):
    yield True


def take_without_looking(self, name, trials):
    return list(trials) if name not in self._mine and self._create(name, trials) else None


@contextlib.contextmanager
def lock_nothing(folder, *_, **__):
    files.make_folder(folder)
    yield


def remove_any(self, path, token, mtime=None):
    path.unlink(missing_ok=True)
    return True


def tables_before_lines(self, group=None):
    tables = [row for path in self.table_files() if group in (None, path.stem) for row in self.rows_of_table(path)]
    written = [row for path in self.line_files(group) for row in self.rows_of_lines(path)]
    return store.by_trial([*tables, *written], self.disagreements)


def tables_before_lines_of_columns(self, choose, types):
    tables = [columns.columns_of_table(self, path, choose) for path in self.table_files()]
    lines = [frame for path in self.line_files() for frame in columns.columns_of_lines(self, path, choose)]
    parts = [part for part in (*tables, *lines) if part is not None and part.height]
    return pl.concat([pl.DataFrame(schema=types), *parts], how="diagonal_relaxed")


def append_after_head(store, log, entry):
    """Count a line in the head before it is in the log."""
    head = {"lines": len(log.digests) + 1, "last": "0"}
    declaration_log.records.write_document(store.root / declaration_log.HEAD, head)
    return append_to_log(store, log, entry)


append_to_log = declaration_log.append_entry


def write_in_place(path, data):
    path.write_bytes(data)


def last_row(rows, disagreements):
    return {row.trial: row for row in rows}


read_arrays = checkpoints.read_arrays


def other_weights(*given):
    arrays = read_arrays(*given)
    return {name: array + 0.25 if name == "states/1" else array for name, array in arrays.items()}


FAULTS = {
    "a row is acknowledged before it is flushed": (Protocol, (digests, "append_line", append_without_flush)),
    "a row is added behind a line that was cut": (Protocol, (digests, "append_line", append_without_new_line)),
    "a merge removes lines that it has not read": (Protocol, (store, "lock_if_unchanged", always_unchanged)),
    "a lease is taken without looking at others": (Protocol, (leases.Leases, "take", take_without_looking)),
    "the lock of leases excludes nobody": (Protocol, (leases, "lock_folder", lock_nothing)),
    "a lease is removed without comparing its token": (Protocol, (leases.Leases, "_remove", remove_any)),
    "a reader reads tables before lines": (Protocol, (store.Store, "rows", tables_before_lines)),
    "a status reads tables before lines": (Protocol, (columns, "_read", tables_before_lines_of_columns)),
    "a document is written in place": (Protocol, (digests, "write_atomically", write_in_place)),
    "a line is counted before it is in the log": (Protocol, (declaration_log, "append_entry", append_after_head)),
    "a failed row replaces a result": (Protocol, (store, "by_trial", last_row)),
    "a partial run is resumed with other weights": (Protocol, (checkpoints, "read_arrays", other_weights)),
    "a line counts whatever its digest": (Damage, (digests, "digest", lambda data, size=8: "0" * 2 * size)),
    "a stale handle is an error": (Network, (digests, "READS", 1)),
}


@pytest.mark.every(2, "long")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_not_seen_in_a_quiet_history(fault):
    before = expected()
    with mock.patch.object(*FAULTS[fault][1]):
        assert undisturbed() == before


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_histories_find_a_planted_fault(fault):
    expected()
    machine, change = FAULTS[fault]
    how = settings(
        max_examples=HISTORIES, stateful_step_count=40, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate,),
    )  # fmt: skip
    with mock.patch.object(*change), pytest.raises((Exception, ExceptionGroup)):
        run_state_machine_as_test(machine, settings=how)
