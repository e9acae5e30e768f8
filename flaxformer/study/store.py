"""The folder of a study's results: what is on disk is the truth.

    study.json          the declaration: axes, cells with their fingerprints, claims, data, reference losses
    launches.jsonl      provenance: one line per launch (versions, git commit, devices)
    measurements.jsonl  numbers that a probe measured, or that were derived from runs: one line a seed
    groups/NAME.jsonl   finished runs of a group that is under way, one line each
    groups/NAME.parquet all runs of a finished group
    results.parquet, results.md, results.tex, report.html, figures/   written by the report

One writer per file; a file is replaced by writing beside it and renaming, and a line that a kill cut short is
dropped. Nothing here is ever unpickled or evaluated.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from flaxformer.files import locked, write_atomically
from flaxformer.struct import UserError, differences

Row = dict[str, Any]
FORMAT = 2
"""Of study.json; raised when a folder cannot be read as before."""


def read_lines(path: Path) -> list[Row]:
    """The whole lines of a JSONL file; a last line without its end was cut short by a kill and does not count."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line]


class Store:
    """One study's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.groups = root / "groups"

    @property
    def declaration(self) -> Row:
        """What the study declared when it last ran.

        Raises:
          UserError: the folder holds no study, or one in another format.
        """
        try:
            declaration = json.loads((self.root / "study.json").read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(
                f"{self.root} holds no study (no study.json); expected the output folder of 'run'"
            ) from None
        except json.JSONDecodeError as error:
            raise UserError(f"{self.root / 'study.json'} is damaged ({error}); expected JSON") from None
        if declaration.get("format") != FORMAT:
            found = declaration.get("format")
            raise UserError(f"{self.root} is in format {found}; expected {FORMAT}: give --output another folder")
        return declaration

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one writer; the lock ends with the process, however it ends.

        Raises:
          UserError: another process holds it.
        """
        self.groups.mkdir(parents=True, exist_ok=True)
        with locked(self.root, "running the study"):
            yield

    def declare(self, declaration: Row) -> None:
        """Write the declaration; refuse to mix results of two recipes under one name.

        Raises:
          UserError: an arm of this name was run with another recipe; the message lists what differs, field by field.
        """
        if (self.root / "study.json").exists():
            old = self.declaration["recipes"]
            for arm, recipe in declaration["recipes"].items():
                changed = differences(old[arm], recipe) if arm in old else []
                if changed:
                    lines = "\n".join(f"  {line}" for line in changed)
                    raise UserError(
                        f"{self.root} holds results of another recipe for '{arm}':\n{lines}\n"
                        "Give --output another folder, or remove this one to start again."
                    )
            kept = {arm: recipe for arm, recipe in old.items() if arm not in declaration["recipes"]}
            declaration = declaration | {"recipes": declaration["recipes"] | kept}
        write_atomically(self.root / "study.json", json.dumps(declaration, indent=1, ensure_ascii=False).encode())

    def rows(self) -> dict[str, Row]:
        """The last row of every cell that has one, by cell name."""
        rows: dict[str, Row] = {}
        for path in sorted(self.groups.glob("*.parquet")):
            rows |= {row["cell"]: row for row in pl.read_parquet(path).to_dicts()}
        for path in sorted(self.groups.glob("*.jsonl")):
            rows |= {row["cell"]: row for row in read_lines(path)}
        return rows

    def measurements(self, declaration: Row) -> list[Row]:
        """What was measured or derived by the code that the declaration names, one row a seed."""
        rows = read_lines(self.root / "measurements.jsonl")
        return [row for row in rows if row["measured_by"] == declaration.get("measured_by")]

    def append_measurement(self, row: Row) -> None:
        """Add what was measured at one seed; it is on the disk when this returns."""
        self._append(self.root / "measurements.jsonl", row)

    def replace_measurements(self, rows: list[Row]) -> None:
        """Write what was derived from all runs that there are."""
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomically(self.root / "measurements.jsonl", lines.encode())

    def repair(self) -> None:
        """Cut off the unfinished last lines that a kill left, so that the next line starts on its own."""
        for path in (*self.groups.glob("*.jsonl"), *self.root.glob("measurements.jsonl")):
            data = path.read_bytes()
            if data and not data.endswith(b"\n"):
                write_atomically(path, data[: data.rfind(b"\n") + 1])

    def append(self, group: str, row: Row) -> None:
        """Add one finished run to its group; it is on the disk when this returns."""
        self._append(self.groups / f"{group}.jsonl", row)

    def record_launch(self, launch: Row) -> None:
        """Add one launch to the provenance."""
        self._append(self.root / "launches.jsonl", launch)

    def _append(self, path: Path, row: Row) -> None:
        with path.open("ab") as file:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self, group: str) -> None:
        """Turn a group's lines into its Parquet file, together with what an earlier launch finished."""
        lines, parquet = self.groups / f"{group}.jsonl", self.groups / f"{group}.parquet"
        if lines.exists():
            earlier = pl.read_parquet(parquet).to_dicts() if parquet.exists() else []
            rows = {row["cell"]: row for row in [*earlier, *read_lines(lines)]}
            self.write_table(parquet, list(rows.values()))
            lines.unlink()

    def write_table(self, path: Path, rows: list[Row]) -> None:
        """Write rows as one Parquet file."""
        beside = path.with_name(f".{path.name}.tmp")
        pl.DataFrame(rows, infer_schema_length=None).write_parquet(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
