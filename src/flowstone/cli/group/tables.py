"""Tables and texts about consumer groups, including why a member is idle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from flowstone.broker.lag.group_status import CONSUMER, SHARE, GroupMember, GroupStatus, PartitionLag, group_document
from flowstone.cli.common.text import counted, screen_width, table
from flowstone.types import TopicPartition

NOTHING = "-"
NOTES_MAX = 10  # on transactions, below a table
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400

MEMBER_COLUMNS = ("member", "client", "host", "partitions")
CONSUMER_COLUMNS = ("member", "client", "host", "epoch", "state", "partitions", "must give up", "will get")


def partition_columns(group: GroupStatus, with_times: bool) -> list[str]:
    times = ["behind", "headroom"] if with_times else []
    start, last = ("start", "in flight") if group.type == SHARE else ("committed", "member")
    return ["topic", "partition", start, "end", "lag", *times, last]


def partition_rows(group: GroupStatus, with_times: bool) -> list[list[str]]:
    clients = {member.member_id: member.client_id for member in group.members}
    return [
        [
            each.topic,
            str(each.partition),
            number(each.committed_offset),
            str(each.high_watermark),
            number(each.lag),
            *([duration(each.lag_seconds), headroom(each)] if with_times else []),
            _last_cell(group, each, clients),
        ]
        for each in group.partitions
    ]


def _last_cell(group: GroupStatus, partition: PartitionLag, clients: dict[str, str]) -> str:
    """Return the member that reads the partition, or for a share group the number of records in flight."""
    if group.type == SHARE:
        return number(partition.in_flight)
    return _short(partition.member_id, clients) if partition.member_id is not None else NOTHING


def member_rows(group: GroupStatus) -> list[list[str]]:
    rows = []
    for member in group.members:
        reason = idle_reason(group, member)
        partitions = f"none: {reason}" if reason is not None else partition_list(member.partitions)
        name = member.group_instance_id or member.member_id
        rows.append([name, member.client_id, member.client_host.lstrip("/"), partitions])
    return rows


def member_table(group: GroupStatus) -> tuple[Sequence[str], list[list[str]]]:
    """Return the table of a group's members; for a consumer group it includes the partitions to be revoked."""
    rows = member_rows(group)
    if not any(member.state for member in group.members):
        return MEMBER_COLUMNS, rows
    for row, member in zip(rows, group.members, strict=True):
        row[3:3] = [str(member.epoch), member.state if member.protocol == CONSUMER else f"{member.state}, classic"]
        row += [partition_list(member.revoking) or NOTHING, partition_list(member.waiting) or NOTHING]
    return CONSUMER_COLUMNS, rows


def idle_reason(group: GroupStatus, member: GroupMember) -> str | None:
    """Return why the member has no partition, or None if it has one."""
    if member.partitions:
        return None
    if not group.is_stable:
        return "a rebalance is in progress"
    shared = sum(len(each.partitions) for each in group.members)
    if not shared:
        return "the topics it subscribes to have no partitions, or are not there"
    if len(group.members) > shared:
        return f"{len(group.members)} members share {counted(shared, 'partition')}; add partitions, or stop a member"
    return f"the assignor, {group.protocol or 'unknown'}, gave {counted(shared, 'partition')} to others"


def described(group: GroupStatus) -> dict[str, Any]:
    """Return the group's JSON document, with an idle reason for each idle member."""
    document = group_document(group)
    for told, member in zip(document["members"], group.members, strict=True):
        told["idle_reason"] = idle_reason(group, member)
    return document


def description(group: GroupStatus, *, with_times: bool) -> str:
    parts = [headline(group)]
    rebalances = rebalance_line(group)
    if rebalances is not None:
        parts.append(rebalances)
    if group.unsettled:
        parts.append(f"not settled: {group.unsettled}")
    if group.members:
        columns, rows = member_table(group)
        parts += ["", table(columns, rows, screen_width())]
    if group.partitions:
        rows = partition_rows(group, with_times)
        parts += ["", table(partition_columns(group, with_times), rows, screen_width())]
        parts += headroom_note(group) if with_times else []
        parts += transaction_notes(group)
    return "\n".join(parts)


def headroom_note(group: GroupStatus) -> list[str]:
    """Return lines that explain a headroom above retention.ms; none if no next record is in an active segment."""
    growing_s = max((each.growing_seconds for each in group.partitions), default=0.0)
    if not growing_s:
        return []
    return [
        "",
        f"headroom includes up to {duration(growing_s)} until active segments are sealed (segment.bytes, segment.ms): "
        "retention deletes whole segments, and counts from the newest record in each",
    ]


def transaction_notes(group: GroupStatus) -> list[str]:
    """Return lines about open transactions that hide records from members, or that hold committed offsets."""
    notes = []
    for each in group.partitions:
        where = f"{each.topic}/{each.partition}"
        if each.is_held_up:
            notes.append(
                f"{where}: members that read committed records wait at offset {each.last_stable_offset} for an open "
                f"transaction: see `flowstone explain {where}@{each.last_stable_offset}`"
            )
        if each.pending_offset is not None:
            notes.append(
                f"{where}: offset {each.pending_offset} counts once the open transaction of producer "
                f"{each.pending_producer_id} is committed"
            )
    more = [f"and {len(notes) - NOTES_MAX} more notes on transactions"] if len(notes) > NOTES_MAX else []
    return ["", *notes[:NOTES_MAX], *more] if notes else []


def missing_times(problem: str | None) -> str:
    """Return the note below a table without times, or nothing if it has them."""
    return (
        f"\n\nlag in seconds, headroom and the reasons of rebalances are not known: {problem}"
        if problem is not None
        else ""
    )


def headline(group: GroupStatus) -> str:
    told = f"group {group.group_id}: {group.state}, {counted(len(group.members), 'member')}"
    told = f"{told}, {group.protocol}" if group.protocol else told
    if group.type != CONSUMER:
        return told
    epochs = f", epoch {group.generation} (assigned: {group.assignment_epoch})" if group.generation >= 0 else ""
    return f"{told}, consumer protocol{epochs}"


def rebalance_line(group: GroupStatus) -> str | None:
    """Return a line about the last rebalance, or None if none is known."""
    if not group.rebalance_count:
        return None
    return f"{counted(group.rebalance_count, 'rebalance')} since the broker started, the last: {group.rebalance_reason}"


def partition_list(partitions: Iterable[TopicPartition]) -> str:
    topics = groupby(sorted(partitions), key=lambda each: each.topic)
    return " ".join(f"{topic}:{','.join(str(each.partition) for each in some)}" for topic, some in topics)


def headroom(partition: PartitionLag) -> str:
    if partition.lost:
        return f"none, {partition.lost} lost"
    text = duration(partition.headroom_seconds)
    return f"{text} LOW" if partition.is_headroom_low else text


def number(value: int | None) -> str:
    return str(value) if value is not None else NOTHING


def duration(seconds: float | None) -> str:
    """Return a length of time with a unit, rounded to two digits."""
    if seconds is None:
        return NOTHING
    for size_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds else "0 s"


def _short(member_id: str, clients: dict[str, str]) -> str:
    """Return the member id shortened to its client id and eight of its 36 random characters."""
    client_id = clients.get(member_id, "")
    rest = member_id.removeprefix(f"{client_id}-")
    return f"{client_id}-{rest[:8]}" if rest != member_id else member_id
