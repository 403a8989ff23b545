"""Fetch, versions 4 to 18: returns records from given offsets on, committed ones to consumers and all to followers.

Records leave as slices of log files, by reference. A response has at least one whole batch, however small the limits
are, because otherwise the consumer could never continue. A fetch that finds less than `min_bytes` is parked until there
is more or `max_wait_ms` is over. Headers that are not in the page cache are read by a worker, and the fetch starts
over.

A response has records of at most `unsent.RESPONSE_SLICES_MAX` partitions, because each keeps a file open; the others
come first in the next response.

Consumers read up to the high watermark, or the last stable offset with isolation level read_committed, from the leader
or, since version 11, from followers. A follower uses the high watermark that it knows: an offset between that and its
log's end is OFFSET_NOT_AVAILABLE for now. If brokers have racks, a consumer is sent to the replica in its own rack
(KIP-392). A client that reaches a broker without a replica, or has an old leader epoch, is told who leads (since
version 12, with the address since 16: KIP-951).

Deviations: a replica's id needs its broker's epoch (version 15 and later), or it is refused with
NOT_LEADER_OR_FOLLOWER.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from flowstone.broker.fetching.fetch_access import bytes_max, check_may_read, is_throttled
from flowstone.broker.fetching.fetch_partitions import FetchPartition
from flowstone.broker.fetching.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, FetchSession
from flowstone.broker.fetching.rack_replica import send_to_near_replica
from flowstone.broker.fetching.replica_reads import (
    NO_REPLICA,
    ReplicaReader,
    failed_partition,
    is_urgent,
    refuse_replica,
    replica_reader,
)
from flowstone.broker.loop.cold_reads import COLD_READS_MAX, warm
from flowstone.broker.loop.time_slices import TimeSlices, batched
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.parked import FETCH_WAIT_MS_MAX, ParkedFetch, Watched
from flowstone.broker.requests.partition_lookup import as_seen_by_the_cluster, node_endpoints, partition_state
from flowstone.broker.requests.permissions import CLUSTER_ACTION
from flowstone.broker.topics.topic_slices import split_topics
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.partition_log import AbortedTransaction
from flowstone.log.segments.cached_reads import NotCached
from flowstone.promise import Promise
from flowstone.replication.partition import Partition
from flowstone.replication.readers import COMMITTED, Reader, consumer
from flowstone.wire.messages import (
    FetchRequest,
    FetchResponse,
    FetchResponseAbortedTransaction,
    FetchResponseLeader,
    FetchResponseNodeEndpoint,
    FetchResponsePartition,
    FetchResponseTopic,
)

FIRST_VERSION_WITH_ZSTD = 10
FIRST_VERSION_FROM_FOLLOWERS = 11
FIRST_VERSION_WITH_LEADERS = 12
FIRST_VERSION_WITH_TOPIC_IDS = 13
FIRST_VERSION_WITH_ENDPOINTS = 16
# Of a request that names more, the loop serves others in between.
PARTITIONS_AT_ONCE = 1_000

# With these a client should look for another leader, or learn of a new epoch.
_LED_BY_ANOTHER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

Answer = FetchResponse | asyncio.Future[FetchResponse] | Promise[FetchResponse] | Coroutine[Any, Any, FetchResponse]
# By name or id: a topic of the response, and its list of partitions.
_Topics = dict[str | bytes, tuple[FetchResponseTopic, list[FetchResponsePartition]]]


def handle(services: Services, context: RequestContext, request: FetchRequest) -> Answer:
    uses_topic_ids = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    replica = None
    state = request.replica_state
    if request.replica_id >= 0 or (state is not None and state.replica_id >= 0):
        if services.access is not None and not services.access.check(context.session, CLUSTER_ACTION):
            return refuse_replica(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        replica = replica_reader(services, request)
        if replica is None:
            return refuse_replica(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    try:
        reader = consumer(request.isolation_level) if replica is None else Reader.REPLICA
        session = services.fetch_sessions.open(request, uses_topic_ids, reader)
    except ApiError as error:
        return FetchResponse(error_code=error.code)
    fetch = _Fetch(services, context, request, session, replica)
    try:
        fetch.read()
    except NotCached as cold:
        return asyncio.ensure_future(fetch.read_cold(cold))
    # Parked whatever the limit: a refused follower would ask again at once, and there are few of them.
    waiting = services.waiting
    if fetch.is_satisfied or (replica is None and not waiting.may_park_fetch(fetch.own_partitions)):
        return fetch.respond()
    return fetch.park()


def handle_large(services: Services, context: RequestContext, request: FetchRequest) -> Answer:
    """Handle a request that may name many partitions, in several time slices."""
    element_count = len(request.topics) + sum(len(topic.partitions) for topic in request.topics)
    state = request.replica_state
    is_replicas = request.replica_id >= 0 or (state is not None and state.replica_id >= 0)
    if is_replicas or request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH) or element_count <= PARTITIONS_AT_ONCE:
        return handle(services, context, request)
    return _fetch_in_slices(services, context, request)


async def _fetch_in_slices(services: Services, context: RequestContext, request: FetchRequest) -> FetchResponse:
    """Handle a fetch that names many partitions, in time slices.

    If there is nothing to read, one with a session waits for it; one without is too large for that, and waits for its
    time to be over.
    """
    slices = TimeSlices(services.clock.monotonic)
    sessions = services.fetch_sessions
    uses_topic_ids = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    session = sessions.begin(request, uses_topic_ids, consumer(request.isolation_level))
    for part in split_topics(request.topics, "partitions"):
        session.add(part.topics)
        await slices.yield_if_due()
    fetch = _Fetch(services, context, request, sessions.enter(session), None)
    await fetch.read_in_slices(slices)
    if not fetch.is_satisfied and services.waiting.may_park_fetch(0):
        if session.session_id != NO_SESSION:
            return await fetch.park()
        await services.clock.sleep(min(request.max_wait_ms, FETCH_WAIT_MS_MAX) / 1000)
        await fetch.read_in_slices(slices)
    return await fetch.respond_in_slices(slices)


class _Fetch:
    def __init__(
        self,
        services: Services,
        context: RequestContext,
        request: FetchRequest,
        session: FetchSession,
        replica: ReplicaReader | None,
    ) -> None:
        """Create a fetch of the session's partitions; `replica` is given if a follower sent the request."""
        self._services, self._request, self._session, self._replica = services, request, session, replica
        self._version = version = context.api_version
        self._client, self._access = context.session, services.access if replica is None else None
        self._is_limited = replica is None and services.quotas.is_active
        self._bytes_max = min(request.max_bytes, services.config.fetch_max_bytes)
        if self._is_limited:
            self._bytes_max = bytes_max(services, context.session, self._bytes_max)
        self._uses_topic_ids = version >= FIRST_VERSION_WITH_TOPIC_IDS
        self._knows_zstd = version >= FIRST_VERSION_WITH_ZSTD
        self._rack = ""
        if services.config.replica_selector_class:
            self._rack = request.rack_id
            session.hurries_high_watermarks = replica is not None
        self._results: list[tuple[FetchPartition, FetchResponsePartition]] = []
        self._watched: list[Partition] = []
        self._size_bytes = 0
        self._is_urgent = False
        self._leaders: list[int] = []
        self._reading: Partition | None = None
        # How many partitions only this request remembers: none if they are a session's.
        self.own_partitions = len(session.partitions) if session.session_id == NO_SESSION else 0

    @property
    def is_satisfied(self) -> bool:
        request, session = self._request, self._session
        return (
            self._size_bytes >= request.min_bytes
            or request.max_wait_ms <= 0
            or self._is_urgent
            or not session.partitions
            or (session.is_incremental and session.has_more_to_read)
        )

    def read(self) -> None:
        """Read once every partition that may have something new. After NotCached it must be called again."""
        self._results, self._watched, self._leaders, self._size_bytes, self._is_urgent = [], [], [], 0, False
        self._read(self._session.to_read(), self._bytes_max, self._services.unsent.response_slices_max)

    async def read_in_slices(self, slices: TimeSlices) -> None:
        """Read every partition in several time slices; a worker reads what the page cache does not have."""
        for _ in range(COLD_READS_MAX):
            self._results, self._watched, self._leaders, self._size_bytes, self._is_urgent = [], [], [], 0, False
            left_bytes, left_slices = self._bytes_max, self._services.unsent.response_slices_max
            try:
                for some in batched(self._session.to_read()):
                    left_bytes, left_slices = self._read(some, left_bytes, left_slices)
                    await slices.yield_if_due()
                return
            except NotCached as cold:
                assert self._reading is not None
                await warm(self._services.workers, self._reading, cold)

    def _read(self, some: Iterable[FetchPartition], left_bytes: int, left_slices: int) -> tuple[int, int]:
        """Read some partitions; return the bytes and the number of partitions with records that are left for the
        others.
        """
        session = self._session
        for wanted in some:
            try:
                if self._access is not None:
                    check_may_read(self._services.metadata.image, self._access, self._client, wanted)
                partition = wanted.partition
                if partition is None or partition.local.closed_with is not None:
                    partition = session.find(wanted, self._services.partitions)
                self._watched.append(partition)
                if session.is_incremental and wanted.knows_all_of(partition):
                    session.settled(wanted)
                    continue
                result = self._read_partition(partition, wanted, left_bytes)
            except ApiError as error:
                result = self._refuse(wanted, error)
            assert result.records is not None
            size_bytes = len(result.records)
            self._size_bytes += size_bytes
            left_slices -= size_bytes > 0
            left_bytes = max(0, left_bytes - size_bytes) if left_slices else 0
            self._results.append((wanted, result))
        return left_bytes, left_slices

    async def read_cold(self, cold: NotCached) -> FetchResponse:
        """Read with the help of a worker, and return the response without parking: readers of old data do not wait."""
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
        watched: Sequence[Watched] = [self._session]
        if self._session.session_id == NO_SESSION:
            watched = [each.local.watchers(self._session.reader) for each in self._watched]
        return ParkedFetch(
            self._services.waiting,
            watched,
            missing_bytes,
            request.max_wait_ms,
            self._read_again,
            self.own_partitions,
        )

    def _read_again(self) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        try:
            self.read()
        except NotCached as cold:
            return self.read_cold(cold)
        return self.respond()

    def respond(self) -> FetchResponse:
        """Return the response; in a session it has only the partitions with something new."""
        if self._is_limited and is_throttled(self._services, self._client, self._size_bytes):
            return FetchResponse(session_id=self._session.session_id)
        topics: _Topics = {}
        self._tell(self._results, topics)
        response = FetchResponse(session_id=self._session.session_id, responses=[topic for topic, _ in topics.values()])
        if self._leaders:
            self._tell_leaders(response)
        return response

    async def respond_in_slices(self, slices: TimeSlices) -> FetchResponse:
        """Return the response, made in several time slices."""
        if self._is_limited and is_throttled(self._services, self._client, self._size_bytes):
            return FetchResponse(session_id=self._session.session_id)
        topics: _Topics = {}
        for some in batched(self._results):
            self._tell(some, topics)
            await slices.yield_if_due()
        response = FetchResponse(session_id=self._session.session_id, responses=[topic for topic, _ in topics.values()])
        if self._leaders:
            self._tell_leaders(response)
        return response

    def _tell(self, results: Iterable[tuple[FetchPartition, FetchResponsePartition]], topics: _Topics) -> None:
        """Add to `topics` the results that the client does not have yet."""
        session = self._session
        for wanted, result in results:
            is_told = (
                session.is_incremental
                and not result.records
                and not result.error_code
                and result.diverging_epoch is None
                and result.preferred_read_replica == NO_REPLICA
                and result.high_watermark == wanted.told_high_watermark
                and result.last_stable_offset == wanted.told_last_stable_offset
                and result.log_start_offset == wanted.told_log_start_offset
            )
            if is_told:
                continue
            wanted.told_high_watermark = result.high_watermark
            wanted.told_last_stable_offset = result.last_stable_offset
            wanted.told_log_start_offset = result.log_start_offset
            key = wanted.topic_id if self._uses_topic_ids else wanted.topic
            if key not in topics:
                told: list[FetchResponsePartition] = []
                topics[key] = FetchResponseTopic(topic=wanted.topic, topic_id=wanted.topic_id, partitions=told), told
            topics[key][1].append(result)
            if result.records:
                if session.session_id != NO_SESSION:
                    session.move_last(wanted)
                if self._replica is None:
                    assert wanted.partition is not None
                    name = wanted.partition.topic_partition.topic
                    self._services.metrics.topic(name).fetched_bytes += len(result.records)

    def _tell_leaders(self, response: FetchResponse) -> None:
        if self._version >= FIRST_VERSION_WITH_ENDPOINTS:
            response.node_endpoints = [
                FetchResponseNodeEndpoint(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
                for each in node_endpoints(self._services.metadata.image, self._leaders, self._client.listener_name)
            ]

    def _refuse(self, wanted: FetchPartition, error: ApiError) -> FetchResponsePartition:
        self._is_urgent = True
        image = self._services.metadata.image
        topic = image.topics_by_id.get(wanted.topic_id) if self._uses_topic_ids else image.topics.get(wanted.topic)
        if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            error = as_seen_by_the_cluster(error, topic, wanted.index)
        result = failed_partition(wanted.index, error.code)
        if error.code in _LED_BY_ANOTHER and self._version >= FIRST_VERSION_WITH_LEADERS:
            state = partition_state(image, wanted.topic, wanted.topic_id, wanted.index)
            if state is not None:
                result.current_leader = FetchResponseLeader(leader_id=state.leader, leader_epoch=state.leader_epoch)
                self._leaders.append(state.leader)
        return result

    def _read_partition(self, partition: Partition, wanted: FetchPartition, left_bytes: int) -> FetchResponsePartition:
        if self._replica is not None:
            self._reading = partition
            max_bytes = min(wanted.max_bytes, left_bytes)
            result = self._replica.read(partition, wanted, max_bytes, at_least_one=not self._size_bytes)
            self._is_urgent |= is_urgent(wanted, result)
            if self._session.hurries_high_watermarks and result.high_watermark != wanted.told_high_watermark:
                self._is_urgent = True
            return result
        if wanted.current_leader_epoch not in (-1, partition.leader_epoch):
            partition.check_epoch(wanted.current_leader_epoch)
        if not partition.is_leader:
            self._check_follower(partition, wanted.fetch_offset)
        if not self._knows_zstd and partition.log.config.compression_type == "zstd":
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if self._rack:
            near = self._near_replica(partition, wanted)
            if near is not None:
                self._is_urgent = True
                return near
        local, reader = partition.local, wanted.reader
        high_watermark = local.high_watermark.offset
        last_stable_offset = partition.log.last_stable_offset(high_watermark)
        end_offset = last_stable_offset if reader is COMMITTED else high_watermark  # see `LocalReplica.visible_end`
        aborted: list[FetchResponseAbortedTransaction] | None = [] if reader is COMMITTED else None
        if wanted.fetch_offset == end_offset:  # as in most partitions of most fetches
            if local.fault is not None or local.closed_with is not None:
                local.check_serving()
            records = None
        else:
            self._reading = partition
            max_bytes = min(wanted.max_bytes, left_bytes)
            try:
                records = local.read(wanted.fetch_offset, max_bytes, end_offset, at_least_one=not self._size_bytes)
                if reader is COMMITTED and records is not None:
                    aborted = _aborted(local.aborted_transactions(wanted.fetch_offset, end_offset, records))
            except ApiError as error:
                raise _trusted(error, partition) from error
        return FetchResponsePartition(
            partition_index=wanted.index,
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=aborted,
            records=records if records is not None else b"",
        )

    def _check_follower(self, partition: Partition, fetch_offset: int) -> None:
        if self._version < FIRST_VERSION_FROM_FOLLOWERS:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if partition.high_watermark.offset < fetch_offset <= partition.log.log_end_offset:
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)

    def _near_replica(self, partition: Partition, wanted: FetchPartition) -> FetchResponsePartition | None:
        image = self._services.metadata.image
        return send_to_near_replica(image, partition, self._rack, wanted.fetch_offset, self._client.listener_name)


def _aborted(transactions: Iterable[AbortedTransaction]) -> list[FetchResponseAbortedTransaction]:
    return [FetchResponseAbortedTransaction(producer_id=each, first_offset=first) for each, first in transactions]


def _trusted(error: ApiError, partition: Partition) -> ApiError:
    """Return the error, made retriable if this leader may have been replaced.

    Such a leader does not know where the log ends, and a client that believed it would reset its position.
    """
    if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and partition.is_leader and not partition.holds_lease:
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return error
