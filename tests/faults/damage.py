"""What can happen to files behind a broker's back, and where in them it happens. For stopped or killed brokers."""

from __future__ import annotations

from pathlib import Path

from flowstone.cli.log_files.survey import open_for_reading, walk
from flowstone.log.segments.batch_scan import ScannedBatch
from flowstone.log.segments.checkpoints import RECOVERY_POINT_CHECKPOINT, decode_offsets, encode_offsets
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import HEADER_BYTES


def log_files(data: Path, partition: TopicPartition) -> list[Path]:
    return sorted((data / str(partition)).glob("*.log"))


def batches(log_file: Path) -> list[ScannedBatch]:
    """The batches of a good log file, or of a torn one up to the tear."""
    return [
        found for found in walk(open_for_reading(str(log_file)), int(log_file.stem)) if isinstance(found, ScannedBatch)
    ]


def write_at(path: Path, position: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def flip_bit(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def set_recovery_point(data: Path, partition: TopicPartition, offset: int) -> None:
    """As if the last checkpoint had been written when the log's flushed end was `offset`."""
    path = data / RECOVERY_POINT_CHECKPOINT
    offsets = (decode_offsets(path.read_bytes()) if path.exists() else None) or {}
    path.write_bytes(encode_offsets({**offsets, partition: offset}))


def flip_payload_bit(data: Path, partition: TopicPartition) -> int:
    """In the middle of the last log file that has several batches; the offset of the batch it hits."""
    log_file = next(path for path in reversed(log_files(data, partition)) if len(batches(path)) > 2)
    found = batches(log_file)
    victim = found[len(found) // 2]
    flip_bit(log_file, victim.position + (HEADER_BYTES + victim.header.size_bytes) // 2)
    return victim.header.base_offset


def flip_bit_below_recovery_point(data: Path, partition: TopicPartition) -> int:
    """In a batch that recovery would look at, were it not below the recovery point; its offset."""
    log_file = log_files(data, partition)[-1]
    found = batches(log_file)
    victim = found[len(found) // 2]
    set_recovery_point(data, partition, found[-1].header.next_offset)
    flip_bit(log_file, victim.position + 16)  # the header's magic: even a walk over headers meets it
    return victim.header.base_offset


def flip_bit_above_recovery_point(data: Path, partition: TopicPartition) -> int:
    """In the payload of a batch that recovery has to check; its offset."""
    set_recovery_point(data, partition, 0)
    return flip_payload_bit(data, partition)
