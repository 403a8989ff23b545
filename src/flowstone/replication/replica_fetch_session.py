"""A follower's fetch requests to one leader, and the handling of the responses. Pure: time and messages come in.

The rules:

- The offset a follower fetches from is its durable position (D5): it is sent only after everything below it is flushed
  here. So a round ends when its records are durable, and only then is the next request sent.
- All partitions followed at one leader go into one request, in an incremental session (KIP-227): a request names those
  whose position, leader epoch or state has changed, and thousands that are idle cost nothing. A partition whose replica
  is not in sync is named in each request: the leader may have forgotten its position, or know it from an earlier life
  only.
- A partition that must wait (an error, a throttle) is removed from the session meanwhile, or the leader would answer
  for it at once, again and again. The delay grows with each error; a new decision of the cluster ends it.
- An answer counts only for a partition that is still where it was when it was asked for: the same leader epoch, the
  same position. Anything else is fetched again.
- If the logs diverge the leader says so instead of sending records (`diverging_epoch`, KIP-320): the follower drops
  what lies beyond and fetches again. If it fetches what the leader has deleted it starts over at the leader's log
  start; an offset beyond the leader's end is a divergence too.
- A request also names where the follower's log starts: a DeleteRecords request waits for it.
- A follower that is not in the ISR catches up no faster than `follower.replication.throttled.rate`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import NamedTuple

from flowstone.errors import ApiError, ErrorCode
from flowstone.replication.fetch_error_log import FetchErrorLog
from flowstone.replication.followed_partition import FollowedPartition, Key, ask_for, forget, key_of
from flowstone.replication.partition import Partition
from flowstone.replication.state import DivergingEpoch
from flowstone.replication.throttle import Throttle
from flowstone.wire.messages import (
    FetchRequest,
    FetchRequestReplicaState,
    FetchResponse,
    FetchResponsePartition,
)

logger = logging.getLogger(__name__)

FETCH_BYTES_MIN = 1
# The delays after a partition's first error, and at most; a leader that has not learned its role yet soon will.
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 1.0

NO_SESSION, INITIAL_EPOCH, EPOCH_MAX = 0, 0, 2**31 - 1


class Limits(NamedTuple):
    """The limits of one request, from the broker's settings."""

    max_wait_ms: int
    response_max_bytes: int
    partition_max_bytes: int


class DueCut(NamedTuple):
    """A log that must drop what its leader does not have, or everything, before its next fetch."""

    partition: Partition
    # Where it diverges from the leader's, or
    diverging: DivergingEpoch | None = None
    # where it starts over.
    restart_offset: int | None = None


class ReplicaFetchSession:
    """The partitions followed at one leader, and the incremental fetch session with it."""

    def __init__(self, node_id: int, limits: Limits, throttle: Throttle) -> None:
        self._node_id, self._limits, self._throttle = node_id, limits, throttle
        self._followed: dict[Key, FollowedPartition] = {}
        # Partitions that the next request must name; the leader knows the state of the others.
        self._changed: dict[Key, FollowedPartition] = {}
        self._out_of_sync: dict[Key, FollowedPartition] = {}
        self._waiting: dict[Key, FollowedPartition] = {}
        self._forgotten: dict[Key, None] = {}
        self._session_id, self._session_epoch = NO_SESSION, INITIAL_EPOCH
        self._refusals = FetchErrorLog()

    def __len__(self) -> int:
        return len(self._followed)

    def __iter__(self) -> Iterator[Partition]:
        return (followed.partition for followed in self._followed.values())

    def add(self, partition: Partition) -> bool:
        """Follow the partition, or reset its delay after a new decision; return whether its leader is new."""
        known = self._followed.get(key_of(partition))
        self.remove(partition)
        followed = FollowedPartition(partition)
        self._followed[followed.key] = self._changed[followed.key] = followed
        if self._node_id not in partition.isr:
            self._out_of_sync[followed.key] = followed
        return known is None or known.asked[0] != partition.leader_epoch

    def remove(self, partition: Partition) -> None:
        key = key_of(partition)
        followed = self._followed.pop(key, None)
        if followed is not None:
            for those in (self._changed, self._out_of_sync, self._waiting):
                those.pop(key, None)
            self._forget(followed)

    def disconnected(self) -> None:
        """Record that the connection was lost: the next request asks for a new session."""
        self._start_over()

    # Asking

    def waits_until_s(self, now_s: float) -> float:
        """Return the time of the next fetch: a past time if one is due now, infinity if nothing is followed."""
        if len(self._waiting) < len(self._followed):
            return -math.inf
        return min((followed.waits_until_s for followed in self._waiting.values()), default=math.inf)

    def unflushed(self) -> list[Partition]:
        """Return partitions not to be fetched yet: a former leader may have records that are not on disk."""
        named = self._followed if self._session_epoch == INITIAL_EPOCH else self._changed | self._out_of_sync
        partitions = (followed.partition for followed in named.values())
        return [
            each for each in partitions if each.local.position.offset < each.log.log_end_offset and each.fault is None
        ]

    def request(self, broker_epoch: int, now_s: float) -> FetchRequest:
        """Return the next request; pass its response to `answered`, or its loss to `disconnected`."""
        self._end_waits(now_s)
        is_full = self._session_epoch == INITIAL_EPOCH
        wanted = self._followed if is_full else self._changed | self._out_of_sync
        named = [each for each in wanted.values() if self._may_ask(each, now_s)]
        self._changed = {}
        for followed in named:
            self._forgotten.pop(followed.key, None)
        request = FetchRequest(
            replica_state=FetchRequestReplicaState(replica_id=self._node_id, replica_epoch=broker_epoch),
            max_wait_ms=self._max_wait_ms(now_s),
            min_bytes=FETCH_BYTES_MIN,
            max_bytes=self._limits.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=ask_for(named, self._limits.partition_max_bytes),
            forgotten_topics_data=[] if is_full else forget(self._forgotten),
        )
        self._forgotten = {}
        return request

    def _max_wait_ms(self, now_s: float) -> int:
        """Return how long the leader may wait: not beyond the time when another partition's delay is over."""
        next_s = min((followed.waits_until_s for followed in self._waiting.values()), default=math.inf)
        limit_ms = self._limits.max_wait_ms
        return limit_ms if next_s == math.inf else min(limit_ms, math.ceil((next_s - now_s) * 1000))

    def _may_ask(self, followed: FollowedPartition, now_s: float) -> bool:
        if followed.waits_until_s > now_s:
            return False
        if self._throttle.free_at_s > now_s and self._node_id not in followed.partition.isr:
            self._wait(followed, self._throttle.free_at_s)
            return False
        return True

    def _end_waits(self, now_s: float) -> None:
        over = [followed for followed in self._waiting.values() if followed.waits_until_s <= now_s]
        for followed in over:
            del self._waiting[followed.key]
            self._changed[followed.key] = followed

    def _wait(self, followed: FollowedPartition, until_s: float) -> None:
        followed.waits_until_s = until_s
        self._waiting[followed.key] = followed
        self._changed.pop(followed.key, None)
        self._forget(followed)

    def _forget(self, followed: FollowedPartition) -> None:
        if followed.is_in_session:
            followed.is_in_session = False
            self._forgotten[followed.key] = None

    def _start_over(self) -> None:
        self._session_epoch = INITIAL_EPOCH
        self._forgotten = {}
        for followed in self._followed.values():
            followed.is_in_session = False

    # The answer

    def answered(self, response: FetchResponse, now_s: float) -> list[DueCut]:
        """Apply a response; return the logs that must be cut.

        Raises ApiError if the leader refused the request as a whole: the session starts over.
        """
        if response.error_code:
            self._start_over()
            raise ApiError(_error_code(response.error_code), "the leader refused a fetch")
        self._session_id = response.session_id
        if self._session_id == NO_SESSION:
            self._start_over()
        else:
            self._session_epoch = 1 if self._session_epoch == EPOCH_MAX else self._session_epoch + 1
        due = []
        for topic in response.responses:
            for result in topic.partitions:
                followed = self._followed.get((topic.topic_id, result.partition_index))
                if followed is not None and followed.key not in self._waiting:
                    cut = self._take(followed, result, now_s)
                    if cut is not None:
                        due.append(cut)
        self._refusals.report(now_s)
        return due

    def failed(self, partition: Partition, now_s: float) -> None:
        """Record that a partition's log could not be cut."""
        followed = self._followed.get(key_of(partition))
        if followed is not None and followed.partition is partition:
            self._back_off(followed, now_s)

    def _take(self, followed: FollowedPartition, result: FetchResponsePartition, now_s: float) -> DueCut | None:
        partition = followed.partition
        self._changed[followed.key] = followed
        if followed.asked != (partition.leader_epoch, partition.log.log_end_offset):
            return None
        if result.error_code:
            return self._refused(followed, result, now_s)
        if result.diverging_epoch is not None and result.diverging_epoch.epoch >= 0:
            diverging = DivergingEpoch(result.diverging_epoch.epoch, result.diverging_epoch.end_offset)
            return DueCut(partition, diverging=diverging)
        records, log_start_offset = result.records or b"", partition.log.log_start_offset
        assert isinstance(records, bytes | memoryview)
        try:
            follower = partition.follower_role(followed.asked[0])
            follower.append_fetched(records, result.high_watermark, result.log_start_offset)
        except ApiError as error:
            if not followed.failures:
                told = "partition %s: what the leader sent was not taken: %s"
                logger.warning(told, partition.topic_partition, error)
            self._back_off(followed, now_s)
            return None
        followed.failures = 0
        if not records:
            # otherwise the leader should learn the log's new start
            if partition.log.log_start_offset == log_start_offset:
                del self._changed[followed.key]
        elif self._node_id not in partition.isr:
            self._throttle.spend(len(records), now_s)
        return None

    def _refused(self, followed: FollowedPartition, result: FetchResponsePartition, now_s: float) -> DueCut | None:
        partition, log = followed.partition, followed.partition.log
        has_nothing_of_it = log.log_start_offset == log.log_end_offset or result.log_start_offset > log.log_end_offset
        if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and result.log_start_offset >= 0 and has_nothing_of_it:
            return DueCut(partition, restart_offset=result.log_start_offset)
        self._refusals.add(result.error_code, partition.topic_partition)
        self._back_off(followed, now_s)
        return None

    def _back_off(self, followed: FollowedPartition, now_s: float) -> None:
        self._wait(followed, now_s + min(BACKOFF_FIRST_S * 2**followed.failures, BACKOFF_MAX_S))
        followed.failures += 1


def _error_code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
