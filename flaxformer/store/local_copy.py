"""Local copy of a folder in object storage.

The files of a place are

    PLACE/copy/NAME/    the output folder, in which commands work as in any other
    PLACE/state.json    the files as they were when both were last the same, and what was under way then
    PLACE/stage/        copies of files that are being stored
"""

import concurrent.futures
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from flaxformer.store import revisions
from flaxformer.store.local_files import (
    LocalFile,
    Stamp,
    digest_file,
    is_array,
    remove_empty_folders,
    snapshot,
)
from flaxformer.store.revisions import FileTable, RemoteFile
from flaxformer.system import digests, objects
from flaxformer.system.digests import DamagedError
from flaxformer.system.errors import UserError
from flaxformer.system.files import make_folder, replacing
from flaxformer.system.typed_data import Record, convert, plain

THREADS = 8
"""Files that are transferred at a time."""


def folder_in(place: Path, url: str) -> Path:
    """Return the folder of the copy of a URL, which has the URL's last name."""
    return place / "copy" / url.rpartition("/")[2]


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


def digest_at(files: Mapping[str, LocalFile | RemoteFile], path: str) -> str | None:
    """Return the digest of a file; None if it is not there."""
    return files[path].digest if path in files else None


class LocalCopy:
    """Local copy of the remote folder at a URL, which follows its newest revision.

    Args:
      url: the remote folder.
      place: where the copy and its state are; the caller holds its lock.
      needs_arrays: fetch the arrays of checkpoints too.
    """

    def __init__(self, url: str, place: Path, needs_arrays: bool = True) -> None:
        self.url, self.place, self.needs_arrays = url, place, needs_arrays
        self.folder, self.stage = folder_in(place, url), place / "stage"
        self._state = self._read_state()
        self._known: dict[str, tuple[Stamp, LocalFile]] = {
            path: (Stamp(*stamp), LocalFile(file.bytes, file.digest, file.time))
            for path, stamp in self._state.stamps.items()
            if (file := self._state.files.get(path)) is not None
        }
        make_folder(self.folder)

    def fetch(self) -> None:
        """Make the stored files of the local folder those of the newest revision, also where they were changed here.

        Raises:
          UserError: there is nothing at the URL, it cannot be read, or it is damaged.
        """
        for _ in range(revisions.READS):
            revision = revisions.newest(self.url)
            if revision is None:
                raise UserError(f"{self.url} holds no results; expected the --output of a command")
            try:
                files, local = revisions.read_table(self.url, revision), self._local_files()
                known = {*self._state.files, *(self._state.incoming or {})}
                wanted = [path for path in files if self.needs_arrays or not is_array(path) or path in local]
                differing = [path for path in wanted if digest_at(local, path) != files[path].digest]
                self._apply(files, differing, [path for path in local if path not in files and path in known])
                return
            except FileNotFoundError as error:
                current = revisions.newest(self.url)
                if current is not None and current.number == revision.number:
                    raise self._damaged(error) from None
        raise UserError(f"{self.url} changes faster than it can be read; run the same command again")

    def _damaged(self, what: Exception) -> UserError:
        return UserError(f"{self.url} is damaged: {what}; expected the objects as they were stored")

    def _apply(self, files: FileTable, fetch: Collection[str], remove: Collection[str]) -> None:
        """Fetch and remove these files, and note which of the files both folders have.

        Raises:
          FileNotFoundError: an object was removed.
        """
        if fetch or remove:
            self._write_state(replace(self._state, incoming=files, push=""))
        for path in remove:
            (self.folder / path).unlink(missing_ok=True)
        self._transfer(lambda path: self._download(path, files[path]), fetch)
        remove_empty_folders(self.folder, remove)
        local = self._local_files()
        common = {path: file for path, file in files.items() if digest_at(local, path) == file.digest}
        former = {path: file for path, file in self._state.files.items() if path in files and path not in common}
        self._write_state(CopyState(files=common | former))

    def _download(self, path: str, file: RemoteFile) -> None:
        """Fetch a file, which has its name once it is whole and verified."""
        target, place = self.folder / path, revisions.place_of(self.url, path, file)
        try:
            make_folder(target.parent)
            with replacing(target) as temporary:
                objects.download(place, temporary)
                if temporary.stat().st_size != file.bytes or digest_file(temporary) != file.digest:
                    raise self._damaged(DamagedError(f"the digest of {path} differs"))
                os.utime(temporary, (file.time, file.time))
            about = target.stat()
            stamp = Stamp(about.st_size, about.st_mtime_ns, about.st_ino)
            self._known[path] = stamp, LocalFile(file.bytes, file.digest, file.time)
        except (NotADirectoryError, IsADirectoryError, FileExistsError):
            raise self._damaged(DamagedError(f"{path} is a file and a folder")) from None

    def _transfer(self, call: Callable[[str], object], paths: Collection[str]) -> None:
        """Call a function for every path, several at a time, and `_renew` meanwhile.

        Raises:
          Exception: the first of a call.
        """
        with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
            waiting = {threads.submit(call, path) for path in paths}
            try:
                while waiting:
                    done, waiting = concurrent.futures.wait(waiting, timeout=1.0, return_when="FIRST_COMPLETED")
                    for future in done:
                        future.result()
                    self._renew()
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise

    def _renew(self) -> None:
        """Do what has to be done from time to time while files are transferred: nothing, for a copy to read."""

    def _local_files(self, stored: FileTable | None = None) -> dict[str, LocalFile]:
        """The local files that are stored, as they are at one instant.

        Args:
          stored: the files of the remote folder; those that differ from them are copied to the stage.
        """
        known = self._known
        if stored is not None:
            known = {path: entry for path, entry in known.items() if digest_at(stored, path) == entry[1].digest}
        self._known = snapshot(self.folder, self.stage, known)
        return {path: file for path, (_, file) in self._known.items()}

    def _read_state(self) -> CopyState:
        """The state of the last process; an empty one if there is none."""
        path = self.place / "state.json"
        try:
            return convert(digests.read_document(path), CopyState)
        except FileNotFoundError:
            return CopyState()
        except DamagedError as error:
            raise UserError(
                f"{path} is damaged ({error}); move {self.place} away to go on with what is in {self.url}"
            ) from None

    def _write_state(self, state: CopyState) -> None:
        """Write the state, with the stamps of the files whose content both folders have."""
        known = ((path, *self._known[path]) for path in state.files if path in self._known)
        stamps = {path: tuple(stamp) for path, stamp, file in known if file.digest == state.files[path].digest}
        self._state = replace(state, stamps=stamps)
        digests.write_document(self.place / "state.json", plain(self._state))
