"""The parts of an encoded response: bytes in memory, and slices of log files that are sent by reference."""

from __future__ import annotations

from typing import Protocol

from flowstone.ports.files import File


class FileSlice(Protocol):
    """A range of a file's bytes, sent with sendfile instead of being read into memory."""

    @property
    def file(self) -> File: ...

    @property
    def position(self) -> int: ...

    def __len__(self) -> int: ...


Chunk = bytes | bytearray | memoryview | FileSlice
