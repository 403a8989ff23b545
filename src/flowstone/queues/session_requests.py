"""The share session with one leader as requests and responses, without a connection.

A session begins with epoch 0 and all partitions; each further request carries the next epoch and what has changed; -1
ends it. Requests with epoch 0 carry no acknowledgements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from flowstone.queues.held_tasks import AckRange, Place
from flowstone.types import Bytes
from flowstone.wire.messages import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeRequestAcknowledgementBatch,
    ShareAcknowledgeRequestPartition,
    ShareAcknowledgeRequestTopic,
    ShareFetchRequest,
    ShareFetchRequestAcknowledgementBatch,
    ShareFetchRequestForgottenTopic,
    ShareFetchRequestPartition,
    ShareFetchRequestTopic,
    ShareFetchResponseAcquiredRecords,
)
from flowstone.wire.record_batch import (
    CONTROL_FLAG,
    HEADER_BYTES,
    CorruptBatch,
    Record,
    checksum_matches,
    decode_records,
    parse_header,
)

FETCH_BYTES_MAX = 8 << 20
RECORD_LIMIT = 1  # the acquire mode in which a reply has no more records than were asked for
FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1

Acks = Mapping[Place, list[AckRange]]


class Acquired(NamedTuple):
    """A record that was acquired, or None in place of one that does not exist, and the number of its deliveries."""

    offset: int
    record: Record | None
    attempt: int


class SessionRequests:
    def __init__(self, group: str, member_id: str) -> None:
        self._group, self._member_id = group, member_id
        self.epoch = 0
        self.partitions: frozenset[Place] = frozenset()  # those that the broker knows of

    @property
    def is_open(self) -> bool:
        return self.epoch > 0

    def restart(self) -> None:
        """Open a new session with the next request, because the broker no longer has this one."""
        self.epoch, self.partitions = 0, frozenset()

    def succeeded(self) -> None:
        """Move to the next epoch, after a response without an error for the whole request."""
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def fetch(self, wanted: frozenset[Place], acks: Acks, max_wait_ms: int, records_max: int) -> ShareFetchRequest:
        """Return the request for at most `records_max` records of the wanted partitions."""
        assert self.is_open or not acks
        assert all(place in self.partitions for place in acks)
        named = (wanted - self.partitions) | acks.keys()
        forgotten = self.partitions - wanted
        self.partitions = wanted
        return ShareFetchRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=self.epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            max_records=records_max,
            batch_size=records_max,
            share_acquire_mode=RECORD_LIMIT,
            topics=[
                ShareFetchRequestTopic(
                    topic_id=topic_id,
                    partitions=[
                        ShareFetchRequestPartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                ShareFetchRequestAcknowledgementBatch(
                                    first_offset=each.first_offset,
                                    last_offset=each.last_offset,
                                    acknowledge_types=[each.outcome],
                                )
                                for each in acks.get((topic_id, index), ())
                            ],
                        )
                        for index in indexes
                    ],
                )
                for topic_id, indexes in _by_topic(named)
            ],
            forgotten_topics_data=[
                ShareFetchRequestForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in _by_topic(forgotten)
            ],
        )

    def acknowledge(self, acks: Acks, *, is_renewal: bool, is_last: bool = False) -> ShareAcknowledgeRequest:
        assert self.is_open
        return ShareAcknowledgeRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=FINAL_EPOCH if is_last else self.epoch,
            is_renew_ack=is_renewal,
            topics=[
                ShareAcknowledgeRequestTopic(
                    topic_id=topic_id,
                    partitions=[
                        ShareAcknowledgeRequestPartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                ShareAcknowledgeRequestAcknowledgementBatch(
                                    first_offset=each.first_offset,
                                    last_offset=each.last_offset,
                                    acknowledge_types=[each.outcome],
                                )
                                for each in acks[topic_id, index]
                            ],
                        )
                        for index in indexes
                    ],
                )
                for topic_id, indexes in _by_topic(acks)
            ],
        )


def acquired_records(data: Bytes, ranges: Iterable[ShareFetchResponseAcquiredRecords]) -> Iterator[Acquired]:
    """Yield each offset that was acquired, in order, with its record. Raises CorruptBatch if a batch is damaged."""
    records = {record.offset: record for record in _records(data)} if data else {}
    for each in ranges:
        for offset in range(each.first_offset, each.last_offset + 1):
            yield Acquired(offset, records.get(offset), each.delivery_count)


def _records(data: Bytes) -> Iterator[Record]:
    view, at = memoryview(data), 0
    while len(view) - at >= HEADER_BYTES:
        header = parse_header(view, at)
        if at + header.size_bytes > len(view):
            return
        if not checksum_matches(view, at, header):
            raise CorruptBatch(f"the batch at offset {header.base_offset} does not match its checksum")
        if not header.attributes & CONTROL_FLAG:
            yield from decode_records(view, at)
        at += header.size_bytes


def _by_topic(places: Iterable[Place]) -> list[tuple[bytes, list[int]]]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(places):
        topics.setdefault(topic_id, []).append(index)
    return list(topics.items())
