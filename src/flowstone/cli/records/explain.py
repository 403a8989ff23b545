"""`flowstone explain`: prints everything that the broker knows about one offset."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from flowstone.cli.common.broker_pages import find_pages
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap, connect, find_topic
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.times import format_time
from flowstone.cli.group.tables import duration

_PLACE = re.compile(r"([^/@]+)/(\d{1,10})@(\d{1,19})")
_FOR_EVER = -1


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(
    place: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION@OFFSET", help="The record, such as orders/0@1234.")],
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a record's position and producer, whether it is durable, who has read it, and when it will be deleted."""
    match = _PLACE.fullmatch(place)
    if match is None:
        raise CommandError(f"{place}: expected TOPIC/PARTITION@OFFSET, such as orders/0@1234")
    topic, partition, offset = match.groups()
    admin = connect(bootstrap)
    known = find_topic(admin, bootstrap, topic, to_use=False).partitions
    if int(partition) not in known:
        raise CommandError(f"{topic} has no partition {partition}: its partitions are 0 to {max(known)}")
    query = urlencode({"topic": topic, "partition": partition, "offset": offset})
    _status, told = find_pages(admin, bootstrap).ask(f"/explain?{query}")
    if json_output:
        print_document(told)
    else:
        print("\n".join(f"{name:<11} {text}" for name, text in _lines(told)))


def _lines(told: dict[str, Any]) -> list[tuple[str, str]]:
    segment, batch = told["segment"], told["batch"]
    lines = [("offset", f"{told['topic']}/{told['partition']}@{told['offset']}")]
    if told["is_compacted_away"]:
        lines.append(("record", "none: compaction has removed it; the lines below describe its batch, or the next one"))
    else:
        lines.append(("timestamp", f"{_time(told['timestamp_ms'])} ({told['timestamp_type']})"))
    kind = "active" if segment["is_active"] else "sealed"
    lines += [
        ("segment", f"{segment['file']}, {kind}, {segment['size_bytes']} bytes"),
        ("position", f"{segment['position']}"),
        (
            "batch",
            f"offsets {batch['base_offset']} to {batch['last_offset']}, {batch['record_count']} records, "
            f"{batch['size_bytes']} bytes, compression {batch['compression']}, leader epoch {batch['leader_epoch']}",
        ),
        ("producer", _producer(told["producer"])),
        ("safe", _durability(told["durability"])),
    ]
    is_held_up = told["durability"]["is_committed"] and not told["transaction"]["is_visible"]
    if batch["is_transactional"] or is_held_up:
        lines.append(("transaction", _transaction(told["transaction"], is_control=batch["is_control"])))
    if told["branched_from"] is not None:
        lines.append(("branch", f"from topic {told['branched_from']['topic']}, to which the record was written"))
    lines += [
        ("read by", _groups(told["groups"], has_passed=True)),
        ("unread by", _groups(told["groups"], has_passed=False)),
        ("retention", _retention(told["retention"])),
    ]
    if told["compaction"] is not None:
        lines.append(("compaction", _compaction(told["compaction"])))
    return lines


def _time(time_ms: int | None) -> str:
    return format_time(time_ms) if time_ms is not None and time_ms >= 0 else "none"


def _producer(producer: dict[str, int] | None) -> str:
    if producer is None:
        return "without an id: not idempotent"
    return f"id {producer['producer_id']}, epoch {producer['producer_epoch']}, sequence {producer['sequence']}"


def _durability(told: dict[str, Any]) -> str:
    flushed = "on disk" if told["is_flushed"] else f"not on disk yet (flushed to {told['flushed_offset']})"
    committed = "committed" if told["is_committed"] else f"not committed yet (high watermark {told['high_watermark']})"
    return f"{flushed}, {committed}, in-sync replicas {told['in_sync_replicas']} of {told['replicas']}"


def _transaction(told: dict[str, Any], *, is_control: bool) -> str:
    if is_control:
        return "an end marker, which no consumer sees"
    if told["is_aborted"]:
        return "aborted: read_committed consumers do not see the record"
    if told["is_visible"]:
        return "committed: read_committed consumers see the record"
    holder = told["held_by"]
    if holder is None:
        return (
            f"read_committed consumers see records below offset {told['last_stable_offset']}, until this record, or "
            "the end marker of an earlier transaction, is replicated"
        )
    name = f", transactional id {holder['transactional_id']}" if holder.get("transactional_id") is not None else ""
    hangs = "; no coordinator will end it: see `flowstone txn find-hanging`" if holder.get("is_hanging") else ""
    return (
        f"read_committed consumers wait for the open transaction of producer {holder['producer_id']}, epoch "
        f"{holder['producer_epoch']}{name}, since {_time(holder['since_ms'])} (offset {holder['first_offset']}){hangs}"
    )


def _groups(groups: list[dict[str, Any]], *, has_passed: bool) -> str:
    names = [f"{each['group']} (at {each['committed_offset']})" for each in groups if each["has_passed"] == has_passed]
    return ", ".join(names) or "no group"


def _retention(told: dict[str, Any]) -> str:
    if told["deleted_at_ms"] is None:
        limits = [name for name in ("retention_ms", "retention_bytes") if told[name] != _FOR_EVER]
        return "not by time, and not by size as long as the topic grows no faster" if limits else "never"
    if told["seconds_left"] == 0:
        return "due at the next check"
    text = f"in {duration(told['seconds_left'])}, about {format_time(told['deleted_at_ms'])}, with its segment"
    if told.get("growing_seconds"):
        text += f", which is sealed only in {duration(told['growing_seconds'])} (segment.bytes, segment.ms)"
    return text


def _compaction(told: dict[str, Any]) -> str:
    if told["is_compacted"]:
        state = (
            "done here: it was the last value of its key then; the next compaction removes it if there is a newer one"
        )
    elif told["is_in_active_segment"]:
        state = "not before its segment is full or old enough to be sealed"
    else:
        state = f"when more than {told['min_cleanable_dirty_ratio']:.0%} is dirty (now {told['dirty_ratio']:.0%})"
        if told["not_after_ms"] is not None:
            state += f", by {format_time(told['not_after_ms'])} at the latest"
    if told["delete_horizon_ms"] is not None:
        state += f"; tombstones of the batch stay until {format_time(told['delete_horizon_ms'])}"
    return state
