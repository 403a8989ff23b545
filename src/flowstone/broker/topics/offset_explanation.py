"""The explanation of an offset: where it is stored, who wrote it, which groups have read it, and when it expires.

Reads like any request: bytes that are not in the page cache are read by a worker, which also decompresses batches.
"""

from __future__ import annotations

from functools import partial
from heapq import merge
from typing import Any

from flowstone.broker.lag.group_survey import GroupSurvey
from flowstone.broker.lag.headroom import headroom_s
from flowstone.broker.lag.next_unread import unread_segment
from flowstone.broker.loop.cold_reads import read_when_cached
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import Services
from flowstone.cluster.image.ids import id_text
from flowstone.config import LONG_MAX
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.partition.timestamps import first_record_at
from flowstone.log.segments.cached_reads import LogSlice
from flowstone.log.segments.segment import Segment
from flowstone.replication.partition import Partition
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import NO_SEQUENCE, SEQUENCE_MAX, BatchHeader

_TIMESTAMP_MIN = -(2**63)

Document = dict[str, Any]


class Explaining:
    def __init__(self, services: Services, survey: GroupSurvey) -> None:
        self._services, self._survey = services, survey

    async def explain(self, where: TopicPartition, offset: int) -> Document:
        """Return the document about an offset. Raises ApiError if it does not exist or its partition is offline."""
        partition = self._services.partitions.get(*where)
        partition.local.check_serving()
        log = partition.log
        _check_there(log, offset)
        segment, position, header = await read_when_cached(
            self._services.workers, partition, partial(_locate, log, offset)
        )
        batch = LogSlice(segment.log.get(), position, header.size_bytes)
        record = await self._services.workers.read(lambda: first_record_at(batch.read(), _TIMESTAMP_MIN, offset))
        is_there = record is not None and record[0] == offset
        return {
            "topic": where.topic,
            "topic_id": id_text(partition.topic_id),
            "partition": where.partition,
            "offset": offset,
            "is_compacted_away": not is_there,
            "timestamp_ms": record[1] if record is not None and is_there else None,
            "timestamp_type": "LogAppendTime" if header.uses_log_append_time else "CreateTime",
            "segment": _segment(log, segment, position),
            "batch": _batch(header),
            "producer": _producer(header, offset),
            "branched_from": _branched_from(log, offset),
            "durability": self._durability(partition, offset),
            "transaction": await self._transaction(partition, header, offset),
            "groups": await self._groups(where, offset),
            "retention": await self._retention(partition, offset),
            "compaction": _compaction(log, segment, header, offset),
        }

    def _durability(self, partition: Partition, offset: int) -> Document:
        placed = self._services.metadata.image.partition(partition.topic_partition)
        return {
            "is_flushed": offset < partition.log.recovery_point,
            "flushed_offset": partition.log.recovery_point,
            "is_committed": offset < partition.high_watermark.offset,
            "high_watermark": partition.high_watermark.offset,
            "replicas": list(placed.replicas) if placed is not None else [],
            "in_sync_replicas": list(placed.isr) if placed is not None else [],
        }

    async def _transaction(self, partition: Partition, header: BatchHeader, offset: int) -> Document:
        """Return whether read_committed consumers see the record, and which open transaction prevents it."""
        log = partition.log
        stable_offset = partition.last_stable_offset
        is_aborted, held_by = False, None
        if offset < stable_offset and header.is_transactional and not header.is_control:
            until = min(header.next_offset, stable_offset)
            aborted = await read_when_cached(
                self._services.workers, partition, partial(log.aborted_transactions, header.base_offset, until)
            )
            is_aborted = header.producer_id in {each.producer_id for each in aborted}
        elif stable_offset <= offset < partition.high_watermark.offset:
            held_by = await self._open_transaction(partition, stable_offset)
        return {
            "is_visible": offset < stable_offset and not is_aborted and not header.is_control,
            "is_aborted": is_aborted,
            "last_stable_offset": stable_offset,
            "held_by": held_by,
        }

    async def _open_transaction(self, partition: Partition, stable_offset: int) -> Document | None:
        """Return the earliest open transaction, or None if only the commit of a marker is awaited."""
        log = partition.log
        oldest = next(iter(log.producers.open_transactions()), None)
        if oldest is None:
            return None
        first_offset = max(oldest.first_offset, log.log_start_offset)
        if first_offset > stable_offset:
            return None  # an earlier one is decided, and its marker is not committed yet
        _, _, header = await read_when_cached(self._services.workers, partition, partial(_locate, log, first_offset))
        return {
            "producer_id": oldest.producer_id,
            "producer_epoch": oldest.epoch,
            "first_offset": oldest.first_offset,
            "since_ms": header.base_timestamp,
            **await self._transactional_id(oldest.producer_id),
        }

    async def _transactional_id(self, producer_id: int) -> Document:
        """Return the producer's transactional id and whether a coordinator will end its transaction; nulls if unknown.

        A transaction that is open in a partition, and not at its coordinator, hangs.
        """
        try:
            found = await self._services.transactions.find_by_producer(producer_id)
        except ApiError:  # not all coordinators can be asked
            return {"transactional_id": None, "is_hanging": None}
        if found is None:
            return {"transactional_id": None, "is_hanging": True}
        return {"transactional_id": found.transactional_id, "is_hanging": not found.is_open}

    async def _groups(self, where: TopicPartition, offset: int) -> list[Document]:
        slices = TimeSlices(self._services.clock.monotonic)
        calls = self._services.groups.request_each(lambda shard, now_ms, token: shard.offsets_in(now_ms, token, where))
        parts: list[list[tuple[str, int]]] = []
        for token in [token async for token in slices.over(calls)]:
            try:
                parts.append(sorted((await token).items()))
            except ApiError:  # still loading, or its log is offline: the other coordinators' groups are shown
                continue
            await slices.yield_if_due()
        return [
            {"group": group_id, "committed_offset": committed, "has_passed": committed > offset}
            async for group_id, committed in slices.over(merge(*parts))
        ]

    async def _retention(self, partition: Partition, offset: int) -> Document:
        """Return when retention may delete the segment, at the log's present growth; nulls if it never does."""
        config, now_ms = partition.log.config, self._services.clock.time_ms()
        rate = self._survey.lags.append_rate(partition.log)
        segment = await unread_segment(self._services.workers, partition, offset, rate, now_ms)
        left_s = headroom_s(segment, config, rate, now_ms)
        return {
            "retention_ms": config.retention_ms,
            "retention_bytes": config.retention_bytes,
            "seconds_left": round(left_s, 3) if left_s is not None else None,
            "growing_seconds": round(segment.growing_s, 3) if left_s else 0.0,
            "deleted_at_ms": now_ms + round(left_s * 1000) if left_s is not None else None,
        }


def _check_there(log: PartitionLog, offset: int) -> None:
    if offset < log.log_start_offset:
        reason = f"begins at offset {log.log_start_offset}: offset {offset} was deleted"
    elif offset >= log.log_end_offset:
        reason = f"ends before offset {log.log_end_offset}: offset {offset} was not written yet"
    else:
        return
    raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{log.topic_partition} {reason}")


def _locate(log: PartitionLog, offset: int) -> tuple[Segment, int, BatchHeader]:
    """Return the segment, position and header of the batch that holds the offset, or of the first one after it.

    Raises NotCached if the bytes must be read by a worker.
    """
    segment, position, _batch_bytes = log.segments.locate(offset)
    return segment, position, segment.header_at(position)


def _segment(log: PartitionLog, segment: Segment, position: int) -> Document:
    return {
        "file": segment.log.path,
        "base_offset": segment.base_offset,
        "size_bytes": segment.size_bytes,
        "position": position,
        "is_active": segment is log.segments.active,
    }


def _batch(header: BatchHeader) -> Document:
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "size_bytes": header.size_bytes,
        "record_count": header.record_count,
        "compression": header.codec.name.lower(),
        "leader_epoch": header.partition_leader_epoch,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
    }


def _producer(header: BatchHeader, offset: int) -> Document | None:
    """Return the producer's id, epoch and sequence number, or None for a producer without idempotence."""
    if header.producer_id < 0:
        return None
    sequence = header.base_sequence
    if sequence != NO_SEQUENCE:
        sequence = (sequence + offset - header.base_offset) & SEQUENCE_MAX
    return {"producer_id": header.producer_id, "producer_epoch": header.producer_epoch, "sequence": sequence}


def _branched_from(log: PartitionLog, offset: int) -> Document | None:
    point = log.branch_point
    if point is None or offset >= point.offset:
        return None
    return {"topic": point.source_topic, "topic_id": id_text(point.source_topic_id), "at_offset": point.offset}


def _compaction(log: PartitionLog, segment: Segment, header: BatchHeader, offset: int) -> Document | None:
    """Return how far compaction is and when it may remove the record, or None if the topic is not compacted."""
    config = log.config
    if "compact" not in config.cleanup_policy:
        return None
    sealed = log.segments[:-1]
    sealed_bytes = sum(each.size_bytes for each in sealed)
    dirty_bytes = sum(each.size_bytes for each in sealed if each.base_offset >= log.first_dirty_offset)
    not_after_ms = None
    if config.max_compaction_lag_ms < LONG_MAX and header.max_timestamp >= 0:
        not_after_ms = header.max_timestamp + config.max_compaction_lag_ms
    return {
        "is_compacted": offset < log.first_dirty_offset,
        "is_in_active_segment": segment is log.segments.active,
        "not_before_ms": max(header.max_timestamp, 0) + config.min_compaction_lag_ms,
        "not_after_ms": not_after_ms,
        "dirty_ratio": round(dirty_bytes / sealed_bytes, 3) if sealed_bytes else 0.0,
        "min_cleanable_dirty_ratio": config.min_cleanable_dirty_ratio,
        "delete_horizon_ms": header.base_timestamp if header.has_delete_horizon else None,
    }
