"""A file system in memory that distinguishes written data from data that survives a power failure.

`File.sync` makes bytes durable and `sync_directory` names, as POSIX guarantees and no more. `lose_power` discards the
rest. `fail_next` makes a later call fail, for tests of failing disks.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from zlib import crc32

from flowstone.ports.files import Stamp
from flowstone.ports.thread_pool import ResizableExecutor, ThreadPool
from flowstone.types import Bytes


class _Node:
    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""


class _Directory:
    def __init__(self) -> None:
        self.entries: dict[str, _Node | _Directory] = {}
        self.durable_entries: dict[str, _Node | _Directory] = {}


class SimulatedFiles:
    has_descriptors = False

    def __init__(self) -> None:
        self._root = _Directory()
        self._failures: dict[str, list[OSError | None]] = {}
        self._locked: set[str] = set()

    def lose_power(self) -> None:
        """Discard everything that was not synced. Files opened before must not be used again."""
        self._locked.clear()
        _forget(self._root)

    def fail_next(self, operation: str, error_number: int = errno.EIO, times: int = 1, *, after: int = 0) -> None:
        """Make the next `times` calls of `operation` raise OSError, after `after` successful ones.

        Operations are "write", "sync", "read", "rename" and so on.
        """
        errors = [OSError(error_number, f"simulated {operation} failure") for _ in range(times)]
        self._failures.setdefault(operation, []).extend([*[None] * after, *errors])

    def fail_nothing(self) -> None:
        """Cancel the failures that `fail_next` has set and that have not occurred."""
        self._failures.clear()

    def check(self, operation: str) -> None:
        if (errors := self._failures.get(operation)) and (error := errors.pop(0)) is not None:
            raise error

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        self.check("open")
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = directory.entries[name] = _Node()
        if isinstance(node, _Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return SimulatedFile(self, path, node)

    def read(self, path: str) -> bytes:
        file = self.open(path)
        return file.read(0, file.size())

    def replace(self, path: str, data: bytes) -> None:
        file = self.open(path + ".tmp", create=True)
        file.truncate(0)
        file.write(0, [data])
        file.sync()
        self.rename(path + ".tmp", path)
        self.sync_directory(posixpath.dirname(path))

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def size(self, path: str) -> int:
        return self.open(path).size()

    def stamp(self, path: str) -> Stamp:
        """Return a stamp with the content in place of the change time, because there is no clock."""
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if isinstance(node, _Directory):
            return Stamp(id(node), 0, hash(frozenset((name, id(child)) for name, child in list(node.entries.items()))))
        return Stamp(id(node), len(node.data), crc32(node.data))

    def names(self, directory: str) -> list[str]:
        return sorted(self._directory(directory).entries)

    def is_directory(self, path: str) -> bool:
        return isinstance(self._find(path), _Directory)

    def make_directory(self, path: str) -> None:
        directory = self._root
        for name in _parts(path):
            child = directory.entries.get(name)
            if child is None:
                child = directory.entries[name] = directory.durable_entries[name] = _Directory()
            if not isinstance(child, _Directory):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            directory = child

    def new_directory(self, path: str) -> None:
        self.check("new_directory")
        directory, name = self._parent(path)
        if name not in directory.entries:
            directory.entries[name] = _Directory()

    def rename(self, source: str, target: str) -> None:
        self.check("rename")
        from_directory, from_name = self._parent(source)
        to_directory, to_name = self._parent(target)
        if from_name not in from_directory.entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        to_directory.entries[to_name] = from_directory.entries.pop(from_name)

    def link(self, source: str, target: str) -> None:
        self.check("link")
        directory, name = self._parent(target)
        node = self._find(source)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        if name in directory.entries:
            raise FileExistsError(errno.EEXIST, "file exists", target)
        directory.entries[name] = node

    def link_count(self, path: str) -> int:
        node = self._find(path)
        return _count(self._root, node) if node is not None else 0

    def copy(self, source: str, target: str, size_bytes: int) -> None:
        data = self.open(source).read(0, size_bytes)
        if len(data) < size_bytes:
            raise OSError(errno.EIO, f"the file has less than {size_bytes} bytes", source)
        directory, name = self._parent(target)
        directory.entries.pop(name, None)
        self.open(target, create=True).write(0, [data])

    def remove(self, path: str) -> None:
        self.check("remove")
        directory, name = self._parent(path)
        if name not in directory.entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        del directory.entries[name]

    def remove_tree(self, path: str) -> None:
        self.remove(path)

    def sync_directory(self, path: str) -> None:
        self.check("sync_directory")
        directory = self._directory(path)
        directory.durable_entries = dict(directory.entries)

    def sync_filesystem(self, path: str) -> None:
        self.check("sync_filesystem")
        _remember(self._directory(path))

    def is_own_filesystem(self, path: str) -> bool:
        return self._directory(path) is self._root

    def free_bytes(self, path: str) -> tuple[int, int]:
        self._directory(path)
        return 1 << 40, 1 << 41

    def lock(self, path: str) -> SimulatedLock:
        if path in self._locked:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        self.open(path, create=True)
        self._locked.add(path)
        return SimulatedLock(self._locked, path)

    def threads(self, count: int, name: str) -> Executor:
        return ThreadPoolExecutor(count, name)

    def resizable_threads(self, count: int, name: str) -> ResizableExecutor:
        return ThreadPool(count, name)

    def _find(self, path: str) -> _Node | _Directory | None:
        node: _Node | _Directory = self._root
        for name in _parts(path):
            if not isinstance(node, _Directory) or name not in node.entries:
                return None
            node = node.entries[name]
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        return self._directory(posixpath.dirname(path)), posixpath.basename(path)


class SimulatedLock:
    def __init__(self, locked: set[str], path: str) -> None:
        self._locked, self._path = locked, path

    def release(self) -> None:
        self._locked.discard(self._path)


class SimulatedFile:
    def __init__(self, files: SimulatedFiles, path: str, node: _Node) -> None:
        self.path = path
        self._files, self._node = files, node

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a simulated file has no descriptor", self.path)

    def size(self) -> int:
        return len(self._node.data)

    def read(self, position: int, count: int) -> bytes:
        self._files.check("read")
        return bytes(self._node.data[position : position + count])

    def read_cached(self, position: int, count: int) -> bytes | None:
        return self.read(position, count)

    def is_cached(self, position: int, count: int) -> bool:
        return True

    def write(self, position: int, buffers: Sequence[Bytes]) -> int:
        self._files.check("write")
        data = b"".join(bytes(buffer) for buffer in buffers)
        if position > len(self._node.data):
            self._node.data.extend(bytes(position - len(self._node.data)))
        self._node.data[position : position + len(data)] = data
        return len(data)

    def sync(self) -> None:
        self._files.check("sync")
        self._node.durable = bytes(self._node.data)

    def truncate(self, size: int) -> None:
        self._files.check("truncate")
        del self._node.data[size:]
        self._node.data.extend(bytes(size - len(self._node.data)))

    def reserve(self, position: int, count: int) -> None:
        """Do nothing: a simulated disk needs no preallocation."""

    def close(self) -> None:
        pass


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _count(directory: _Directory, node: _Node | _Directory) -> int:
    children = list(directory.entries.values())  # in one step: other threads add and remove files
    found = sum(child is node for child in children)
    return found + sum(_count(child, node) for child in children if isinstance(child, _Directory))


def _forget(directory: _Directory) -> None:
    directory.entries = dict(directory.durable_entries)
    for child in directory.entries.values():
        if isinstance(child, _Directory):
            _forget(child)
        else:
            child.data = bytearray(child.durable)


def _remember(directory: _Directory) -> None:
    directory.durable_entries = dict(directory.entries)
    for child in directory.entries.values():
        if isinstance(child, _Directory):
            _remember(child)
        else:
            child.durable = bytes(child.data)
