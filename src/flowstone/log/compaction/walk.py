"""Walks a segment in large reads with the kernel's loops, which go from batch to batch and stop at those they do not
handle.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from flowstone.errors import ApiError
from flowstone.kernel.compaction import BatchFields, Stop, Walk
from flowstone.log.segments.compaction_job import CompactionError, SourceSegment
from flowstone.log.workers.throttle import Throttle
from flowstone.ports.files import File
from flowstone.types import Bytes
from flowstone.wire.record_batch import BatchHeader, parse_header, read_payload

CHUNK_BYTES = 4 << 20


class Then(Enum):
    """The ways in which a walk continues after a batch at which it stopped."""

    NEXT = auto()  # the batch is handled
    AGAIN = auto()
    END = auto()


class StoppedAt(NamedTuple):
    """A batch with a valid checksum, in a chunk of its segment, at which the walk stopped."""

    stop: Stop
    header: BatchHeader
    chunk: bytes
    position: int
    ends_segment: bool

    @property
    def batch(self) -> memoryview:
        return memoryview(self.chunk)[self.position : self.position + self.header.size_bytes]

    def payload(self) -> Bytes:
        """Return the batch's records, decompressed. Raises CompactionError if they cannot be decompressed."""
        try:
            return read_payload(self.chunk, self.position, self.header)
        except ApiError as error:
            raise CompactionError(f"the batch at offset {self.header.base_offset}: {error}") from error

    @property
    def fields(self) -> BatchFields:
        header = self.header
        return BatchFields(
            header.base_offset, header.last_offset, header.base_timestamp, header.record_count, header.attributes
        )


Step = Callable[[bytes, int, int, bool], Walk]  # (chunk, position, next offset, whether the segment ends with it)


def walk_segment(
    file: File, segment: SourceSegment, throttle: Throttle, step: Step, on_stop: Callable[[StoppedAt], Then]
) -> bool:
    """Walk a segment with `step`; `on_stop` says how to continue where it stops. Return False if it said END."""
    position, next_offset, wanted_bytes = 0, segment.base_offset, CHUNK_BYTES
    while position < segment.size_bytes:
        count = min(wanted_bytes, segment.size_bytes - position)
        throttle.spend(count)
        chunk = file.read(position, count)
        ends = position + len(chunk) == segment.size_bytes
        at = 0
        while True:
            walk = step(chunk, at, next_offset, ends)
            at, next_offset = walk.position, walk.next_offset
            if walk.stop is Stop.MORE:
                break
            if walk.stop is Stop.DAMAGED:
                raise _damaged(file, position + at, next_offset, walk.damage.name.lower().replace("_", " "))
            header = parse_header(chunk, at)
            then = on_stop(StoppedAt(walk.stop, header, chunk, at, ends and at + header.size_bytes == len(chunk)))
            if then is Then.END:
                return False
            if then is Then.NEXT:
                at, next_offset = at + header.size_bytes, header.next_offset
        if len(chunk) < count or (ends and at < len(chunk)):
            raise _damaged(file, position + at, next_offset, "the file ends inside a batch")
        position += at
        wanted_bytes = max(CHUNK_BYTES, walk.needed_bytes)
    return True


def _damaged(file: File, position: int, offset: int, reason: str) -> CompactionError:
    return CompactionError(f"{file.path} is damaged at position {position} (offset {offset}): {reason}")
