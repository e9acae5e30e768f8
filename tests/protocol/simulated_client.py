"""The system calls of one machine on the simulated disk: a local file system, or NFS with the caches of its client.

On a network file system, names and attributes that were read are believed for `CACHED` seconds, unless the machine
itself changed the folder; a file is read anew when it is opened, and its data are sent when it is closed or flushed.
A reply can be lost: the request is then sent again, and answered as if it were the second one.
"""

import errno
import fcntl
import os

from protocol.simulated_disk import Disk, Inode, fail, parts

CACHED = 60.0
"""Seconds for which NFS may believe what it knows of a folder (acdirmax)."""


class Locks:
    """Locks by inode, each held by an open file."""

    def __init__(self) -> None:
        self.held: dict[int, object] = {}


class Open:
    """An open file of a process."""

    def __init__(self, node: Inode, flags: int, path: str) -> None:
        self.node, self.flags, self.path, self.at = node, flags, path, 0
        self.unsent = b""


class Client:
    """A machine."""

    def __init__(self, name: str, disk: Disk, now, network: bool = False, locks: Locks | None = None) -> None:
        self.name, self.disk, self.now, self.network = name, disk, now, network
        self.locks = locks or Locks()
        self.folders: dict[int, tuple[float, dict[str, Inode]]] = {}
        self.attributes: dict[int, tuple[float, os.stat_result]] = {}
        self.lose_reply = False
        """The reply to the next request that changes a name is lost."""

    # --- names ---------------------------------------------------------------------------------------------

    def _entries(self, folder: Inode) -> dict[str, Inode]:
        if not self.network:
            return folder.entries
        until, entries = self.folders.get(folder.number, (0.0, {}))
        if self.now() >= until:
            entries = dict(folder.entries)
            self.folders[folder.number] = (self.now() + CACHED, entries)
        return entries

    def _find(self, path: str) -> Inode:
        return self._walk(parts(path), path)

    def _walk(self, names: tuple[str, ...], path: str) -> Inode:
        node = self.disk.root
        for name in names:
            if not node.is_folder:
                fail(errno.ENOTDIR, path)
            entries = self._entries(node) if self.network else node.entries
            if name not in entries:
                fail(errno.ENOENT, path)
            node = entries[name]
        return node

    def _parent(self, path: str) -> tuple[Inode, str]:
        *folders, name = parts(path)
        node = self._walk(tuple(folders), path)
        if not node.is_folder:
            fail(errno.ENOTDIR, path)
        return node, name

    def _change(self, folder: Inode, names: dict[str, Inode | None]) -> None:
        folder.change(names, self.now())
        self.folders.pop(folder.number, None)  # the reply shows the client that the folder changed
        self.attributes.pop(folder.number, None)

    def _lost(self, error: int, path: str) -> None:
        if self.network and self.lose_reply:
            self.lose_reply = False
            fail(error, path)

    def stat(self, path: str) -> os.stat_result:
        node = self._find(path)
        if not self.network:
            return node.stat()
        until, known = self.attributes.get(node.number, (0.0, None))
        if known is None or self.now() >= until:
            if node.links == 0:
                fail(errno.ENOENT, path)
            known = node.stat()
            self.attributes[node.number] = (self.now() + CACHED, known)
        return known

    def names(self, path: str) -> list[tuple[str, Inode]]:
        node = self._find(path)
        if not node.is_folder:
            fail(errno.ENOTDIR, path)
        return list(self._entries(node).items())

    def mkdir(self, path: str) -> None:
        folder, name = self._parent(path)
        if name in folder.entries:
            self.folders.pop(folder.number, None)
            fail(errno.EEXIST, path)
        self._change(folder, {name: Inode(True, self.now())})
        self._lost(errno.EEXIST, path)

    def rmdir(self, path: str) -> None:
        folder, name = self._parent(path)
        if name not in folder.entries:
            fail(errno.ENOENT, path)
        if folder.entries[name].entries:
            fail(errno.ENOTEMPTY, path)
        self._change(folder, {name: None})

    def unlink(self, path: str) -> None:
        folder, name = self._parent(path)
        if name not in folder.entries:
            self.folders.pop(folder.number, None)
            fail(errno.ENOENT, path)
        if folder.entries[name].is_folder:
            fail(errno.EISDIR, path)
        self._change(folder, {name: None})
        self._lost(errno.ENOENT, path)

    def rename(self, source: str, target: str) -> None:
        (folder, old), (other, new) = self._parent(source), self._parent(target)
        if old not in folder.entries:
            self.folders.pop(folder.number, None)
            fail(errno.ENOENT, source)
        node = folder.entries[old]
        if folder is other:
            self._change(folder, {old: None, new: node})
        else:
            self._change(folder, {old: None})
            self._change(other, {new: node})
        self._lost(errno.ENOENT, source)

    def utime(self, path: str) -> None:
        node = self._find(path)
        if node.links == 0:
            fail(errno.ESTALE, path)
        node.mtime = max(int(self.now() * 1e9), node.mtime + 1)
        self.attributes.pop(node.number, None)

    # --- data ----------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> Open:
        if not parts(path):
            return Open(self.disk.root, flags, path)
        folder, name = self._parent(path)
        if flags & os.O_CREAT:
            entries = folder.entries
            if name not in entries:
                self._change(folder, {name: Inode(False, self.now())})
                if flags & os.O_EXCL:
                    self._lost(errno.EEXIST, path)
            elif flags & os.O_EXCL:
                self.folders.pop(folder.number, None)
                fail(errno.EEXIST, path)
        else:
            known = self._entries(folder)
            if name not in known or name not in folder.entries:
                fail(errno.ENOENT, path)
            entries = folder.entries
        node = entries[name]
        if node.is_folder and flags & (os.O_WRONLY | os.O_RDWR):
            fail(errno.EISDIR, path)
        self.attributes.pop(node.number, None)
        return Open(node, flags, path)

    def _check(self, file: Open) -> None:
        if self.network and file.node.links == 0:
            fail(errno.ESTALE, file.path)

    def content(self, file: Open) -> bytes:
        self._check(file)
        return file.node.data + file.unsent

    def write(self, file: Open, data: bytes) -> int:
        self._check(file)
        file.unsent += data
        if not self.network:
            self.send(file)
        return len(data)

    def send(self, file: Open) -> None:
        """Pass written data on to the server."""
        if file.unsent:
            if file.flags & os.O_APPEND:
                file.node.data += file.unsent
            else:
                file.node.data = file.node.data[: file.at] + file.unsent + file.node.data[file.at + len(file.unsent) :]
                file.at += len(file.unsent)
            file.unsent = b""
            file.node.mtime = max(int(self.now() * 1e9), file.node.mtime + 1)
            self.attributes.pop(file.node.number, None)

    def fsync(self, file: Open) -> None:
        self._check(file)
        self.send(file)
        file.node.sync()

    def truncate(self, file: Open, size: int) -> None:
        self.send(file)
        file.node.data = file.node.data[:size].ljust(size, b"\0")

    def close(self, file: Open) -> None:
        self.send(file)
        if self.locks.held.get(file.node.number) is file:
            del self.locks.held[file.node.number]

    def flock(self, file: Open, operation: int) -> bool:
        """Lock or unlock a file; False if another open file holds the lock."""
        holder = self.locks.held.get(file.node.number)
        if operation & fcntl.LOCK_UN:
            if holder is file:
                del self.locks.held[file.node.number]
            return True
        if holder not in (None, file):
            return False
        self.locks.held[file.node.number] = file
        return True
