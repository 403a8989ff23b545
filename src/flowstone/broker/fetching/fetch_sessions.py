"""Incremental fetch sessions (KIP-227): a consumer names its partitions once, then only what changes.

A session remembers what the client wants of each partition and what it was last told of it. It watches its partitions
and knows which of them may have something new, so that a fetch costs what is new and not what is watched; now and then
it looks at all of them, for what no watcher is told of. Requests of a session are numbered; one out of turn is refused
and the client starts over. The number of sessions is limited, and so is that of partitions they remember: when no room
is left, the one unused for longest goes, but only after a while; until then a new client fetches without a session, and
an old one that wants to remember more loses its own. Followers have sessions too, with other things to know of their
partitions; theirs are few, and consumers make room for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from random import Random

from flowstone.broker.clustering.catch_up_throttle import CatchUpRate
from flowstone.broker.fetching.fetch_partitions import PARTITION_TYPES, FetchPartition
from flowstone.cluster.decisions.topic_names import TOPIC_NAME_LENGTH_MAX
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import Clock
from flowstone.replication.partition import Partition
from flowstone.replication.readers import UNCOMMITTED, Reader
from flowstone.replication.waiters import Watcher
from flowstone.wire.messages import FetchRequest, FetchRequestTopic

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
EPOCH_MAX = SESSION_ID_MAX = 2**31 - 1
# A session younger than this is not evicted for another.
EVICTION_AGE_S = 120.0
# Read for one response of a session: more have news at once only in very large ones.
READ_PARTITIONS_MAX = 5_000
# A client with more partitions than this fetches without a session.
SESSION_PARTITIONS_MAX = 20_000
# A log's new start, for instance, wakes no watcher.
LOOK_AT_ALL_INTERVAL_S = 10.0
# All sessions together; each remembered partition takes about 400 bytes.
CACHED_PARTITIONS_MAX = 250_000


Key = tuple[str | bytes, int]


class FetchSession:
    """`session_id` 0 is no session: it lives for one request, and every partition is answered."""

    def __init__(self, session_id: int, uses_topic_ids: bool, reader: Reader = Reader.UNCOMMITTED) -> None:
        self.session_id, self._uses_topic_ids, self.reader = session_id, uses_topic_ids, reader
        self._new_partition = FetchPartition if reader is UNCOMMITTED else PARTITION_TYPES[reader]
        # Of a follower from which consumers read.
        self.hurries_high_watermarks = False
        self.next_epoch = INITIAL_EPOCH + 1
        self.is_incremental = False
        self.used_at = 0.0
        self._partitions: dict[Key, FetchPartition] = {}
        # Those that may have something new, the ones served last at the end: none starves when a response is full.
        self._unsettled: dict[FetchPartition, None] = {}
        self._waiting: set[Watcher] = set()
        self.looked_at_all_at = 0.0

    @property
    def partitions(self) -> Iterable[FetchPartition]:
        return self._partitions.values()

    def to_read(self) -> list[FetchPartition]:
        """The partitions that a response may have to tell of; of an incremental one so many, the others next time."""
        if self.is_incremental:
            return list(islice(self._unsettled, READ_PARTITIONS_MAX))
        return list(self._partitions.values())

    @property
    def has_more_to_read(self) -> bool:
        """Whether `to_read` leaves some for the next time."""
        return self.is_incremental and len(self._unsettled) > READ_PARTITIONS_MAX

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, topics: Iterable[FetchRequestTopic]) -> None:
        for topic in topics:
            name: str | bytes = topic.topic_id if self._uses_topic_ids else topic.topic
            for wanted in topic.partitions:
                known = self._partitions.get((name, wanted.partition))
                if known is None:
                    known = self._partitions[name, wanted.partition] = self._new_partition(topic, wanted)
                else:
                    known.update(wanted)
                self._unsettled[known] = None

    def advance(self, request: FetchRequest) -> None:
        """Takes over what an incremental request changes."""
        if request.topics and any((topic.topic == "") != self._uses_topic_ids for topic in request.topics):
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self.add(request.topics)
        for topic in request.forgotten_topics_data:
            name: str | bytes = topic.topic_id if self._uses_topic_ids else topic.topic
            for index in topic.partitions:
                forgotten = self._partitions.pop((name, index), None)
                if forgotten is not None:
                    self._drop(forgotten)
        self.is_incremental = True
        self.next_epoch = 1 if self.next_epoch == EPOCH_MAX else self.next_epoch + 1

    def found(self, wanted: FetchPartition, partition: Partition) -> None:
        if self.session_id != NO_SESSION:
            wanted.watch(partition, self)
        else:
            wanted.partition = partition

    def settled(self, wanted: FetchPartition) -> None:
        """It has nothing new, and will be heard of when it has."""
        self._unsettled.pop(wanted, None)

    def unsettled(self, wanted: FetchPartition) -> None:
        """It has something new to tell, whenever the next answer leaves."""
        self._unsettled[wanted] = None

    def move_last(self, wanted: FetchPartition) -> None:
        """Served just now: the others come first next time."""
        if wanted in self._unsettled:
            self._unsettled[wanted] = self._unsettled.pop(wanted)

    def look_at_all(self) -> None:
        self._unsettled |= dict.fromkeys(self._partitions.values())

    def close(self) -> None:
        """Forgets its partitions, and they it; whoever waits is not left to wait."""
        for wanted in self._partitions.values():
            self._drop(wanted)
        for watcher in tuple(self._waiting):
            watcher.interrupted()
        # Each partition knows its session: cleared, both go at once and do not wait for the garbage collector.
        self._partitions, self._unsettled = {}, {}

    def _drop(self, wanted: FetchPartition) -> None:
        self._unsettled.pop(wanted, None)
        wanted.unwatch()

    # A parked fetch watches its session, which watches the partitions

    def watch(self, watcher: Watcher) -> None:
        self._waiting.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._waiting.discard(watcher)

    def advanced(self, wanted: FetchPartition, size_bytes: int) -> None:
        self._unsettled[wanted] = None
        for watcher in tuple(self._waiting):
            watcher.advanced(size_bytes)

    def interrupted(self, wanted: FetchPartition) -> None:
        self._unsettled[wanted] = None
        for watcher in tuple(self._waiting):
            watcher.interrupted()


class FetchSessions:
    def __init__(self, clock: Clock, slots: int, random: Random) -> None:
        self._clock, self._slots, self._random = clock, slots, random
        self.catch_up_rate = CatchUpRate()
        # In the order of use.
        self._sessions: dict[int, FetchSession] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest, uses_topic_ids: bool, reader: Reader = Reader.UNCOMMITTED) -> FetchSession:
        """The session that a request belongs to. ApiError for the whole response if there is none."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            session = self.begin(request, uses_topic_ids, reader)
            session.add(request.topics)
            return self.enter(session) if session.session_id != NO_SESSION else session
        return self._keep(self._advance(request, reader))

    def begin(self, request: FetchRequest, uses_topic_ids: bool, reader: Reader = Reader.UNCOMMITTED) -> FetchSession:
        """A new session without partitions, or one that lasts for this request only; `enter` it when it has them."""
        if request.session_id != NO_SESSION:
            self._forget(request.session_id)
        wants_session = request.session_epoch == INITIAL_EPOCH and self._has_room(request, reader)
        return FetchSession(self._new_id() if wants_session else NO_SESSION, uses_topic_ids, reader)

    def enter(self, session: FetchSession) -> FetchSession:
        """Keeps a session that was begun."""
        if session.session_id != NO_SESSION:
            self._partition_count += len(session)
        return self._keep(session)

    def _keep(self, session: FetchSession) -> FetchSession:
        if session.session_id != NO_SESSION:
            session.used_at = now = self._clock.monotonic()
            if now - session.looked_at_all_at > LOOK_AT_ALL_INTERVAL_S:
                session.looked_at_all_at = now
                session.look_at_all()
            self._sessions[session.session_id] = session
        return session

    def _advance(self, request: FetchRequest, reader: Reader) -> FetchSession:
        """Take the session out, with what the request changes. A session is of one kind of reader for all its life."""
        session = self._sessions.get(request.session_id)
        if session is None or session.reader is not reader:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != session.next_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        known = len(session)
        if sum(len(topic.partitions) for topic in request.topics) > SESSION_PARTITIONS_MAX:
            self._forget(session.session_id)
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.advance(request)
        self._partition_count += len(session) - known
        if (
            _has_long_names(request)
            or len(session) > SESSION_PARTITIONS_MAX
            or self._partition_count > CACHED_PARTITIONS_MAX
        ):
            self._forget(session.session_id)
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return self._sessions.pop(session.session_id)

    def _has_room(self, request: FetchRequest, reader: Reader) -> bool:
        is_replicas = reader is Reader.REPLICA
        wanted = sum(len(topic.partitions) for topic in request.topics)
        if wanted > SESSION_PARTITIONS_MAX or _has_long_names(request):
            return False
        while len(self._sessions) >= self._slots or self._partition_count + wanted > CACHED_PARTITIONS_MAX:
            oldest = next(
                (each for each in self._sessions.values() if not is_replicas or each.reader is not reader), None
            )
            if oldest is None:
                return False
            if not is_replicas and self._clock.monotonic() - oldest.used_at < EVICTION_AGE_S:
                return False
            self._forget(oldest.session_id)
        return True

    def _forget(self, session_id: int) -> None:
        forgotten = self._sessions.pop(session_id, None)
        if forgotten is not None:
            self._partition_count -= len(forgotten)
            forgotten.close()

    def _new_id(self) -> int:
        while (session_id := self._random.randint(1, SESSION_ID_MAX)) in self._sessions:
            pass
        return session_id


def _has_long_names(request: FetchRequest) -> bool:
    """Return whether a topic is named that cannot exist. Such a name is not worth remembering: it may have 32 KiB."""
    return any(len(topic.topic) > TOPIC_NAME_LENGTH_MAX for topic in request.topics)
