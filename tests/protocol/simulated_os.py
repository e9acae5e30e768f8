"""The functions of `os`, `io`, `fcntl`, `shutil` and Polars that reach files, for paths of the simulated disk.

Every call is a step of the calling process, before which it can be suspended or killed; other paths are unchanged.
"""

import contextlib
import errno
import fcntl
import functools
import glob
import io
import os
import shutil
from unittest import mock

import polars as pl
from protocol.simulated_disk import ROOT, fail

FIRST = 1_000_000
"""First number of a simulated open file."""


class Entry(os.PathLike):
    """An entry of a folder."""

    def __init__(self, world, folder, name, node):
        self.world, self.name, self.path, self.node = world, name, f"{folder}/{name}", node

    def __fspath__(self):
        return self.path

    def is_dir(self, *, follow_symlinks=True):
        return self.node.is_folder

    def is_file(self, *, follow_symlinks=True):
        return not self.node.is_folder

    def is_symlink(self):
        return False

    def is_junction(self):
        return False

    def inode(self):
        return self.node.number

    def stat(self, *, follow_symlinks=True):
        return self.world.system.stat(self.path)


class Entries(list):
    """A folder as `os.scandir` returns it."""

    def __init__(self, entries):
        super().__init__(entries)
        self._left = iter(entries)

    def __next__(self):
        return next(self._left)

    def __iter__(self):
        return self._left

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def close(self):
        return None


class Raw(io.RawIOBase):
    """A simulated open file as Python's file object."""

    def __init__(self, system, number, mode):
        self.system, self.number, self.mode = system, number, mode

    def fileno(self):
        return self.number

    def readable(self):
        return "r" in self.mode or "+" in self.mode

    def writable(self):
        return "r" not in self.mode or "+" in self.mode

    def seekable(self):
        return True

    def seek(self, offset, whence=os.SEEK_SET):
        return self.system.lseek(self.number, offset, whence)

    def readinto(self, buffer):
        data = self.system.read(self.number, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self):
        return self.system.read(self.number, -1)

    def write(self, data):
        return self.system.write(self.number, bytes(data))

    def close(self):
        if not self.closed:
            super().close()
            self.system.close(self.number)


@functools.lru_cache(1000)
def table_of(data):
    """Return the table of a Parquet file with this content."""
    return pl.read_parquet(io.BytesIO(data))


class System:
    """The patched functions; `world` says which process calls, and lets it step."""

    def __init__(self, world):
        self.world, self.real, self.numbers = world, {}, FIRST

    def _path(self, path):
        """The path below `ROOT` as text; None for another path."""
        try:
            text = path if type(path) is str else os.fspath(path)
        except TypeError:
            return None
        return text if isinstance(text, str) and (text.startswith(f"{ROOT}/") or text == ROOT) else None

    def _file(self, number):
        files = self.world.process.files
        if number not in files:
            fail(errno.EBADF)
        return files[number]

    # --- files -----------------------------------------------------------------------------------------------

    def open(self, path, flags, mode=0o777, *, dir_fd=None):
        if (own := self._path(path)) is None:
            return self.real["os.open"](path, flags, mode, dir_fd=dir_fd)
        creates = bool(flags & os.O_CREAT)
        self.world.step("create" if creates else "open", own, changes=creates)
        file = self.world.process.client.open(own, flags)
        if flags & os.O_TRUNC:
            self.world.process.client.truncate(file, 0)
        self.numbers += 1
        self.world.process.files[self.numbers] = file
        return self.numbers

    def io_open(
        self, file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None
    ):
        if isinstance(file, int) and file >= FIRST:
            number = file
        elif (own := self._path(file)) is None:
            return self.real["io.open"](file, mode, buffering, encoding, errors, newline, closefd, opener)
        else:
            create = {"w": os.O_CREAT | os.O_TRUNC, "a": os.O_CREAT | os.O_APPEND, "x": os.O_CREAT | os.O_EXCL}
            how = next((flags for letter, flags in create.items() if letter in mode), 0)
            number = self.open(own, how | (0 if "r" in mode and "+" not in mode else os.O_RDWR))
        raw = Raw(self, number, mode)
        if buffering == 0 or "+" in mode:
            return raw
        binary = io.BufferedWriter(raw) if raw.writable() else io.BufferedReader(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding or "utf-8", errors, newline)

    def close(self, number):
        if number < FIRST:
            return self.real["os.close"](number)
        if self.world.is_dead():
            return None
        self.world.step("close", self._file(number).path)
        file = self.world.process.files.pop(number)
        return self.world.process.client.close(file)

    def read(self, number, size):
        if number < FIRST:
            return self.real["os.read"](number, size)
        file = self._file(number)
        self.world.step("read", file.path)
        data = self.world.process.client.content(file)[file.at :]
        data = data if size < 0 else data[:size]
        file.at += len(data)
        return data

    def lseek(self, number, offset, whence):
        if number < FIRST:
            return self.real["os.lseek"](number, offset, whence)
        file = self._file(number)
        start = {os.SEEK_SET: 0, os.SEEK_CUR: file.at, os.SEEK_END: len(self.world.process.client.content(file))}
        file.at = start[whence] + offset
        return file.at

    def pread(self, number, size, place):
        if number < FIRST:
            return self.real["os.pread"](number, size, place)
        return self.world.process.client.content(self._file(number))[place : place + size]

    def write(self, number, data):
        if number < FIRST:
            return self.real["os.write"](number, data)
        if self.world.is_dead():
            return len(data)
        file = self._file(number)
        torn = self.world.step("write", file.path, changes=True, data=bytes(data))
        if torn is not None:
            self.world.process.client.write(file, torn)
            self.world.process.client.send(file)
            self.world.die()
        return self.world.process.client.write(file, self.world.disk.fit(bytes(data)))

    def fsync(self, number):
        if number < FIRST:
            return self.real["os.fsync"](number)
        file = self._file(number)
        self.world.step("fsync", file.path, changes=True)
        return self.world.process.client.fsync(file)

    def ftruncate(self, number, size):
        if number < FIRST:
            return self.real["os.ftruncate"](number, size)
        file = self._file(number)
        self.world.step("ftruncate", file.path, changes=True)
        return self.world.process.client.truncate(file, size)

    def fstat(self, number):
        if number < FIRST:
            return self.real["os.fstat"](number)
        return self._file(number).node.stat()

    def flock(self, file, operation):
        number = file if isinstance(file, int) else file.fileno()
        if number < FIRST:
            return self.real["fcntl.flock"](file, operation)
        opened = self._file(number)
        while True:
            self.world.step("flock", opened.path)
            if self.world.process.client.flock(opened, operation):
                return None
            if operation & fcntl.LOCK_NB:
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
            self.world.sleep(0.05)

    def scan_parquet(self, path, **options):
        """Polars reads files by system calls of its own."""
        if self._path(path) is None:
            return self.real["polars.scan_parquet"](path, **options)
        with self.io_open(path, "rb") as file:
            return table_of(file.read()).lazy()

    # --- names -----------------------------------------------------------------------------------------------

    def stat(self, path, *, dir_fd=None, follow_symlinks=True):
        if isinstance(path, int) and path >= FIRST:
            return self.fstat(path)
        if (own := self._path(path)) is None:
            return self.real["os.stat"](path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        self.world.step("stat", own)
        return self.world.process.client.stat(own)

    def lstat(self, path, *, dir_fd=None):
        return self.stat(path, dir_fd=dir_fd, follow_symlinks=False)

    def scandir(self, path="."):
        if (own := self._path(path)) is None:
            return self.real["os.scandir"](path)
        self.world.step("scandir", own)
        return Entries([Entry(self.world, own, name, node) for name, node in self.world.process.client.names(own)])

    def listdir(self, path="."):
        if self._path(path) is None:
            return self.real["os.listdir"](path)
        return [entry.name for entry in self.scandir(path)]

    def mkdir(self, path, mode=0o777, *, dir_fd=None):
        return self._one("mkdir", path, mode, dir_fd=dir_fd)

    def rmdir(self, path, *, dir_fd=None):
        return self._one("rmdir", path, dir_fd=dir_fd)

    def unlink(self, path, *, dir_fd=None):
        return self._one("unlink", path, dir_fd=dir_fd)

    def utime(self, path, times=None, **options):
        return self._one("utime", path, times, **options)

    def _one(self, name, path, *arguments, **options):
        if (own := self._path(path)) is None:
            return self.real[f"os.{name}"](path, *arguments, **options)
        self.world.step(name, own, changes=True)
        return getattr(self.world.process.client, name)(own)

    def rename(self, source, target, **options):
        if (own := self._path(source)) is None:
            return self.real["os.rename"](source, target, **options)
        self.world.step("rename", f"{own} {os.path.basename(target)}", changes=True)
        return self.world.process.client.rename(own, self._path(target))

    def rmtree(self, path, ignore_errors=False, onerror=None, **options):
        if (own := self._path(path)) is None:
            return self.real["shutil.rmtree"](path, ignore_errors, onerror, **options)
        with contextlib.suppress(OSError) if ignore_errors else contextlib.nullcontext():
            for entry in list(self.scandir(own)):
                with contextlib.suppress(OSError) if ignore_errors else contextlib.nullcontext():
                    (self.rmtree if entry.is_dir() else self.unlink)(entry.path)
            self.rmdir(own)
        return None

    def disk_usage(self, path):
        if self._path(path) is None:
            return self.real["shutil.disk_usage"](path)
        room = self.world.disk.room
        return shutil._ntuple_diskusage(2**40, 0, 2**40 if room is None else room)

    @contextlib.contextmanager
    def patched(self):
        """Within, the functions of this class stand in the place of the system's."""
        names = "open close read lseek pread write fsync ftruncate fstat stat lstat scandir listdir"
        names += " mkdir rmdir unlink utime rename"
        places = [(os, name, name) for name in names.split()]
        places += [(os, "replace", "rename"), (os, "remove", "unlink"), (io, "open", "io_open")]
        places += [(pl, "scan_parquet", "scan_parquet")]
        places += [(fcntl, "flock", "flock"), (shutil, "rmtree", "rmtree"), (shutil, "disk_usage", "disk_usage")]
        with contextlib.ExitStack() as stack:
            for module, name, own in places:
                self.real.setdefault(f"{module.__name__}.{name}", getattr(module, name))
                stack.enter_context(mock.patch.object(module, name, getattr(self, own)))
            globber = getattr(glob, "_StringGlobber", None)  # Python 3.13 binds some of these functions early
            for name, own in (("scandir", self.scandir), ("lstat", self.lstat), ("lexists", os.path.lexists)):
                if hasattr(globber, name):
                    stack.enter_context(mock.patch.object(globber, name, staticmethod(own)))
            yield
