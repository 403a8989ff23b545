"""Incremental fetch sessions (KIP-227): a consumer names its partitions once, and then only what changes.

A session stores what the client wants of each partition and what it was last told. It watches its partitions and tracks
which of them may have something new, so that the cost of a fetch depends on what is new and not on what is watched;
every CHECK_ALL_INTERVAL_S it checks all of them, for changes that watchers are not notified of. Requests of a session
are numbered; one out of order is refused, and the client starts over. The numbers of sessions and of their partitions
are limited: at the limit, the least recently used session is evicted if it was not used for EVICTION_AGE_S. Otherwise a
new client fetches without a session, and an old one that wants to add partitions loses its own. Followers have sessions
too, with other state for each partition; theirs are few, and consumers' sessions are evicted for them.
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
from flowstone.replication.served_partitions import Partitions
from flowstone.replication.waiters import Watcher
from flowstone.wire.messages import FetchRequest, FetchRequestTopic

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
EPOCH_MAX = SESSION_ID_MAX = 2**31 - 1
# A consumer's request evicts only sessions that were unused for this long.
EVICTION_AGE_S = 120.0
# Partitions read for one response of a session; only very large sessions have more with something new.
READ_PARTITIONS_MAX = 5_000
# A client with more partitions than this fetches without a session.
SESSION_PARTITIONS_MAX = 20_000
# How often all partitions are checked: a log's new start, for instance, notifies no watcher.
CHECK_ALL_INTERVAL_S = 10.0
# All sessions together; each remembered partition takes about 400 bytes.
CACHED_PARTITIONS_MAX = 250_000


Key = tuple[str | bytes, int]


class FetchSession:
    """The partitions of one client, and which of them may have something new.

    `session_id` 0 is no session: the object lives for one request, and every partition is answered.
    """

    def __init__(self, session_id: int, uses_topic_ids: bool, reader: Reader = Reader.UNCOMMITTED) -> None:
        self.session_id, self._uses_topic_ids, self.reader = session_id, uses_topic_ids, reader
        self._new_partition = FetchPartition if reader is UNCOMMITTED else PARTITION_TYPES[reader]
        # True for a follower from which consumers read: it gets a new high watermark in an answer of its own.
        self.hurries_high_watermarks = False
        self.next_epoch = INITIAL_EPOCH + 1
        self.is_incremental = False
        self.used_at = 0.0
        self.partitions: dict[Key, FetchPartition] = {}
        # Partitions that may have something new, the last served ones at the end: none starves when a response is full.
        self._unsettled: dict[FetchPartition, None] = {}
        self._waiting: set[Watcher] = set()
        self.checked_all_at = 0.0

    def to_read(self) -> list[FetchPartition]:
        """Return the partitions to read for the next response, at most READ_PARTITIONS_MAX of an incremental one."""
        if self.is_incremental:
            return list(islice(self._unsettled, READ_PARTITIONS_MAX))
        return list(self.partitions.values())

    @property
    def has_more_to_read(self) -> bool:
        """Return whether `to_read` leaves partitions of an incremental session for the next response."""
        return len(self._unsettled) > READ_PARTITIONS_MAX

    def add(self, topics: Iterable[FetchRequestTopic]) -> None:
        for topic in topics:
            name: str | bytes = topic.topic_id if self._uses_topic_ids else topic.topic
            for wanted in topic.partitions:
                known = self.partitions.get((name, wanted.partition))
                if known is None:
                    known = self.partitions[name, wanted.partition] = self._new_partition(topic, wanted)
                else:
                    known.update(wanted)
                self._unsettled[known] = None

    def advance(self, request: FetchRequest) -> None:
        """Apply the changes that an incremental request makes to the session."""
        if request.topics and any((topic.topic == "") != self._uses_topic_ids for topic in request.topics):
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self.add(request.topics)
        for topic in request.forgotten_topics_data:
            name: str | bytes = topic.topic_id if self._uses_topic_ids else topic.topic
            for index in topic.partitions:
                forgotten = self.partitions.pop((name, index), None)
                if forgotten is not None:
                    self._drop(forgotten)
        self.is_incremental = True
        self.next_epoch = 1 if self.next_epoch == EPOCH_MAX else self.next_epoch + 1

    def find(self, wanted: FetchPartition, partitions: Partitions) -> Partition:
        """Return the partition, which a session watches from now on. Raises ApiError if it is not served here."""
        if self._uses_topic_ids:
            partition = partitions.get_by_id(wanted.topic_id, wanted.index)
        else:
            partition = partitions.get(wanted.topic, wanted.index)
        if self.session_id != NO_SESSION:
            wanted.watch(partition, self)
        else:
            wanted.partition = partition
        return partition

    def settled(self, wanted: FetchPartition) -> None:
        """Record that a partition has nothing new; its watcher will notify the session when it has."""
        self._unsettled.pop(wanted, None)

    def unsettled(self, wanted: FetchPartition) -> None:
        """Record that a partition has something new for the next answer."""
        self._unsettled[wanted] = None

    def move_last(self, wanted: FetchPartition) -> None:
        """Move a partition that was just served behind the others, which come first in the next response."""
        if wanted in self._unsettled:
            self._unsettled[wanted] = self._unsettled.pop(wanted)

    def check_all(self) -> None:
        self._unsettled |= dict.fromkeys(self.partitions.values())

    def close(self) -> None:
        """Drop the partitions, stop watching them, and end the parked fetch of the session."""
        for wanted in self.partitions.values():
            self._drop(wanted)
        for watcher in tuple(self._waiting):
            watcher.interrupted()
        # Partitions refer to their session: without this, both would wait for the garbage collector.
        self.partitions, self._unsettled = {}, {}

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
        # Sessions by id, least recently used first.
        self._sessions: dict[int, FetchSession] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest, uses_topic_ids: bool, reader: Reader = Reader.UNCOMMITTED) -> FetchSession:
        """Return the session that a request belongs to. Raises ApiError for the whole response if there is none."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            session = self.begin(request, uses_topic_ids, reader)
            session.add(request.topics)
            return self.enter(session) if session.session_id != NO_SESSION else session
        return self._keep(self._advance(request, reader))

    def begin(self, request: FetchRequest, uses_topic_ids: bool, reader: Reader = Reader.UNCOMMITTED) -> FetchSession:
        """Return a new session without partitions, for `enter`, or one that lasts for this request only."""
        if request.session_id != NO_SESSION:
            self._forget(request.session_id)
        wants_session = request.session_epoch == INITIAL_EPOCH and self._has_capacity(request, reader)
        return FetchSession(self._new_id() if wants_session else NO_SESSION, uses_topic_ids, reader)

    def enter(self, session: FetchSession) -> FetchSession:
        """Store a session that was begun, with the partitions that it has by now."""
        if session.session_id != NO_SESSION:
            self._partition_count += len(session.partitions)
        return self._keep(session)

    def _keep(self, session: FetchSession) -> FetchSession:
        if session.session_id != NO_SESSION:
            session.used_at = now = self._clock.monotonic()
            if now - session.checked_all_at > CHECK_ALL_INTERVAL_S:
                session.checked_all_at = now
                session.check_all()
            self._sessions[session.session_id] = session
        return session

    def _advance(self, request: FetchRequest, reader: Reader) -> FetchSession:
        """Take the session out of the store and apply a request's changes. Raises ApiError if there is none."""
        session = self._sessions.get(request.session_id)
        if session is None or session.reader is not reader:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != session.next_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        known = len(session.partitions)
        if sum(len(topic.partitions) for topic in request.topics) > SESSION_PARTITIONS_MAX:
            self._forget(session.session_id)
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.advance(request)
        self._partition_count += len(session.partitions) - known
        if (
            _has_long_names(request)
            or len(session.partitions) > SESSION_PARTITIONS_MAX
            or self._partition_count > CACHED_PARTITIONS_MAX
        ):
            self._forget(session.session_id)
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return self._sessions.pop(session.session_id)

    def _has_capacity(self, request: FetchRequest, reader: Reader) -> bool:
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
            self._partition_count -= len(forgotten.partitions)
            forgotten.close()

    def _new_id(self) -> int:
        while (session_id := self._random.randint(1, SESSION_ID_MAX)) in self._sessions:
            pass
        return session_id


def _has_long_names(request: FetchRequest) -> bool:
    """Return whether a topic name is too long to exist. Such names are not stored: one may have 32 KiB."""
    return any(len(topic.topic) > TOPIC_NAME_LENGTH_MAX for topic in request.topics)
