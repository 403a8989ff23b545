"""Disks in memory of which some are broken: every call below their path fails, until they are mended."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from flowstone.ports.simulated_files import SimulatedFile, SimulatedFiles
from flowstone.types import Bytes


class BrokenDisks(SimulatedFiles):
    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[str, int] = {}  # a path -> the error of every call below it
        self.free: dict[str, tuple[int, int]] = {}  # a path -> its usable and total bytes

    def break_disk(self, path: str, error_number: int = errno.EIO) -> None:
        self.broken[path] = error_number

    def mend(self, path: str) -> None:
        del self.broken[path]

    def touch(self, path: str, *, is_write: bool = True) -> None:
        for broken, number in self.broken.items():
            if f"{path}/".startswith(f"{broken}/") and (is_write or number != errno.EROFS):
                raise OSError(number, "a broken disk", path)

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        self.touch(path, is_write=create)
        return _File(self, super().open(path, create=create))

    def names(self, directory: str) -> list[str]:
        self.touch(directory, is_write=False)
        return super().names(directory)

    def make_directory(self, path: str) -> None:
        self.touch(path)
        super().make_directory(path)

    def new_directory(self, path: str) -> None:
        self.touch(path)
        super().new_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.touch(source)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.touch(path)
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self.touch(path)
        super().sync_directory(path)

    def free_bytes(self, path: str) -> tuple[int, int]:
        self.touch(path, is_write=False)
        return self.free.get(path) or super().free_bytes(path)


class _File(SimulatedFile):
    def __init__(self, disks: BrokenDisks, file: SimulatedFile) -> None:
        super().__init__(disks, file.path, file._node)
        self._disks = disks

    def read(self, position: int, count: int) -> bytes:
        self._disks.touch(self.path, is_write=False)
        return super().read(position, count)

    def write(self, position: int, buffers: Sequence[Bytes]) -> int:
        self._disks.touch(self.path)
        return super().write(position, buffers)

    def sync(self) -> None:
        self._disks.touch(self.path)
        super().sync()

    def truncate(self, size: int) -> None:
        self._disks.touch(self.path)
        super().truncate(size)
