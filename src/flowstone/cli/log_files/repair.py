"""Repair of a partition's log files, so that the remaining records can be served again.

Each damaged range is replaced by one empty batch with the same offsets: no other record is lost, offsets have no gaps,
and no offset is used again. The damaged file is kept under a new name. If files are missing at the start of a log, the
log then starts after them. If the repair is interrupted, the log is either unchanged or repaired.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from flowstone.cli.common.errors import CommandError
from flowstone.cli.log_files.survey import Damage, open_for_reading
from flowstone.cli.log_files.verification import Missing
from flowstone.log.lifecycle.directory_identity import LogDirectory
from flowstone.log.lifecycle.durable_extents import LogExtents
from flowstone.log.segments.checkpoints import LOG_START_CHECKPOINT, PARTITION_METADATA, encode_partition_metadata
from flowstone.log.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from flowstone.ports.files import File
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import (
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    encode_header,
)

COPY_BYTES = 1 << 20
DAMAGED_SUFFIX = ".damaged"
_TEMPORARY_SUFFIX = ".tmp"  # recovery removes it if the repair is interrupted
_NO_TIMESTAMP = -1


def repair_segment(path: str, damages: list[Damage]) -> str:
    """Repair one log file; return the path of the kept damaged file. No broker may run meanwhile."""
    for damage in damages:
        if damage.next_offset is None or damage.next_offset < damage.first_offset:
            raise CommandError(f"{path}: {damage.reason}; this cannot be repaired here, restore the file from a copy")
    files = SystemFiles()
    temporary = path + _TEMPORARY_SUFFIX
    repaired = files.open(temporary, create=True)
    repaired.truncate(0)
    size_bytes = 0
    for piece in _pieces(open_for_reading(path), damages):
        size_bytes += repaired.write(size_bytes, [piece])
    repaired.sync()
    kept = _free_name(path + DAMAGED_SUFFIX)
    os.link(path, kept)
    os.rename(temporary, path)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):  # positions have changed: the broker rebuilds the indexes
        index = path.removesuffix(LOG_SUFFIX) + suffix
        if os.path.exists(index):
            os.remove(index)
    files.sync_directory(os.path.dirname(path))
    return kept


def move_log_start(data_directory: str, topic_partition: TopicPartition, missing: Missing) -> None:
    """Move a log's start after records whose files are missing. No broker may run meanwhile."""
    files = SystemFiles()
    directory, extents = LogDirectory(files, data_directory), LogExtents(files, data_directory)
    if missing.topic_id is not None:
        path = directory.file(str(topic_partition))
        files.make_directory(path)
        files.replace(f"{path}/{PARTITION_METADATA}", encode_partition_metadata(missing.topic_id))
    extent = extents.read([topic_partition]).get(topic_partition)
    if extent is not None:
        extents.put(topic_partition, extent._replace(log_start_offset=missing.next_offset))
    log_starts = directory.read_offsets(LOG_START_CHECKPOINT)
    directory.write_offsets(LOG_START_CHECKPOINT, {**log_starts, topic_partition: missing.next_offset})


def invalidate_transaction_index(path: str) -> None:
    """Replace a transaction index by a single byte, which every start finds malformed. No broker may run meanwhile."""
    SystemFiles().replace(path, b"\0")


def _pieces(source: File, damages: list[Damage]) -> Iterator[bytes]:
    position = 0
    for damage in damages:
        yield from _copy(source, position, damage.position)
        yield _filler(damage)
        position = damage.end_position
    yield from _copy(source, position, source.size())


def _copy(source: File, position: int, end: int) -> Iterator[bytes]:
    while position < end:
        data = source.read(position, min(COPY_BYTES, end - position))
        yield data
        position += len(data)


def _filler(damage: Damage) -> bytes:
    """Return an empty batch with the lost offsets, or nothing if there are none."""
    assert damage.next_offset is not None
    if damage.next_offset == damage.first_offset:
        return b""
    header = BatchHeader(
        base_offset=damage.first_offset,
        batch_length=0,
        partition_leader_epoch=damage.leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=damage.next_offset - damage.first_offset - 1,
        base_timestamp=_NO_TIMESTAMP,
        max_timestamp=_NO_TIMESTAMP,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=0,
    )
    return encode_header(header, b"")


def _free_name(path: str) -> str:
    number, name = 1, path
    while os.path.exists(name):
        number += 1
        name = f"{path}-{number}"
    return name
