"""State of a local copy of a remote folder, and the differences between the two since they were last the same."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from flaxformer.store.local_files import LocalFile, is_array, is_derived
from flaxformer.store.revisions import FileTable, RemoteFile
from flaxformer.system.typed_data import Record


class CopyState(Record, frozen=True):
    """Content of state.json.

    files: the files that both had when they were last the same.
    stamps: those of the local files then.
    incoming: the files that were being fetched or stored when this was written; None for nothing.
    push: name of what was being stored; empty for fetching.
    """

    files: FileTable = msgspec.field(default_factory=dict)
    stamps: dict[str, tuple[int, int, int]] = msgspec.field(default_factory=dict)
    incoming: FileTable | None = None
    push: str = ""


class Differences(NamedTuple):
    """Differences of the local folder from the remote one.

    fetch, remove: paths that make the local folder the remote one.
    here, there: paths that have changed in either since both were the same, without those that a report writes again.
    """

    fetch: list[str]
    remove: list[str]
    here: list[str]
    there: list[str]


def digest_at(files: Mapping[str, LocalFile | RemoteFile], path: str) -> str | None:
    """Return the digest of a file; None if it is not there."""
    return files[path].digest if path in files else None


def differences(state: CopyState, local: Mapping[str, LocalFile], remote: FileTable, needs_arrays: bool) -> Differences:
    """Return what differs between the local and the remote folder, by which of them has changed.

    Of a file that a report writes, the remote one counts if it has changed: the next report writes it again.

    Args:
      state: the files that both had before.
      local, remote: the files that they have now.
      needs_arrays: fetch arrays that were never fetched too.
    """
    result = Differences([], [], [], [])
    for path in sorted({*state.files, *local, *remote, *(state.incoming or {})}):
        here, there, before = (digest_at(files, path) for files in (local, remote, state.files))
        was_never_fetched = is_array(path) and here is None and before is None
        if here == there or (was_never_fetched and not needs_arrays):
            continue
        earlier = {before} if state.incoming is None else {before, digest_at(state.incoming, path)}
        has_changed_there, has_changed_here = there != before, here not in earlier
        if has_changed_here and not is_derived(path):
            result.here.append(path)
        if has_changed_there and not is_derived(path) and not was_never_fetched:
            result.there.append(path)
        if has_changed_there or not has_changed_here:
            (result.remove if there is None else result.fetch).append(path)
    return result
