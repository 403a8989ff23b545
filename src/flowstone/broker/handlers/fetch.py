"""Fetch, versions 4 to 18: committed records from the offsets a consumer asks for.

Records leave as slices of log files, by reference. A response has at least one whole batch, however small the limits,
or the consumer would be stuck for good. A fetch that finds less than `min_bytes` is parked until there is more or
`max_wait_ms` is over. Headers that are not in the page cache are read by a worker, and the fetch starts over.

An answer has records of so many partitions at most (`unsent.RESPONSE_SLICES_MAX`), for each holds a file open; those
left out come first in the next one.

Deviations: `replica_id` is refused (NOT_LEADER_OR_FOLLOWER) as long as there are no followers. Both isolation levels
read the same, since there are no transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from flowstone.broker.cold import COLD_READS_MAX, warm
from flowstone.broker.context import RequestContext, Services
from flowstone.broker.fetch_sessions import NO_SESSION, FetchPartition, FetchSession
from flowstone.broker.waiting import ParkedFetch
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.reading import NotCached
from flowstone.promise import Promise
from flowstone.replication.partition import Partition
from flowstone.wire.messages import FetchRequest, FetchResponse, FetchResponsePartition, FetchResponseTopic

FIRST_VERSION_WITH_TOPIC_IDS = 13
FIRST_VERSION_WITH_ZSTD = 10
READ_COMMITTED = 1

Answer = FetchResponse | asyncio.Future[FetchResponse] | Promise[FetchResponse]


def handle(services: Services, context: RequestContext, request: FetchRequest) -> Answer:
    uses_topic_ids = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    try:
        session = services.fetch_sessions.open(request, uses_topic_ids)
    except ApiError as error:
        return FetchResponse(error_code=error.code)
    fetch = _Fetch(services, request, session, context.api_version)
    try:
        fetch.read()
    except NotCached as cold:
        return asyncio.ensure_future(fetch.read_cold(cold))
    if fetch.is_satisfied or services.waiting.is_full_of_fetches:
        return fetch.respond()
    return fetch.park()


class _Fetch:
    def __init__(self, services: Services, request: FetchRequest, session: FetchSession, version: int) -> None:
        self._services, self._request, self._session = services, request, session
        self._uses_topic_ids = version >= FIRST_VERSION_WITH_TOPIC_IDS
        self._knows_zstd = version >= FIRST_VERSION_WITH_ZSTD
        state = request.replica_state
        self._is_replica = request.replica_id >= 0 or (state is not None and state.replica_id >= 0)
        self._results: list[tuple[FetchPartition, FetchResponsePartition]] = []
        self._watched: list[Partition] = []
        self._size_bytes = 0
        self._has_error = False
        self._reading: Partition | None = None

    @property
    def is_satisfied(self) -> bool:
        request = self._request
        return (
            self._size_bytes >= request.min_bytes
            or request.max_wait_ms <= 0
            or self._has_error
            or not len(self._session)
        )

    def read(self) -> None:
        """Reads every partition that may have something new, once. NotCached leaves it to be called again."""
        self._results, self._watched, self._size_bytes, self._has_error = [], [], 0, False
        left_bytes = min(self._request.max_bytes, self._services.config.fetch_max_bytes)
        left_slices = self._services.unsent.response_slices_max
        session = self._session
        for wanted in session.to_read():
            try:
                partition = wanted.partition
                if partition is None or partition.is_closed:
                    partition = self._find(wanted)
                    session.found(wanted, partition)
                self._watched.append(partition)
                if session.is_incremental and wanted.knows_all_of(partition):
                    session.settled(wanted)
                    continue
                result = self._read_partition(partition, wanted, left_bytes)
            except ApiError as error:
                result = FetchResponsePartition(
                    partition_index=wanted.index, error_code=error.code, high_watermark=-1, records=b""
                )
                self._has_error = True
            assert result.records is not None
            size_bytes = len(result.records)
            self._size_bytes += size_bytes
            left_slices -= size_bytes > 0
            left_bytes = max(0, left_bytes - size_bytes) if left_slices else 0
            self._results.append((wanted, result))

    async def read_cold(self, cold: NotCached) -> FetchResponse:
        """Reads with the help of a worker and answers with what there is: whoever reads old data does not wait."""
        for _ in range(COLD_READS_MAX):
            assert self._reading is not None
            await warm(self._services.workers, self._reading, cold)
            try:
                self.read()
                break
            except NotCached as again:
                cold = again
        return self.respond()

    def park(self) -> Promise[FetchResponse]:
        request = self._request
        missing_bytes = request.min_bytes - self._size_bytes
        watched = [self._session] if self._session.session_id != NO_SESSION else self._watched
        return ParkedFetch(self._services.waiting, watched, missing_bytes, request.max_wait_ms, self._read_again)

    def _read_again(self) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        try:
            self.read()
        except NotCached as cold:
            return self.read_cold(cold)
        return self.respond()

    def respond(self) -> FetchResponse:
        """The response; of a session's partitions only those with something new."""
        session = self._session
        topics: dict[str | bytes, tuple[FetchPartition, list[FetchResponsePartition]]] = {}
        for wanted, result in self._results:
            is_told = (
                session.is_incremental
                and not result.records
                and not result.error_code
                and result.high_watermark == wanted.told_high_watermark
                and result.log_start_offset == wanted.told_log_start_offset
            )
            if is_told:
                continue
            wanted.told_high_watermark = result.high_watermark
            wanted.told_log_start_offset = result.log_start_offset
            key = wanted.topic_id if self._uses_topic_ids else wanted.topic
            topics.setdefault(key, (wanted, []))[1].append(result)
            if result.records:
                session.move_last(wanted)
                self._count_fetched(wanted, len(result.records))
        responses = [
            FetchResponseTopic(topic=first.topic, topic_id=first.topic_id, partitions=partitions)
            for first, partitions in topics.values()
        ]
        return FetchResponse(session_id=session.session_id, responses=responses)

    def _count_fetched(self, wanted: FetchPartition, size_bytes: int) -> None:
        services = self._services
        name = services.partitions.topic_name(wanted.topic_id) if self._uses_topic_ids else wanted.topic
        if name is not None:  # deleted since it was read
            services.metrics.topic(name).fetched_bytes += size_bytes

    def _find(self, wanted: FetchPartition) -> Partition:
        partitions = self._services.partitions
        if self._uses_topic_ids:
            return partitions.get_by_id(wanted.topic_id, wanted.index)
        return partitions.get(wanted.topic, wanted.index)

    def _read_partition(self, partition: Partition, wanted: FetchPartition, left_bytes: int) -> FetchResponsePartition:
        if self._is_replica:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition.check_epoch(wanted.current_leader_epoch)
        if not self._knows_zstd and partition.log.config.compression_type == "zstd":
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        high_watermark = partition.high_watermark.offset
        if wanted.fetch_offset == high_watermark:  # as in most partitions of most fetches
            partition.check_serving()
            records = None
        else:
            self._reading = partition
            max_bytes = min(wanted.max_bytes, left_bytes)
            records = partition.read(wanted.fetch_offset, max_bytes, at_least_one=not self._size_bytes)
        return FetchResponsePartition(
            partition_index=wanted.index,
            high_watermark=high_watermark,
            last_stable_offset=high_watermark,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=[] if self._request.isolation_level == READ_COMMITTED else None,
            records=records if records is not None else b"",
        )
