"""Disk of a simulated file server, with its contents in memory and those that a power loss leaves.

POSIX promises little: the data of a file survive once the file was flushed, and its name once the folder was flushed.
Before that, each change of a name, and any part of the data, may or may not be there.
"""

import errno
import functools
import itertools
import os
import random
import stat
from collections.abc import Iterator

ROOT = "/simulated"


def fail(number: int, path: object = "") -> None:
    raise OSError(number, os.strerror(number), str(path))


class Inode:
    """A file or folder. `synced` is what a power loss certainly leaves of it."""

    numbers = itertools.count(2)

    def __init__(self, is_folder: bool, now: float) -> None:
        self.number, self.is_folder, self.created, self.mtime = next(self.numbers), is_folder, now, int(now * 1e9)
        self.data, self.synced = b"", b""
        self.entries: dict[str, Inode] = {}
        self.synced_entries: dict[str, Inode] = {}
        self.changes: list[dict[str, Inode | None]] = []
        """Changes of names since the folder was flushed, each all or nothing."""
        self.links = 1
        self._about: tuple[tuple[int, int, int], os.stat_result] | None = None

    def sync(self) -> None:
        self.synced = self.data
        self.synced_entries, self.changes = dict(self.entries), []

    def change(self, names: "dict[str, Inode | None]", now: float) -> None:
        """Change names of a folder, as one change."""
        for name, node in names.items():
            if (old := self.entries.pop(name, None)) is not None and not old.is_folder:
                old.links -= 1
            if node is not None:
                self.entries[name] = node
                node.links = 1
        self.changes.append(names)
        self.mtime = int(now * 1e9)

    def stat(self) -> os.stat_result:
        """Return what `os.stat` returns, from the last call if nothing of it changed."""
        now = (self.mtime, self.links, len(self.data))
        if self._about is None or self._about[0] != now:
            self._about = now, self._stat()
        return self._about[1]

    def _stat(self) -> os.stat_result:
        kind = stat.S_IFDIR | 0o755 if self.is_folder else stat.S_IFREG | 0o644
        seconds = self.mtime // 10**9
        fields = (kind, self.number, 1, self.links, 0, 0, len(self.data), seconds, seconds, seconds)
        exact = dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), self.mtime)
        return os.stat_result(fields, exact | dict.fromkeys(("st_mtime", "st_atime", "st_ctime"), self.mtime / 1e9))


class Disk:
    """Tree of files below `ROOT`."""

    def __init__(self) -> None:
        self.root = Inode(is_folder=True, now=0.0)
        self.room: int | None = None
        """Bytes that can still be written; None for a disk that does not fill up."""

    def fit(self, data: bytes) -> bytes:
        """Return the part of data for which there is room, and take that room.

        Raises:
          OSError: the disk is full.
        """
        if self.room is not None and data:
            data = data[: self.room]
            if not data:
                fail(errno.ENOSPC)
            self.room -= len(data)
        return data

    def find(self, path: str) -> Inode:
        node = self.root
        for name in parts(path):
            if not node.is_folder:
                fail(errno.ENOTDIR, path)
            if name not in node.entries:
                fail(errno.ENOENT, path)
            node = node.entries[name]
        return node

    def files(self, node: Inode | None = None, path: str = ROOT) -> Iterator[tuple[str, Inode]]:
        """Yield the files with their paths, in order of names."""
        node = node or self.root
        for name, child in sorted(node.entries.items()):
            if child.is_folder:
                yield from self.files(child, f"{path}/{name}")
            else:
                yield f"{path}/{name}", child

    def lose_power(self, seed: int) -> None:
        """Keep what was flushed, and of the rest whatever the seed says."""
        chance = random.Random(seed)
        keep = chance.choice((0.0, 0.5, 1.0))
        _lose(self.root, chance, keep, set())


def _lose(node: Inode, chance: random.Random, keep: float, seen: set[int]) -> None:
    if node.number in seen:
        return
    seen.add(node.number)
    if not node.is_folder:
        if node.data != node.synced and chance.random() >= keep:
            torn = node.data[: chance.randint(0, len(node.data))]
            zeros = node.synced + bytes(max(0, len(node.data) - len(node.synced)))
            node.data = chance.choice((node.synced, torn if torn.startswith(node.synced) else node.synced, zeros))
        node.sync()
        return
    entries = dict(node.synced_entries)
    for change in node.changes:
        if chance.random() < keep:
            for name, other in change.items():
                entries.pop(name, None)
                if other is not None:
                    entries[name] = other
    node.entries = entries
    for other in entries.values():
        other.links = 1
        _lose(other, chance, keep, seen)
    node.sync()


@functools.lru_cache(1 << 16)
def parts(path: str) -> tuple[str, ...]:
    return tuple(name for name in str(path).removeprefix(ROOT).split("/") if name not in ("", "."))
