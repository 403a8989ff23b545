"""The state and lag of a consumer group as values, and their JSON form with its stable field names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from flowstone.types import TopicPartition

STABLE = "Stable"
# Makes what stands for a JSON array of the documents.
Listed = Callable[[Iterable[dict[str, Any]]], Iterable[dict[str, Any]]]
CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"


class PartitionLag(NamedTuple):
    """The lag of a group in one partition that the group has committed in, or that one of its members reads."""

    topic: str
    partition: int
    committed_offset: int | None  # None: nothing is committed, so the lag is unknown
    log_start_offset: int
    high_watermark: int
    lag: int | None
    lost: int  # records that retention has deleted before the group read them
    lag_seconds: float | None  # age of the next unread record; 0 if all is read, None if it is not known
    headroom_seconds: float | None  # until retention deletes that record; None if nothing will, or all is read
    is_headroom_low: bool = False
    member_id: str | None = None  # the member that reads the partition
    # The part of the headroom until the record's segment, if it is the active one, will be sealed.
    growing_seconds: float = 0.0
    last_stable_offset: int | None = None  # where members that read committed records stop; None: not known
    # The newest offset that was committed in an open transaction, and the producer of that.
    pending_offset: int | None = None
    pending_producer_id: int | None = None
    in_flight: int | None = None  # records that members of a share group have locked; None: not known here

    @property
    def is_held_up(self) -> bool:
        """Return whether an open transaction hides records from members that read committed records only."""
        return self.last_stable_offset is not None and self.last_stable_offset < self.high_watermark


class GroupMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]
    # Of a member of a consumer group (KIP-848):
    epoch: int = -1
    state: str = ""  # stable, revoking, waiting or away
    revoking: tuple[TopicPartition, ...] = ()  # that it must give up and has not confirmed
    waiting: tuple[TopicPartition, ...] = ()  # that it will get and does not have yet
    protocol: str = CLASSIC  # which its requests use
    regex: str | None = None  # the regular expression that it subscribes to


class GroupStatus(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    generation: int
    topics: tuple[str, ...]  # subscribed to, as far as known; empty during a rebalance
    members: tuple[GroupMember, ...]
    partitions: tuple[PartitionLag, ...]
    rebalance_count: int  # since the broker started
    rebalance_reason: str  # of the last one
    rebalance_timestamp_ms: int  # -1: none since the broker started
    type: str = CLASSIC
    assignment_epoch: int = -1  # of a consumer group, whose own epoch is the generation
    unsettled: str = ""  # why a consumer group has not settled, in one sentence; empty if it has

    @property
    def is_stable(self) -> bool:
        return self.state == STABLE

    @property
    def lag(self) -> int:
        """Return the lag in records, over all partitions."""
        return sum(each.lag or 0 for each in self.partitions)

    @property
    def lag_seconds(self) -> float | None:
        """Return the lag in seconds of the partition that is furthest behind."""
        return max((each.lag_seconds for each in self.partitions if each.lag_seconds is not None), default=None)

    @property
    def headroom_seconds(self) -> float | None:
        """Return the headroom of the partition that has the least."""
        return min(
            (each.headroom_seconds for each in self.partitions if each.headroom_seconds is not None), default=None
        )


def seen_parts(group: GroupStatus, may_see: Callable[[str], bool]) -> GroupStatus:
    """Return the group without the topics that a client may not see: their partitions, and those of its members."""
    topics = {*group.topics, *(each.topic for each in group.partitions)}
    topics |= {each.topic for one in group.members for each in (*one.partitions, *one.revoking, *one.waiting)}
    hidden = {topic for topic in topics if not may_see(topic)}
    if not hidden:
        return group

    def seen(places: tuple[TopicPartition, ...]) -> tuple[TopicPartition, ...]:
        return tuple(each for each in places if each.topic not in hidden)

    members = tuple(
        each._replace(partitions=seen(each.partitions), revoking=seen(each.revoking), waiting=seen(each.waiting))
        for each in group.members
    )
    return group._replace(
        topics=tuple(each for each in group.topics if each not in hidden),
        members=members,
        partitions=tuple(each for each in group.partitions if each.topic not in hidden),
        unsettled="",  # the sentence may name them
    )


def group_document(group: GroupStatus, listed: Listed = list) -> dict[str, Any]:
    """Return the JSON form of the group. With `iter` for `listed` its lists are made while it is encoded."""
    return {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "generation": group.generation,
        "assignment_epoch": group.assignment_epoch if group.type in (CONSUMER, SHARE) else None,
        "unsettled": group.unsettled or None,
        "topics": list(group.topics),
        "lag": group.lag,
        "lag_seconds": group.lag_seconds,
        "headroom_seconds": group.headroom_seconds,
        "rebalances": {
            "count": group.rebalance_count,
            "last_reason": group.rebalance_reason,
            "last_timestamp": group.rebalance_timestamp_ms,
        },
        "members": listed(_member_document(each, listed) for each in group.members),
        "partitions": listed(_partition_document(each) for each in group.partitions),
    }


def _member_document(member: GroupMember, listed: Listed) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "instance": member.group_instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "partitions": _places(member.partitions, listed),
        "protocol": member.protocol,
        "epoch": member.epoch if member.state else None,
        "state": member.state or None,
        "revoking": _places(member.revoking, listed),
        "waiting": _places(member.waiting, listed),
        "regex": member.regex,
    }


def _places(partitions: tuple[TopicPartition, ...], listed: Listed) -> Iterable[dict[str, Any]]:
    return listed({"topic": each.topic, "partition": each.partition} for each in partitions)


def _partition_document(partition: PartitionLag) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "committed_offset": partition.committed_offset,
        "log_start_offset": partition.log_start_offset,
        "high_watermark": partition.high_watermark,
        "lag": partition.lag,
        "lost": partition.lost,
        "lag_seconds": partition.lag_seconds,
        "headroom_seconds": partition.headroom_seconds,
        "headroom_low": partition.is_headroom_low,
        "growing_seconds": partition.growing_seconds,
        "last_stable_offset": partition.last_stable_offset,
        "pending_offset": partition.pending_offset,
        "pending_producer_id": partition.pending_producer_id,
        "in_flight": partition.in_flight,
        "member": partition.member_id,
    }


def read_group_document(document: dict[str, Any]) -> GroupStatus:
    """Return the group that a `group_document` describes, for clients that read it over HTTP."""
    rebalances = document["rebalances"]
    return GroupStatus(
        group_id=document["group"],
        state=document["state"],
        protocol_type=document["protocol_type"],
        protocol=document["protocol"],
        generation=document["generation"],
        topics=tuple(document["topics"]),
        members=tuple(_read_member(each) for each in document["members"]),
        partitions=tuple(_read_partition(each) for each in document["partitions"]),
        rebalance_count=rebalances["count"],
        rebalance_reason=rebalances["last_reason"],
        rebalance_timestamp_ms=rebalances["last_timestamp"],
        type=document.get("type", CLASSIC),
        assignment_epoch=_number(document.get("assignment_epoch")),
        unsettled=document.get("unsettled") or "",
    )


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _read_member(document: dict[str, Any]) -> GroupMember:
    return GroupMember(
        document["member"],
        document["instance"],
        document["client"],
        document["host"],
        _read_places(document["partitions"]),
        epoch=_number(document.get("epoch")),
        state=document.get("state") or "",
        revoking=_read_places(document.get("revoking", ())),
        waiting=_read_places(document.get("waiting", ())),
        protocol=document.get("protocol", CLASSIC),
        regex=document.get("regex"),
    )


def _read_places(places: Iterable[dict[str, Any]]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(each["topic"], each["partition"]) for each in places)


def _read_partition(document: dict[str, Any]) -> PartitionLag:
    return PartitionLag(
        topic=document["topic"],
        partition=document["partition"],
        committed_offset=document["committed_offset"],
        log_start_offset=document["log_start_offset"],
        high_watermark=document["high_watermark"],
        lag=document["lag"],
        lost=document["lost"],
        lag_seconds=document["lag_seconds"],
        headroom_seconds=document["headroom_seconds"],
        is_headroom_low=document["headroom_low"],
        # Brokers of earlier versions do not tell the following.
        growing_seconds=document.get("growing_seconds", 0.0),
        last_stable_offset=document.get("last_stable_offset"),
        pending_offset=document.get("pending_offset"),
        pending_producer_id=document.get("pending_producer_id"),
        in_flight=document.get("in_flight"),
        member_id=document["member"],
    )
