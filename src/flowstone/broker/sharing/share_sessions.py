"""Share sessions: what each member of a share group fetches from this broker, bound to the member's connection.

Epoch 0 opens a session, each request carries the next epoch, and -1 closes the session. When a session is closed or its
connection is lost, the records that its member has acquired are released. A member that opens its session again keeps
them: it may still acknowledge them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from flowstone.broker.requests.session import ClientSession
from flowstone.errors import ApiError, ErrorCode
from flowstone.promise import Promise

OPENING_EPOCH, CLOSING_EPOCH = 0, -1
EPOCH_MAX = (1 << 31) - 1
# Partitions of one session. Kafka has no limit.
SESSION_PARTITIONS_MAX = 10_000


class Place(NamedTuple):
    """A partition by its topic's id."""

    topic_id: bytes
    partition: int


class MemberKey(NamedTuple):
    group_id: str
    member_id: str


class ShareSession:
    __slots__ = ("connection", "epoch", "key", "parked", "places")

    def __init__(self, key: MemberKey, connection: ClientSession) -> None:
        self.key, self.connection = key, connection
        self.epoch = 1  # of the next request
        # In the order in which they are read: one with records goes to the end.
        self.places: dict[Place, None] = {}
        self.parked: Promise[object] | None = None

    def add(self, places: Iterable[Place]) -> None:
        """Add partitions. Raises ApiError if there are too many."""
        for place in places:
            self.places.setdefault(place)
        if len(self.places) > SESSION_PARTITIONS_MAX:
            message = f"A share session has at most {SESSION_PARTITIONS_MAX} partitions."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)

    def move_last(self, place: Place) -> None:
        if place in self.places:
            del self.places[place]
            self.places[place] = None


class ShareSessions:
    def __init__(self, on_closed: Callable[[ShareSession], None]) -> None:
        """`on_closed` releases what the member of a closed session has acquired."""
        self._on_closed = on_closed
        self._sessions: dict[MemberKey, ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ShareSession]:
        return iter(self._sessions.values())

    def find(self, key: MemberKey) -> ShareSession | None:
        return self._sessions.get(key)

    def check(self, key: MemberKey) -> None:
        """Raise ApiError if the member has no session."""
        if key not in self._sessions:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND, "The share session does not exist.")

    def open(self, key: MemberKey, connection: ClientSession, sessions_max: int) -> ShareSession:
        """Open a member's session, replacing an old one. Raises ApiError if there are too many."""
        known = self._sessions.get(key)
        if known is None and len(self._sessions) >= sessions_max:
            message = f"There are {sessions_max} share sessions, as group.share.max.share.sessions allows."
            raise ApiError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, message)
        session = ShareSession(key, connection)
        self._sessions[key] = session
        if known is None or known.connection is not connection:
            connection.when_closed(lambda: self._connection_closed(key, connection))
        return session

    def use(self, key: MemberKey, epoch: int, connection: ClientSession) -> ShareSession:
        """Return the session for a request with an epoch, and expect the next one. Raises ApiError."""
        session = self._sessions.get(key)
        if session is None:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND, "The share session does not exist: open it with epoch 0.")
        if epoch != session.epoch:
            message = f"The share session's epoch is {session.epoch}, the request has {epoch}."
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, message)
        session.epoch = 1 if epoch >= EPOCH_MAX else epoch + 1
        if session.connection is not connection:
            session.connection = connection
            connection.when_closed(lambda: self._connection_closed(key, connection))
        return session

    def close(self, key: MemberKey) -> None:
        """Close a member's session, and release what the member has acquired. Raises ApiError if there is none."""
        session = self._sessions.pop(key, None)
        if session is None:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND, "The share session does not exist.")
        self._end(session)

    def _connection_closed(self, key: MemberKey, connection: ClientSession) -> None:
        session = self._sessions.get(key)
        if session is not None and session.connection is connection:
            del self._sessions[key]
            self._end(session)

    def _end(self, session: ShareSession) -> None:
        parked, session.parked = session.parked, None
        if parked is not None:
            parked.cancel()
        self._on_closed(session)
