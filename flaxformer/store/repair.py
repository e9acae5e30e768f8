"""Repair of a folder of results before a process works in it."""

from flaxformer.store import records
from flaxformer.store.line_forms import LAUNCHES, LINES, MEASUREMENTS, read_checked
from flaxformer.store.store import Store
from flaxformer.system import digests
from flaxformer.system.files import write_atomically


def repair(store: Store) -> None:
    """Repair the folder, under the lock: remove unfinished lines and half-written files, set damaged files aside.

    Files of workers are left alone, since a worker may be writing: an unfinished line is not read, and no other
    process adds to it.
    """
    plain = [path for path, name in store.line_files().items() if not name["worker"]]
    for path in (store.root / MEASUREMENTS, store.root / LAUNCHES, *plain):
        data = digests.read_or_empty(path)
        lines, wrong = read_checked(path) if path.name in LINES else digests.lines(path)
        if wrong:
            store.set_aside(path, wrong[0])
            data = b"".join(map(digests.line, lines))
        if wrong or (data and not data.endswith(b"\n")):
            with records.writing(path):
                write_atomically(path, data[: data.rfind(b"\n") + 1])
    for path in store.table_files():
        store.rows_of_table(path)
        if path.exists() and (what := store.corrupt_files.get(path.relative_to(store.root).as_posix())):
            store.set_aside(path, what)
    for path in store.groups.glob(".*.tmp"):
        path.unlink(missing_ok=True)
