"""The copies of a partition as they lie on the disks of brokers that have stopped: read whole, and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flowstone.types import TopicPartition
from flowstone.wire.end_markers import read_end_marker
from flowstone.wire.record_batch import decode_records, parse_header
from tests.faults.checker import Anomaly, ObservedLog
from tests.support.wire_client import whole_batches


def read_copy(data: Path, partition: TopicPartition) -> list[bytes]:
    """Its batches. CorruptBatch if one is not what its checksum says."""
    segments = sorted((data / str(partition)).glob("*.log"))
    return [bytes(batch) for segment in segments for batch in whole_batches(segment.read_bytes())]


def observe(copy: list[bytes]) -> ObservedLog:
    records = [(each.offset, each.value or b"") for batch in copy for each in decode_records(batch)]
    return ObservedLog(0, records[-1][0] + 1 if records else 0, records)


def offsets_of_later_epochs(copy: list[bytes]) -> set[int]:
    """Of records that an idempotent producer wrote after it had taken a new producer epoch."""
    headers = [parse_header(batch) for batch in copy]
    return {
        offset
        for header in headers
        if header.producer_epoch > 0
        for offset in range(header.base_offset, header.next_offset)
    }


def compare(partition: TopicPartition, copies: Mapping[int, list[bytes]]) -> list[Anomaly]:
    """The brokers had rested, all in sync, before they stopped: their copies are the same, to the last byte (R2)."""
    (first_id, first), *others = copies.items()
    anomalies = []
    for node_id, copy in others:
        if copy == first:
            continue
        at = next(
            (at for at, (a, b) in enumerate(zip(first, copy, strict=False)) if a != b), min(len(first), len(copy))
        )
        detail = f"{len(first)} batches on {first_id}, {len(copy)} on {node_id}; they part at batch {at}"
        anomalies.append(Anomaly("replica divergence", partition, at, detail))
    return anomalies


def committed_records(batches: Sequence[bytes]) -> tuple[dict[int, bytes], list[int]]:
    """The values of committed transactions by their offsets, and where transactions begin that are still open."""
    is_open: dict[int, dict[int, bytes]] = {}
    committed: dict[int, bytes] = {}
    for batch in batches:
        header = parse_header(batch)
        if not header.is_control:
            records = {each.offset: each.value or b"" for each in decode_records(batch)}
            (is_open.setdefault(header.producer_id, {}) if header.is_transactional else committed).update(records)
        elif (marker := read_end_marker(batch, 0, header)) is not None:
            ended = is_open.pop(header.producer_id, {})
            committed.update(ended if marker.is_commit else {})
    return committed, [min(records) for records in is_open.values()]
