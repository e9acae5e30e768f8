"""Records of what user code has read, in the folder of the results, and their comparison with what is there now.

Each read is a small file `reads/DIGEST.json`, whose name is a digest of its content: any number of processes may write
the same one. A record holds digests alone, never the value of a variable.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flaxformer.system.digests import DamagedError, JsonObject, read_document, write_document
from flaxformer.system.files import digest_of, entries, make_folder
from flaxformer.system.user_code import contents, reads
from flaxformer.system.user_code.contents import KINDS, MISSING
from flaxformer.system.user_code.reads import WRITTEN, Read
from flaxformer.system.user_code.source import user_modules

FOLDER = "reads"


@contextlib.contextmanager
def recording(output: Path, file: Path | None) -> Iterator[None]:
    """Write what the user code of a study or job reads into the output folder, within the context.

    What the modules of its file have read before, such as on import, is written at once, and every further read when it
    happens. Files within the output folder are results, and do not count.

    Args:
      output: the output folder.
      file: the file of the study or job, whose modules' reads count; None for those of all user code within the
        context, as in a notebook.
    """
    reads.install()
    files: set[str] = set()
    root = output.resolve()

    def is_ours(read: Read) -> bool:
        if file is None or files.intersection(read.readers):
            return True
        files.update(str(module.__file__) for module in user_modules(file))  # some may be imported later
        return bool(files.intersection(read.readers))

    def is_result(read: Read) -> bool:
        return read.kind != "variable" and Path(read.name).is_relative_to(root)

    def write(read: Read) -> None:
        if is_ours(read) and not is_result(read):
            _write(output / FOLDER, read, base_of(file))

    end = reads.listen(write)
    try:
        for read in reads.all_reads() if file is not None else ():
            write(read)
        yield
    finally:
        end()


def base_of(file: Path | None) -> Path | None:
    """Return the folder that recorded paths are relative to: that of the study or job file."""
    return None if file is None else file.resolve().parent


def _write(folder: Path, read: Read, base: Path | None) -> None:
    entry = {"kind": read.kind, "name": contents.relative(read.kind, read.name, base), "found": read.digest}
    path = folder / f"{digest_of(json.dumps(entry, sort_keys=True).encode())}.json"
    if not path.exists():
        make_folder(folder)
        write_document(path, dict(entry))


def read_records_of(output: Path) -> list[JsonObject]:
    """Return the records of a folder; a damaged one has the kind "damaged"."""
    records = []
    for path in entries(output / FOLDER):
        if path.suffix == ".json":
            try:
                entry = read_document(path)
            except DamagedError:
                entry = {}
            if entry.get("kind") not in KINDS or not all(isinstance(entry.get(key), str) for key in ("name", "found")):
                entry = {"kind": "damaged", "name": f"{FOLDER}/{path.name}", "found": ""}
            records.append(entry | {"path": path})
    return records


def names(output: Path) -> list[str]:
    """Return what user code has read, as a report shows it, sorted; execute no code."""
    return sorted({describe(entry) for entry in read_records_of(output) if entry["found"] != WRITTEN})


def describe(entry: Mapping[str, object]) -> str:
    """Return what a record is about, such as "data.txt" or "variable LEVEL"."""
    kind, name = entry["kind"], str(entry["name"])
    if kind == "variable":
        return f"variable {name}" if name else "names of all variables"
    return f"{'' if kind in ('file', 'damaged') else f'{kind} '}{name}"


def changed_reads(output: Path, file: Path | None) -> list[str]:
    """Return what has changed since user code read it, sorted, such as "data.txt (changed)"; execute no code.

    Args:
      output: the folder with the records.
      file: the file of the study or job; paths are relative to its folder.
    """
    words: dict[str, str] = {}
    for entry, now in _compare(output, file):
        if now != entry["found"]:
            word = "removed" if now == MISSING else "new" if entry["found"] == MISSING else "changed"
            words[describe(entry)] = word
    return [f"{name} ({words[name]})" for name in sorted(words)]


def accept(output: Path, file: Path | None) -> None:
    """Replace the records of what has changed by records of what is there now."""
    for entry, now in _compare(output, file):
        if now != entry["found"]:
            if entry["kind"] != "damaged":
                name = contents.absolute(entry["kind"], entry["name"], base_of(file))
                _write(output / FOLDER, Read(entry["kind"], name, now, ()), base_of(file))
            entry["path"].unlink(missing_ok=True)


def _compare(output: Path, file: Path | None) -> Sequence[tuple[JsonObject, str]]:
    """Return each record that counts, with the digest of what is there now."""
    records, base = read_records_of(output), base_of(file)
    written = {(record["kind"], record["name"]) for record in records if record["found"] == WRITTEN}
    pairs = []
    for entry in records:
        kind, name = entry["kind"], entry["name"]
        if kind == "damaged":
            pairs.append((entry, "damaged"))
        elif (kind, name) not in written:
            path = contents.absolute(kind, name, base)
            if not reads.is_written(kind, path):
                pairs.append((entry, contents.digest(kind, path)))
    return pairs
