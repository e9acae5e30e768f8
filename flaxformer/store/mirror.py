"""Writing of a folder in object storage: a local copy whose changes are stored revision by revision.

A file is stored once its content differs from that of the newest revision. An interruption at any moment leaves the
remote folder at its last revision, and the local one ahead of it; the next process stores what is left, if the remote
folder has not changed since. If both have changed, neither is touched: the difference is for the user to decide.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from flaxformer.store import records, revisions
from flaxformer.store.local_copy import CopyState, LocalCopy, digest_at
from flaxformer.store.local_files import LocalFile, is_array, is_derived, marker_of
from flaxformer.store.revisions import FileTable, RemoteFile, Revision
from flaxformer.system import objects
from flaxformer.system.errors import UserError
from flaxformer.system.wording import first_of

SHOWN = 3
"""Paths that a message names."""


class LostError(UserError):
    """Another process has taken over the writing of the folder."""


class Differences(NamedTuple):
    """Differences of the local folder from the remote one.

    fetch, remove: paths that make the local folder the remote one.
    here, there: paths that have changed in either since both were the same, without those that a report writes again.
    """

    fetch: list[str]
    remove: list[str]
    here: list[str]
    there: list[str]


class Mirror(LocalCopy):
    """Local copy of a remote folder that this process writes.

    With `needs_arrays` False, arrays that were never fetched stay in the remote folder.
    """

    def __init__(self, url: str, place: Path, needs_arrays: bool = True) -> None:
        super().__init__(url, place, needs_arrays)
        self.revision: Revision | None = None
        """The newest one, once this process writes the folder."""
        self.is_lost = False
        """True if another process has taken over."""
        self._files: FileTable = {}
        """The files of that revision."""
        self._attempt: tuple[Revision, FileTable] | None = None
        """A revision, with its files, of which it is unknown whether it was made."""
        self._renewed = 0.0
        self._lock = threading.RLock()

    def attach(self, is_patient: bool = True) -> None:
        """Become the process that writes the remote folder, and bring both to the same state.

        Raises:
          HeldError: another process writes it.
          UserError: both have changed since they were the same; or the remote folder cannot be read, or is damaged.
        """
        self.revision, self._renewed = revisions.take(self.url, is_patient), time.monotonic()
        try:
            self._bring_together(self.revision)
        except BaseException as error:
            with contextlib.suppress(UserError):
                self._advance(self._files, owner="")
            if isinstance(error, FileNotFoundError):
                raise self._damaged(error) from None
            raise

    def _bring_together(self, revision: Revision) -> None:
        """Fetch what has changed in the remote folder, unless the local one has changed too."""
        self._files = revisions.read_table(self.url, revision)
        self._end_push(revision)
        todo = differences(self._state, self._local_files(), self._files, self.needs_arrays)
        if todo.here and todo.there:
            raise UserError(
                f"{self.url} and its local copy {self.folder} have both changed since they were the same (there: "
                f"{first_of(todo.there, SHOWN)}; here: {first_of(todo.here, SHOWN)}); move the local copy away to "
                "go on with what is there, or give another --output"
            )
        self._apply(self._files, todo.fetch, todo.remove)
        revisions.remove_unused(self.url, revision, self._files)

    def push(self, release: bool = False) -> int:
        """Store what has changed as a new revision, or say that this process lives; return the number of files.

        Args:
          release: end the writing with this revision.

        Raises:
          LostError: another process has taken over; the local folder keeps what is not stored.
          UnstableError: the folder changes all the time.
          UserError: the store cannot be reached; the next call tries again.
        """
        with self._lock, records.writing(self.place):
            revision = self._confirm()
            local = self._local_files(self._files)
            push = revisions.push_name(revision.number + 1)
            files, new = self._table(local, push)
            changes = len(new) + len(self._files.keys() - files.keys())
            owner = "" if release else revision.owner
            if not changes:
                if release:
                    self._advance(files, owner=owner)
                else:
                    self._renew()
                return 0
            stored = {path: file for path, file in files.items() if path in local}
            self._write_state(replace(self._state, incoming=stored, push=push))
            self._transfer(
                lambda path: objects.upload(self.stage / path, revisions.place_of(self.url, path, files[path])), new
            )
            digest, former = revisions.write_table(self.url, push, files), self._files
            self._end_push(self._advance(files, owner=owner, table=push, table_digest=digest))
            self._remove_former(former, revision.table)
            shutil.rmtree(self.stage, ignore_errors=True)
            return changes

    def _advance(self, files: FileTable, **changes: str) -> Revision:
        """Make the next revision, with these files and fields, and return it.

        Raises:
          LostError: another process has made it.
        """
        revision = self._confirm()
        following = replace(revision, number=revision.number + 1, **changes)
        self._attempt = following, files
        if not revisions.append(self.url, following):
            raise self._lost()
        self.revision, self._files, self._attempt, self._renewed = following, files, None, time.monotonic()
        return following

    def _renew(self) -> None:
        """Say that this process lives, if it is time to."""
        if self.revision is not None and time.monotonic() - self._renewed >= self.revision.heartbeat:
            self._advance(self._files)

    def _confirm(self) -> Revision:
        """The newest revision, which is of this process; also after a failure left it uncertain which one that is."""
        assert self.revision is not None
        if self.is_lost:
            raise self._lost()
        if self._attempt is not None:
            current = revisions.newest(self.url)
            if current == self._attempt[0]:
                self.revision, self._files = self._attempt
                self._end_push(self.revision)
            elif current != self.revision:
                raise self._lost()
            self._attempt = None
        return self.revision

    def _end_push(self, revision: Revision) -> None:
        """Note what was being stored as stored, if its table has become that of a revision; else forget it."""
        state = self._state
        if state.push:
            is_stored = state.push in (revision.table, *revision.ancestors)
            self._write_state(CopyState(files=(state.incoming or {}) if is_stored else state.files))

    def _lost(self) -> LostError:
        self.is_lost = True
        return LostError(
            f"another process has taken over {self.url}, since this one was silent for too long; what is not stored "
            f"there is in {self.folder}"
        )

    def _table(self, local: Mapping[str, LocalFile], push: str) -> tuple[FileTable, list[str]]:
        """The files of the next revision, and the paths of those that are not stored yet.

        Arrays that were never fetched stay as they are, while their step exists.
        """
        files, new = {}, []
        for path, file in local.items():
            stored = self._files.get(path)
            if stored is None or stored.digest != file.digest:
                stored = RemoteFile(push, file.bytes, file.digest, file.time)
                new.append(path)
            files[path] = stored
        absent = [path for path in self._files if path not in files and path not in self._state.files]
        return files | {path: self._files[path] for path in absent if is_array(path) and marker_of(path) in files}, new

    def _remove_former(self, former: FileTable, table: str) -> None:
        """Remove the objects of the revision before the newest that the newest does not name."""
        unused = {revisions.place_of(self.url, *item) for item in former.items()}
        unused -= {revisions.place_of(self.url, *item) for item in self._files.items()}
        tables = [f"{self.url}/tables/{table}.json"] if table else []
        with contextlib.suppress(UserError):  # the next process that writes the folder removes them
            objects.delete([*unused, *tables])


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
