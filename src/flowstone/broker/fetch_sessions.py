"""Incremental fetch sessions (KIP-227): a consumer names its partitions once, then only what changes.

A session remembers what the client wants of each partition and what it was last told of it. Requests of a session are
numbered; one out of turn is refused and the client starts over. The number of sessions is limited, and so is that of
partitions they remember: when no room is left, the one unused for longest goes, but only after a while; until then a
new client fetches without a session, and an old one that wants to remember more loses its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import Clock
from flowstone.replication.partition import Partition
from flowstone.wire.messages import FetchRequest, FetchRequestPartition, FetchRequestTopic

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
EPOCH_MAX = SESSION_ID_MAX = 2**31 - 1
# A session younger than this is not evicted for another.
EVICTION_AGE_S = 120.0
# A client with more partitions than this fetches without a session.
SESSION_PARTITIONS_MAX = 20_000
# All sessions together; each remembered partition takes about 300 bytes.
CACHED_PARTITIONS_MAX = 250_000


class FetchPartition:
    """What a client wants of one partition, and what it was last told."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "max_bytes",
        "partition",
        "told_high_watermark",
        "told_log_start_offset",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: FetchRequestTopic, wanted: FetchRequestPartition) -> None:
        self.topic, self.topic_id, self.index = topic.topic, topic.topic_id, wanted.partition
        self.told_high_watermark = self.told_log_start_offset = -1
        # Found with the first read; looked for again once it is closed.
        self.partition: Partition | None = None
        self.update(wanted)

    def knows_all_of(self, partition: Partition) -> bool:
        """Whether there is nothing to read and nothing to tell, as for most partitions of a large session."""
        return (
            self.fetch_offset == self.told_high_watermark == partition.high_watermark.offset
            and self.told_log_start_offset == partition.log.log_start_offset
            and self.current_leader_epoch in (-1, partition.leader_epoch)
            and partition.fault is None
        )

    def update(self, wanted: FetchRequestPartition) -> None:
        self.fetch_offset = wanted.fetch_offset
        self.max_bytes = wanted.partition_max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch


Key = tuple[str | bytes, int]


class FetchSession:
    """`session_id` 0 is no session: it lives for one request, and every partition is answered."""

    def __init__(self, session_id: int, uses_topic_ids: bool) -> None:
        self.session_id, self._uses_topic_ids = session_id, uses_topic_ids
        self.next_epoch = INITIAL_EPOCH + 1
        self.is_incremental = False
        self.used_at = 0.0
        self._partitions: dict[Key, FetchPartition] = {}

    @property
    def partitions(self) -> Iterable[FetchPartition]:
        return self._partitions.values()

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, topics: Iterable[FetchRequestTopic]) -> None:
        for topic in topics:
            name: str | bytes = topic.topic_id if self._uses_topic_ids else topic.topic
            for wanted in topic.partitions:
                known = self._partitions.get((name, wanted.partition))
                if known is None:
                    self._partitions[name, wanted.partition] = FetchPartition(topic, wanted)
                else:
                    known.update(wanted)

    def advance(self, request: FetchRequest) -> None:
        """Takes over what an incremental request changes."""
        if any((topic.topic == "") != self._uses_topic_ids for topic in request.topics):
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self.add(request.topics)
        for topic in request.forgotten_topics_data:
            name: str | bytes = topic.topic_id if self._uses_topic_ids else topic.topic
            for index in topic.partitions:
                self._partitions.pop((name, index), None)
        self.is_incremental = True
        self.next_epoch = 1 if self.next_epoch == EPOCH_MAX else self.next_epoch + 1

    def move_last(self, partition: FetchPartition) -> None:
        """Served just now: the others come first next time, so that none starves when a response is full."""
        key = (partition.topic_id if self._uses_topic_ids else partition.topic, partition.index)
        if key in self._partitions:
            self._partitions[key] = self._partitions.pop(key)


class FetchSessions:
    def __init__(self, clock: Clock, slots: int, random: Random) -> None:
        self._clock, self._slots, self._random = clock, slots, random
        # In the order of use.
        self._sessions: dict[int, FetchSession] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest, uses_topic_ids: bool) -> FetchSession:
        """The session that a request belongs to. ApiError for the whole response if there is none."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._forget(request.session_id)
            wants_session = request.session_epoch == INITIAL_EPOCH and self._has_room(request)
            session = FetchSession(self._new_id() if wants_session else NO_SESSION, uses_topic_ids)
            session.add(request.topics)
            if wants_session:
                self._partition_count += len(session)
        else:
            session = self._advance(request)
        if session.session_id != NO_SESSION:
            session.used_at = self._clock.monotonic()
            self._sessions[session.session_id] = session
        return session

    def _advance(self, request: FetchRequest) -> FetchSession:
        """Takes the session out, with what the request changes."""
        session = self._sessions.get(request.session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != session.next_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        known = len(session)
        session.advance(request)
        self._partition_count += len(session) - known
        if len(session) > SESSION_PARTITIONS_MAX or self._partition_count > CACHED_PARTITIONS_MAX:
            self._forget(session.session_id)
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return self._sessions.pop(session.session_id)

    def _has_room(self, request: FetchRequest) -> bool:
        wanted = sum(len(topic.partitions) for topic in request.topics)
        if wanted > SESSION_PARTITIONS_MAX:
            return False
        while len(self._sessions) >= self._slots or self._partition_count + wanted > CACHED_PARTITIONS_MAX:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or self._clock.monotonic() - oldest.used_at < EVICTION_AGE_S:
                return False
            self._forget(oldest.session_id)
        return True

    def _forget(self, session_id: int) -> None:
        forgotten = self._sessions.pop(session_id, None)
        if forgotten is not None:
            self._partition_count -= len(forgotten)

    def _new_id(self) -> int:
        while (session_id := self._random.randint(1, SESSION_ID_MAX)) in self._sessions:
            pass
        return session_id
