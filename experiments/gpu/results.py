"""Archives of the results of a call on a GPU: of bounded size, without weights and caches."""

import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

from items import RESULTS, Item

STATE = RESULTS / "state.json"
MIB = 2**20
ARCHIVE, TOTAL = 16 * MIB, 64 * MIB
"""Largest size of one archive, and of all, before compression."""
LEFT_OUT = re.compile(r"/(weights|unfinished|leases|superseded|cache|\d+)/|\.(pdf|png)$")
"""Weights, checkpoints and caches; and figures of which there is an SVG."""


def files_to_pack(folder: Path, works: Sequence[Item]) -> tuple[list[Path], list[str]]:
    """Return the files to bring back, relative to `folder`, and the names of those that do not fit."""
    places = [RESULTS / "logs", *(work.folder for work in works)]
    files = [
        STATE,
        *(f.relative_to(folder) for place in places for f in sorted((folder / place).rglob("*")) if f.is_file()),
    ]
    fitting, left_out, total = [], [], 0
    for file in filter(lambda file: not LEFT_OUT.search(str(file)), files):
        size = (folder / file).stat().st_size
        if size > ARCHIVE or total + size > TOTAL:
            left_out.append(f"{file} ({size / MIB:.1f} MiB)")
        else:
            fitting.append(file)
            total += size
    return fitting, left_out


def pack(folder: Path, output: Path, works: Sequence[Item]) -> list[str]:
    """Write the archives of the results; return the names of the files that do not fit."""
    files, left_out = files_to_pack(folder, works)
    parts: list[list[Path]] = [[]]
    size = 0
    for file in files:
        size += (more := (folder / file).stat().st_size)
        if size > ARCHIVE:
            parts.append([])
            size = more
        parts[-1].append(file)
    for number, part in enumerate(parts, 1):
        unfinished = output / f"results-{number}.part"
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in part:
                archive.write(folder / file, str(file))
        unfinished.rename(unfinished.with_suffix(".zip"))
    for file in set(output.glob("results-*.zip")) - {output / f"results-{n}.zip" for n in range(1, len(parts) + 1)}:
        file.unlink()
    return left_out


def unpack(earlier: Path, folder: Path) -> None:
    """Copy the results of an earlier call, archives or folders, to where its items look for them."""
    archives = sorted(earlier.glob("results-*.zip"))
    if not archives and not (earlier / STATE).exists():
        raise SystemExit(f"earlier is '{earlier}', which has no results-N.zip; expected the output of an earlier call")
    for archive in archives:
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder)
    if not archives:
        shutil.copytree(earlier, folder, dirs_exist_ok=True)
