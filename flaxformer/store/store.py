"""The results folder of a study, which holds all of its state.

    study.json                 the declaration: axes, trials with their fingerprints, claims, data, reference losses
    launches.jsonl             provenance: one line per launch (versions, git commit, digests of the code, devices)
    measurements.jsonl         numbers that a probe measured, or that were derived from runs: one line per seed
    groups/NAME.WORKER.jsonl   a worker's finished runs of a group that is under way, one line each
    groups/NAME.parquet        all runs of a finished group
    leases/NAME.lease          the process that is training a group
    unfinished/NAME/           saved progress of runs that are being trained
    code/DIGEST/               the study's file and the user's modules that it imports, as they ran
    superseded/N.parquet       rows of code that has changed since, set aside on request
    results.parquet, results.md, results.tex, report.html, figures/   written by the report

Any number of processes may work on one folder. Each adds lines to files of its own; what all share is replaced by
writing beside it and renaming, under a lock that is held for moments. A line that a kill cut short is dropped; a file
that is not what was written is set aside as NAME.damaged, and what it held is missing. Nothing here is ever unpickled
or evaluated.
"""

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from flaxformer.files import locked, set_aside, write_atomically
from flaxformer.store import records
from flaxformer.store.records import DamagedError, Row
from flaxformer.struct import UserError

FORMAT = 3
"""Of study.json; raised when a folder cannot be read as before."""
RUNGS = "rungs"
"""Folder of the rungs of a halving: DIR/rungs/STEP is a study's folder with the results of all arms at that step."""
LOCK_PATIENCE = 60.0
"""Seconds to wait for another process that writes what all share."""
LINES = re.compile(r"(?P<group>.+?)(\.(?P<worker>[0-9a-f]{12}))?\.jsonl")
STATUSES = ("done", "diverged", "stopped", "failed")


def read_lines(path: Path) -> list[Row]:
    """The whole lines of a JSONL file that are as they were written; a last line without its end does not count."""
    return records.lines(path)[0]


def check_file_name(group: str) -> str:
    """A group's name, which becomes a file's.

    Raises:
      UserError: it would leave its folder.
    """
    if not group or group.startswith(".") or set(group) & set("/\\\0\n") or len(group.encode()) > 200:
        raise UserError(f"group is named {group!r}; expected a plain file name")
    return group


def is_finished(row: Row | None) -> bool:
    """True if a trial has a result: a run that failed has none."""
    return row is not None and row["status"] != "failed"


class Store:
    """One study's folder.

    Args:
      root: the folder.
      worker: 12 hexadecimal digits, for the lines that this process adds; none for a folder with one writer.
    """

    def __init__(self, root: Path, worker: str = "") -> None:
        self.root, self.worker = root, worker
        self.groups, self.leases, self.unfinished = root / "groups", root / "leases", root / "unfinished"
        self.corrupt_files: dict[str, str] = {}
        """Damage found in reading, by the file's path in the folder."""

    @property
    def declaration(self) -> Row:
        """Declaration of the study when it last ran.

        Raises:
          UserError: the folder holds no study, a damaged one, or one in another format.
        """
        try:
            return self.read_declaration()
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(
                f"{self.root} holds no study (no study.json); expected the output folder of 'run'"
            ) from None
        except DamagedError as error:
            raise UserError(
                f"{self.root / 'study.json'} is damaged ({error}); expected JSON as 'run' wrote it: running again does"
            ) from None

    def read_declaration(self) -> Row:
        """The content of study.json.

        Raises:
          FileNotFoundError: there is none.
          DamagedError: it is not what was written.
          UserError: it is in another format.
        """
        declaration = records.read_document(self.root / "study.json")
        if declaration.get("format") != FORMAT:
            found = declaration.get("format")
            raise UserError(f"{self.root} is in format {found}; expected {FORMAT}: give --output another folder")
        if not all(isinstance(declaration.get(name), kind) for name, kind in (("trials", list), ("recipes", dict))):
            raise DamagedError("it lacks trials and recipes")
        return declaration

    @contextlib.contextmanager
    def locked(self, patience: float = 0.0) -> Iterator[None]:
        """Hold the folder for one writer; the lock ends with the process, however it ends.

        Raises:
          UserError: another process holds it, or a folder of it is a link to somewhere else.
        """
        with locked(self.root, "writing the study", patience):
            kept = (folder for pattern in ("*", "*/*") for folder in self.unfinished.glob(pattern))
            for folder in (self.groups, self.leases, self.unfinished, *kept):
                if folder.is_symlink():
                    raise UserError(f"{folder} is a symbolic link; expected a folder of its own")
            with records.writing(self.groups):
                self.groups.mkdir(exist_ok=True)
            yield

    # --- rows ---------------------------------------------------------------------------------------------

    def rows(self, group: str | None = None) -> dict[str, Row]:
        """Return the last row of every trial, or of a group's, by trial name; a result replaces a failed row."""
        written = [row for path in self._line_files(group) for row in self._lines(path)]  # before they may be merged
        tables = [row for path in self._files("*.parquet") if group in (None, path.stem) for row in self._table(path)]
        return _by_trial([*tables, *written])

    def _files(self, pattern: str) -> list[Path]:
        """The files in groups/; a link to somewhere else is none."""
        if self.groups.is_symlink():
            raise UserError(f"{self.groups} is a symbolic link; expected a folder of its own")
        found = sorted(path for path in self.groups.glob(pattern) if not path.name.startswith("."))
        for path in found:
            if path.is_symlink():
                self._note(path, "it is a symbolic link")
        return [path for path in found if not path.is_symlink() and path.is_file()]

    def _line_files(self, group: str | None = None) -> list[Path]:
        found = [(path, LINES.fullmatch(path.name)) for path in self._files("*.jsonl")]
        return [path for path, name in found if name and group in (None, name["group"])]

    def _lines(self, path: Path) -> list[Row]:
        """The rows of a file of lines; what cannot be one is noted."""
        name = LINES.fullmatch(path.name)
        try:
            rows, wrong = records.lines(path, sealed=bool(name and name["worker"]))
        except FileNotFoundError:  # it was merged meanwhile
            return []
        for text in wrong:
            self._note(path, text)
        return self._checked(path, rows)

    def _table(self, path: Path) -> list[Row]:
        try:
            return self._checked(path, records.read_table(path))
        except DamagedError as error:
            self._note(path, str(error))
        except FileNotFoundError:
            pass
        return []

    def _checked(self, path: Path, rows: list[Row]) -> list[Row]:
        """The rows that are rows of results."""
        good = [row for row in rows if isinstance(row.get("trial"), str) and row.get("status") in STATUSES]
        if len(good) < len(rows):
            self._note(path, f"{len(rows) - len(good)} rows have no trial or no status")
        return good

    def written(self) -> dict[str, float]:
        """When something was last written of each group, in seconds since 1970."""
        times: dict[str, float] = {}
        names = [(path, path.stem) for path in self._files("*.parquet")]
        names += [(path, LINES.fullmatch(path.name)["group"]) for path in self._line_files()]  # type: ignore[index]
        for path, group in names:
            with contextlib.suppress(FileNotFoundError):
                times[group] = max(times.get(group, 0.0), path.stat().st_mtime)
        return times

    def _note(self, path: Path, what: str) -> None:
        self.corrupt_files.setdefault(path.relative_to(self.root).as_posix(), what)

    def set_aside(self, path: Path, what: str) -> None:
        """Rename a damaged file to NAME.damaged, and note what is wrong with it."""
        self._note(path, what)
        with records.writing(path):
            set_aside(path, "damaged")

    def append(self, group: str, row: Row) -> None:
        """Add one finished run to its group; it is on the disk when this returns."""
        worker = f".{self.worker}" if self.worker else ""
        records.append_line(self.groups / f"{check_file_name(group)}{worker}.jsonl", row)

    def remove_rows(self, trials: Collection[str]) -> None:
        """Remove the rows of these trials from every file; call it under the lock, while no process trains.

        A damaged file that held some of them is set aside, as `repair` does.
        """
        for path in [*self._line_files(), *self._files("*.parquet")]:
            rows = self._lines(path) if path.suffix == ".jsonl" else self._table(path)
            left = [row for row in rows if row["trial"] not in trials]
            if len(left) == len(rows):
                continue
            if path.relative_to(self.root).as_posix() in self.corrupt_files:
                self.set_aside(path, "")
            if not left:
                path.unlink(missing_ok=True)
            elif path.suffix == ".jsonl":
                with records.writing(path):
                    write_atomically(path, b"".join(map(records.line, left)))
            else:
                records.write_table(path, left)

    def finish(self, group: str) -> None:
        """Turn all workers' lines of a group into its Parquet file, together with what an earlier launch finished.

        Call it under the lock, while no other process has a lease on the group.
        """
        parquet = self.groups / f"{check_file_name(group)}.parquet"
        if lines := self._line_files(group):
            records.write_table(parquet, list(self.rows(group).values()))
            for path in lines:
                if path.relative_to(self.root).as_posix() in self.corrupt_files:
                    self.set_aside(path, "")
                else:
                    path.unlink()

    def unmerged(self) -> list[str]:
        """The groups that have lines outside their Parquet file."""
        names = (LINES.fullmatch(path.name) for path in self._line_files())
        return list(dict.fromkeys(name["group"] for name in names if name))

    # --- what else there is -------------------------------------------------------------------------------

    def measurements(self, declaration: Row) -> list[Row]:
        """Rows measured or derived by the code that the declaration names, one per seed."""
        rows = read_lines(self.root / "measurements.jsonl")
        by = [declaration.get("measured_by"), *declaration.get("kept_measurements", ())]
        rows = [row for row in rows if row.get("measured_by") in by]
        return [row for row in rows if isinstance(row.get("values"), dict) and isinstance(row.get("seed"), int)]

    def append_measurement(self, row: Row) -> None:
        """Add what was measured at one seed; it is on the disk when this returns."""
        records.append_line(self.root / "measurements.jsonl", row)

    def replace_measurements(self, rows: list[Row]) -> None:
        """Write what was derived from all runs that there are."""
        lines = b"".join(records.line(row) for row in rows)
        with records.writing(self.root / "measurements.jsonl"):
            write_atomically(self.root / "measurements.jsonl", lines)

    def record_launch(self, launch: Row) -> None:
        """Add one launch to the provenance."""
        records.append_line(self.root / "launches.jsonl", launch)

    def repair(self) -> None:
        """Make whole what kills and bad disks left, under the lock: unfinished lines, damaged files, half-written ones.

        Files of workers are left alone, since a worker may be writing: an unfinished line is not read, and no other
        process adds to it.
        """
        shared = [self.root / "measurements.jsonl", self.root / "launches.jsonl"]
        plain = [path for path in self._line_files() if not LINES.fullmatch(path.name)["worker"]]  # type: ignore[index]
        for path in (*shared, *plain):
            if path.is_symlink():
                self.set_aside(path, "it is a symbolic link")
            data = path.read_bytes() if path.exists() else b""
            rows, wrong = records.lines(path)
            if wrong:
                self.set_aside(path, wrong[0])
                data = b"".join(map(records.line, rows))
            if wrong or (data and not data.endswith(b"\n")):
                with records.writing(path):
                    write_atomically(path, data[: data.rfind(b"\n") + 1])
        for path in self._files("*.parquet"):
            self._table(path)
            if path.exists() and (what := self.corrupt_files.get(path.relative_to(self.root).as_posix())):
                self.set_aside(path, what)
        for path in self.groups.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def _by_trial(rows: Iterable[Row]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for row in rows:
        if not (row["status"] == "failed" and is_finished(found.get(row["trial"]))):
            found[row["trial"]] = row
    return found
