"""Output of `flowstone log` as lines for users and as JSON for programs."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

from flowstone.cli.common.text import counted
from flowstone.cli.log_files.survey import Damage
from flowstone.cli.log_files.verification import Missing, PartitionReport
from flowstone.log.segments.batch_scan import ScannedBatch
from flowstone.wire.record_batch import NO_PRODUCER_ID, Record


def report_lines(report: PartitionReport) -> list[str]:
    found = [counted(report.record_count, "record"), counted(report.segment_count, "segment")]
    if report.end_offset > report.first_offset:
        found.insert(1, _offsets(report.first_offset, report.end_offset - 1))
    lines = [f"{report.topic_partition}: {', '.join(found)}: {'good' if report.is_good else 'DAMAGED'}"]
    if report.missing is not None:
        lost = _offsets(report.missing.first_offset, report.missing.next_offset - 1)
        lines.append(f"  {lost} at the log's start: {report.missing.reason}")
    lines += [f"  {damage.path}: {stretch(damage)}: {damage.reason}" for damage in report.damages]
    lines += [f"  {wrong}" for wrong in report.bad_indexes]
    if report.unfinished is not None:
        where = f"{report.unfinished.path}: {stretch(report.unfinished)}"
        lines.append(f"  {where}: an unfinished write, which the next start truncates")
    return lines


def report_document(report: PartitionReport) -> dict[str, Any]:
    missing = {"missing": _missing_document(report.missing)} if report.missing is not None else {}
    return {
        "topic": report.topic_partition.topic,
        "partition": report.topic_partition.partition,
        "good": report.is_good,
        "records": report.record_count,
        "segments": report.segment_count,
        "first_offset": report.first_offset,
        "next_offset": report.end_offset,
        "damages": [damage_document(each) for each in report.damages],
        "bad_indexes": report.bad_indexes,
        "unfinished_write": damage_document(report.unfinished) if report.unfinished is not None else None,
        **missing,
    }


def _missing_document(missing: Missing) -> dict[str, Any]:
    return {"first_offset": missing.first_offset, "next_offset": missing.next_offset, "reason": missing.reason}


def stretch(damage: Damage) -> str:
    where = f"position {damage.position} to {damage.end_position}"
    if damage.next_offset is None:
        return f"from offset {damage.first_offset} on ({where})"
    if damage.next_offset <= damage.first_offset:
        return f"at offset {damage.first_offset} ({where})"
    return f"{_offsets(damage.first_offset, damage.next_offset - 1)} ({where})"


def damage_document(damage: Damage) -> dict[str, Any]:
    return {
        "file": damage.path,
        "position": damage.position,
        "end_position": damage.end_position,
        "first_offset": damage.first_offset,
        "next_offset": damage.next_offset,
        "reason": damage.reason,
    }


def batch_line(batch: ScannedBatch) -> str:
    header = batch.header
    cells = [
        _offsets(header.base_offset, header.last_offset),
        f"position {batch.position}",
        f"{header.size_bytes} bytes",
        counted(header.record_count, "record"),
        f"codec {header.codec.name.lower()}",
        f"newest {time_text(header.max_timestamp)}",
        f"epoch {header.partition_leader_epoch}",
    ]
    if header.producer_id != NO_PRODUCER_ID:
        cells.append(f"producer {header.producer_id}/{header.producer_epoch} sequence {header.base_sequence}")
    cells += [
        name for name, holds in (("transactional", header.is_transactional), ("control", header.is_control)) if holds
    ]
    return "  " + ", ".join(cells)


def batch_document(path: str, batch: ScannedBatch) -> dict[str, Any]:
    header = batch.header
    return {
        "file": path,
        "position": batch.position,
        "size_bytes": header.size_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "codec": header.codec.name.lower(),
        "max_timestamp": header.max_timestamp,
        "leader_epoch": header.partition_leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
    }


def record_line(record: Record) -> str:
    headers = "".join(f" {name}={_text(value)}" for name, value in record.headers)
    return f"    {record.offset} {time_text(record.timestamp)} {_text(record.key)} {_text(record.value)}{headers}"


def record_document(path: str, record: Record) -> dict[str, Any]:
    """Return a record as a JSON document, with keys and values in base64."""
    return {
        "file": path,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key_base64": _base64(record.key),
        "value_base64": _base64(record.value),
        "headers": [{"name": name, "value_base64": _base64(value)} for name, value in record.headers],
    }


def _offsets(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def time_text(timestamp_ms: int) -> str:
    """Return a time in UTC; in milliseconds if it is beyond the year 9999."""
    if timestamp_ms < 0:
        return "none"
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (ValueError, OverflowError):  # a producer may set any timestamp
        return f"{timestamp_ms} ms"


def _text(data: bytes | None) -> str:
    return "null" if data is None else repr(data)[1:]


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
