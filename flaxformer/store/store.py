"""The results folder of a study, which holds all of its state.

    study.json                 the declaration: axes, trials with their fingerprints, claims, data, reference losses
    declarations.jsonl         log of all declarations, each with the results that existed then (`declaration_log`)
    declarations.head          number of lines of that log, and the digest of its last line
    launches.jsonl             provenance: one line per launch (versions, git commit, digests of the code, devices)
    disagreements.jsonl        trials that were trained again with different results: one line each
    measurements.jsonl         numbers of a probe, or derived from runs: one line per seed
    trial_measurements.jsonl   numbers that a function gave from kept weights: one line per trial
    weights/                   kept weights, a folder per trial
    groups/NAME.WORKER.jsonl   a worker's finished runs of a group that is under way, one line each
    groups/NAME.parquet        all runs of a finished group
    leases/NAME.lease          the process that is training a group
    unfinished/NAME/           saved progress of runs that are being trained
    code/DIGEST/               the study's file and the user's modules that it imports, as they ran
    reads/DIGEST.json          a file, folder or variable that user code has read, with a digest of what was there
    superseded/N.parquet       rows set aside: of changed code, on request; of arms that a halving now stops
    results.parquet, results.md, results.tex, report.html, figures/   written by the report
    live.html                  the page of `--live`

Any number of processes may work on one folder. Each appends lines to files of its own; a shared file is replaced by
writing another one and renaming it, under a lock that is held briefly. A line that a kill cut short is dropped; a file
whose digest differs is set aside as NAME.damaged, and its rows are missing. Nothing is ever unpickled or evaluated.
"""

import contextlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import get_args

from flaxformer.store import declaration, records
from flaxformer.store.checks import check_characters, check_file_name
from flaxformer.store.declaration import FORMAT, Declaration
from flaxformer.store.line_forms import DISAGREEMENTS, LAUNCHES, MEASUREMENTS, read_checked
from flaxformer.store.places import FILES, FOLDERS, STUDY, check_kind, describe_without_study
from flaxformer.store.rows import Row, RunStatus, by_trial
from flaxformer.system import digests
from flaxformer.system.digests import DamagedError, FormError, JsonObject
from flaxformer.system.errors import UserError
from flaxformer.system.files import (
    flush,
    lock_folder,
    lock_if_unchanged,
    make_folder,
    refresh,
    set_aside,
    write_atomically,
)
from flaxformer.system.links import check_file, check_folder, check_places, output_folder
from flaxformer.system.wording import count_of, printable

LOCK_PATIENCE = 60.0
"""Seconds to wait for another process that writes shared files."""
LINES = re.compile(r"(?P<group>.+?)(\.(?P<worker>[0-9a-f]{12}))?\.jsonl")
STATUSES = get_args(RunStatus)


def read_lines(path: Path) -> list[JsonObject]:
    """Return the lines of a file of `LINES` that are undamaged and have its form, without one that was cut short."""
    return read_checked(path)[0]


class Store:
    """Results folder of one study.

    Args:
      root: the folder, which may be a symbolic link; nothing below it may be (`flaxformer.system.links`).
      worker: 12 hexadecimal digits, for the lines that this process adds; none for a folder with one writer.
    """

    def __init__(self, root: Path, worker: str = "") -> None:
        self.root, self.worker = output_folder(root), worker
        self.groups, self.leases, self.unfinished = root / "groups", root / "leases", root / "unfinished"
        self.corrupt_files: dict[str, str] = {}
        """Damage found while reading, by the path of the file in the folder."""
        self.disagreements: dict[str, str] = {}
        """Differing results of one trial found while reading, by its name: training was not deterministic."""

    @property
    def declaration(self) -> Declaration:
        """Declaration of the study when it last ran.

        Raises:
          UserError: the folder holds no study, a damaged one, or one in another format.
        """
        try:
            return self.read_declaration()
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(describe_without_study(self.root)) from None
        except DamagedError as error:
            raise UserError(
                f"{self.root / 'study.json'} is damaged ({error}); expected JSON as 'run' wrote it: running again does"
            ) from None

    def read_declaration(self) -> Declaration:
        """The content of study.json.

        Raises:
          FileNotFoundError: there is none.
          DamagedError: it is not what was written.
          UserError: it is in another format, or another program wrote it; or a file of the folder is a symbolic link.
        """
        self.check_links()
        path = self.root / "study.json"
        data = digests.read_document(path)
        check_characters(path)
        if (version := data.get("format", FORMAT)) != FORMAT:
            raise UserError(f"{self.root} is in format {version}; expected {FORMAT}: give --output another folder")
        try:
            return declaration.read(data)
        except FormError as error:
            raise UserError(
                f"{path} is not as 'run' writes it: {error}; give --output another folder, or remove this one"
            ) from None

    def check_links(self) -> None:
        """Check that no file or folder of this package's, in this folder, is a symbolic link.

        Raises:
          UserError: the first one that is.
        """
        check_places(self.root, FILES, FOLDERS)

    @contextlib.contextmanager
    def locked(self, patience: float = 0.0) -> Iterator[None]:
        """Hold the folder for one writer; the lock ends with the process, however it ends.

        Raises:
          UserError: another process holds it, a file or folder in it is a symbolic link, or it is no study's folder.
        """
        check_kind(self.root, STUDY)
        with lock_folder(self.root, "writing the study", patience):
            self.check_links()
            with records.writing(self.groups):
                make_folder(self.groups)
                refresh(self.groups)
            yield

    # --- rows ---------------------------------------------------------------------------------------------

    def rows(self, group: str | None = None) -> dict[str, Row]:
        """Return the last row of every trial, or of a group's, by trial name; a result replaces a failed row."""
        # lines first: another process may merge them into a table meanwhile
        written = [row for path in self.line_files(group) for row in self.rows_of_lines(path)]
        tables = [row for path in self.table_files() if group in (None, path.stem) for row in self.rows_of_table(path)]
        for line in self.recorded_disagreements():
            self.disagreements.setdefault(line["trial"], line["what"])
        return by_trial([*tables, *written], self.disagreements)

    def recorded_disagreements(self) -> list[JsonObject]:
        """The recorded trials whose results differ; other lines are noted as damage."""
        lines, wrong = read_checked(path := self.root / DISAGREEMENTS)
        if wrong:
            self.note_damage(path, wrong[0])
        return lines

    def table_files(self) -> list[Path]:
        """The Parquet files of results."""
        return self._files("*.parquet")

    def _files(self, pattern: str) -> list[Path]:
        """The files in groups/ that match."""
        check_folder(self.groups)
        paths = sorted(path for path in self.groups.glob(pattern) if not path.name.startswith("."))
        for path in paths:
            check_file(path)
        return [path for path in paths if path.is_file()]

    def line_files(self, group: str | None = None) -> dict[Path, re.Match[str]]:
        """The files of lines, of a group or of all, each with the parts of its name."""
        matches = {path: LINES.fullmatch(path.name) for path in self._files("*.jsonl")}
        return {path: name for path, name in matches.items() if name and group in (None, name["group"])}

    def rows_of_lines(self, path: Path) -> list[Row]:
        """The rows of a file of lines; other lines are noted as damage."""
        try:
            lines, wrong = digests.lines(path)
        except FileNotFoundError:  # it was merged meanwhile
            return []
        for text in wrong:
            self.note_damage(path, text)
        return self.checked_rows(path, lines)

    def rows_of_table(self, path: Path) -> list[Row]:
        try:
            return self.checked_rows(path, records.read_rows(path))
        except DamagedError as error:
            self.note_damage(path, str(error))
        except FileNotFoundError:
            pass
        return []

    def checked_rows(self, path: Path, flat_rows: list[JsonObject]) -> list[Row]:
        """The rows of results among what a file holds; others are noted as damage."""
        rows, wrong = [], []
        for columns in flat_rows:
            try:
                rows.append(Row.from_columns(columns))
            except ValueError as error:
                wrong.append(error)
        if wrong:
            self.note_damage(path, f"{len(wrong)} rows are not rows of results ({wrong[0]})")
        return rows

    def has_rows(self) -> bool:
        """True if there is a file of rows, whatever it holds."""
        return bool(self.line_files() or self.table_files())

    def written(self) -> dict[str, float]:
        """Time of the last write of each group, in seconds since 1970."""
        times: dict[str, float] = {}
        names = [(path, path.stem) for path in self.table_files()]
        names += [(path, name["group"]) for path, name in self.line_files().items()]
        for path, group in names:
            with contextlib.suppress(FileNotFoundError):
                times[group] = max(times.get(group, 0.0), path.stat().st_mtime)
        return times

    def note_damage(self, path: Path, what: str) -> None:
        self.corrupt_files.setdefault(path.relative_to(self.root).as_posix(), what)

    def set_aside(self, path: Path, what: str) -> None:
        """Rename a damaged file to NAME.damaged, and note what is wrong with it."""
        self.note_damage(path, what)
        with records.writing(path):
            set_aside(path, "damaged")

    def append(self, group: str, row: Row) -> None:
        """Add one finished run to its group; it is on the disk when this returns."""
        worker = f".{self.worker}" if self.worker else ""
        records.append_line(self.groups / f"{check_file_name(group)}{worker}.jsonl", row)

    def remove_rows(self, trials: Collection[str]) -> None:
        """Remove the rows of these trials from every file; call it under the lock.

        A damaged file that held some of them is set aside, as `repair` does.
        """
        for path in [*self.line_files(), *self.table_files()]:
            while path.exists() and not self._remove_rows(path, trials):
                pass  # its owner adds a row
        flush(self.groups)

    def _remove_rows(self, path: Path, trials: Collection[str]) -> bool:
        """Remove the rows of trials from a file; False if it changed meanwhile, and is as it is."""
        size = len(digests.read_or_empty(path))
        rows = self.rows_of_lines(path) if path.suffix == ".jsonl" else self.rows_of_table(path)
        left = [row for row in rows if row.trial not in trials]
        if len(left) == len(rows):
            return True
        with lock_if_unchanged(path, size) as is_unchanged:
            if not is_unchanged:
                return False
            if path.relative_to(self.root).as_posix() in self.corrupt_files:
                self.set_aside(path, "")
            if not left:
                path.unlink(missing_ok=True)
            elif path.suffix == ".jsonl":
                with records.writing(path):
                    write_atomically(path, b"".join(map(digests.line, left)))
            else:
                records.write_table(path, left)
        return True

    def finish(self, group: str) -> None:
        """Merge all workers' lines of a group into its Parquet file, with the rows of earlier launches.

        Call it under the lock, while no other process has a lease on the group.
        """
        parquet = self.groups / f"{check_file_name(group)}.parquet"
        if sizes := {path: len(digests.read_or_empty(path)) for path in self.line_files(group)}:
            rows = self.rows(group)
            recorded = {line["trial"] for line in self.recorded_disagreements()}
            for trial in self.disagreements.keys() & rows.keys() - recorded:
                records.append_line(self.root / DISAGREEMENTS, {"trial": trial, "what": self.disagreements[trial]})
            if rows:  # a full disk may have left a file of lines without a row
                records.write_table(parquet, list(rows.values()))
            for path, size in sizes.items():
                with lock_if_unchanged(path, size) as is_merged:  # else its owner, long silent, has added a row
                    if is_merged and path.relative_to(self.root).as_posix() in self.corrupt_files:
                        self.set_aside(path, "")
                    elif is_merged:
                        path.unlink(missing_ok=True)

    def unmerged_groups(self) -> list[str]:
        """The groups with lines that are not merged into their Parquet file."""
        return list(dict.fromkeys(name["group"] for name in self.line_files().values()))

    def measurements(self, declaration: Declaration) -> list[JsonObject]:
        """Rows measured or derived by the code that the declaration names, one per seed.

        Those that former code of a probe has measured count too if they were kept. Numbers that a study derives from
        its runs are computed again at every launch, so those of former code are of former claims alone.
        """
        kept = declaration.kept_measurements if declaration.kind == "probe" else ()
        return self.measured_by([declaration.measured_by, *kept])

    def measured_by(self, identities: Collection[str | None]) -> list[JsonObject]:
        """Rows measured or derived by the code of one of these identities, in the order in which they were written."""
        path = self.root / MEASUREMENTS
        lines, wrong = read_checked(path)
        if wrong:
            self.note_damage(path, f"{count_of(len(wrong), 'line')} of {len(lines) + len(wrong)}: {wrong[0]}")
        lines = [row for row in lines if row["measured_by"] in identities]
        return [row | {"values": {printable(name): value for name, value in row["values"].items()}} for row in lines]

    def append_measurement(self, row: JsonObject) -> None:
        """Add the measurement of one seed; it is on the disk when this returns."""
        records.append_line(self.root / MEASUREMENTS, row)

    def replace_measurements(self, rows: list[JsonObject], identity: str) -> None:
        """Replace the measurements of an identity by numbers derived from the present runs; others stay."""
        path = self.root / MEASUREMENTS
        kept = [row for row in read_lines(path) if row["measured_by"] != identity]
        with records.writing(path):
            write_atomically(path, b"".join(map(digests.line, [*kept, *rows])))

    def record_launch(self, launch: JsonObject) -> None:
        """Add one launch to the provenance."""
        records.append_line(self.root / LAUNCHES, launch)
