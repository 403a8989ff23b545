"""A machine's disk: files in memory whose slow calls take simulated time, and what of them would survive a power loss.

The threads that wait for it are simulated too. A call takes effect at some moment between its start and its end, drawn
from the seed: a flush covers what was written before it began, and maybe more.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from posixpath import dirname
from random import Random
from typing import Any

from flowstone.ports.simulated_files import SimulatedFile, SimulatedFiles, _Directory, _Node
from flowstone.ports.thread_pool import ResizableExecutor

from .loop import SimulatedLoop

LOG_SUFFIXES = (".log", ".deleted", "-delete", ".swap", ".cleaned")
CALL_S_MIN, CALL_S_MAX = 0.0002, 0.004


class SimulatedDisk(SimulatedFiles):
    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        super().__init__()
        self._loop, self._random = loop, random
        self.slowness = 1.0
        self.is_full = False
        self.version = 0  # how often something was taken away
        self._shortened: dict[_Node, None] = {}  # and not synced since
        self._changed_in: set[str] = set()  # directories whose names have changed, and not synced since

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        file = super().open(path, create=create)
        return _File(self, path, file._node)

    def check(self, operation: str) -> None:
        if self.is_full and operation == "write":
            raise OSError(errno.ENOSPC, "simulated full disk")
        super().check(operation)

    def lose_power(self) -> None:
        super().lose_power()
        self.version += 1

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if source.endswith(LOG_SUFFIXES) or target.endswith(LOG_SUFFIXES):
            self.version += 1
            self._changed_in |= {dirname(source), dirname(target)}

    def remove(self, path: str) -> None:
        super().remove(path)
        if path.endswith(LOG_SUFFIXES):
            self.version += 1
            self._changed_in.add(dirname(path))

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        if path in self._changed_in:
            self._changed_in.remove(path)
            self.version += 1

    def sync_filesystem(self, path: str) -> None:
        super().sync_filesystem(path)
        self._changed_in.clear()
        self.version += 1

    def shortened(self, node: _Node) -> None:
        self.version += 1
        self._shortened[node] = None

    def synced(self, node: _Node) -> None:
        if node in self._shortened:
            self.version += 1
            del self._shortened[node]

    def contents(self, path: str, suffix: str, *, durable: bool) -> Iterator[tuple[str, bytes | bytearray]]:
        """The files of a directory in the order of their names; what of them would survive, if durable."""
        node: _Node | _Directory | None = self._root
        for name in path.strip("/").split("/"):
            assert isinstance(node, _Directory)
            node = (node.durable_entries if durable else node.entries).get(name)
            if node is None:
                return
        assert isinstance(node, _Directory)
        entries = node.durable_entries if durable else node.entries
        for name in sorted(entries):
            if name.endswith(suffix):
                file = entries[name]
                assert isinstance(file, _Node)
                yield name, file.durable if durable else file.data

    def threads(self, count: int, name: str) -> Executor:
        return self.resizable_threads(count, name)

    def resizable_threads(self, count: int, name: str) -> ResizableExecutor:
        return SimulatedThreads(self._loop, self.take_s, self._random, count)

    def take_s(self) -> float:
        """How long the next call takes."""
        return self._random.uniform(CALL_S_MIN, CALL_S_MAX) * self.slowness

    def release_locks(self) -> None:
        """The process that had them is gone."""
        self._locked.clear()


class _File(SimulatedFile):
    """Tells its disk when bytes go: at once from what is written, with the next sync from what is durable."""

    def truncate(self, size: int) -> None:
        if size < self.size() and self.path.endswith(LOG_SUFFIXES):
            assert isinstance(self._files, SimulatedDisk)
            self._files.shortened(self._node)
        super().truncate(size)

    def sync(self) -> None:
        super().sync()
        assert isinstance(self._files, SimulatedDisk)
        self._files.synced(self._node)


class _Call(Future[Any]):
    """What was asked of the threads. Who waits for it gets it done at once: their time stands still."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__()
        self._function = function
        self._is_begun = False
        self._outcome: tuple[Any, BaseException | None] = (None, None)

    def work(self) -> None:
        if self._is_begun:
            return
        self._is_begun = True
        try:
            self._outcome = (self._function(), None)
        except Exception as error:
            self._outcome = (None, error)

    def end(self) -> None:
        if self.done():
            return
        self.work()
        result, error = self._outcome
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(result)

    def result(self, timeout: float | None = None) -> Any:
        self.end()
        return super().result()


class SimulatedThreads(ResizableExecutor):
    def __init__(self, loop: SimulatedLoop, take_s: Callable[[], float], random: Random, count: int) -> None:
        self._loop, self._take_s, self._random = loop, take_s, random
        self._free_at = [0.0] * count  # per thread
        self._calls: deque[_Call] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        call = _Call(lambda: fn(*args, **kwargs))
        thread = min(range(len(self._free_at)), key=self._free_at.__getitem__)
        begins_at = max(self._free_at[thread], self._loop.time())
        ends_at = self._free_at[thread] = begins_at + self._take_s()
        self._calls.append(call)
        self._loop.call_at(self._random.uniform(begins_at, ends_at), call.work)
        self._loop.call_at(ends_at, self._end, call)
        return call

    def resize(self, thread_count: int) -> None:
        """Add idle threads, or remove those that would be free last: their calls end when they would have."""
        added = [0.0] * max(0, thread_count - len(self._free_at))
        self._free_at = sorted(self._free_at)[:thread_count] + added

    def _end(self, call: _Call) -> None:
        call.end()
        while self._calls and self._calls[0].done():
            self._calls.popleft()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for call in self._calls:
            call.end()
        self._calls.clear()
