"""An in-memory stand-in for ZooKeeper: for the brokers of one process, in one event loop or one each.

Every broker has a connection of its own to the ensemble. A membership ends when it is given up, or when it was not
renewed for the session timeout: that is checked whenever a broker renews, joins or lists the members, by that broker's
clock. So clocks that are moved must be moved together.

`cut` and `heal` make a broker unreachable and reachable again: meanwhile it hears nothing, its renewals fail and its
appends wait. `deliver` (see `memory_log`) delays what a broker says and hears.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from flowstone.cluster.image.ids import IdSource, id_text, random_id
from flowstone.cluster.logs.consensus import Member
from flowstone.cluster.logs.memory_log import Deliver, MemoryLog, SharedLog, straight
from flowstone.errors import StartupError
from flowstone.ports.clock import Clock

# Kafka's default for brokers.
SESSION_TIMEOUT_S = 18.0


@dataclass(slots=True)
class _Session:
    member: Member
    directory_id: str
    renewed_s: float


class MemoryEnsemble:
    def __init__(self, session_timeout_s: float = SESSION_TIMEOUT_S, new_id: IdSource = random_id) -> None:
        self.session_timeout_s = session_timeout_s
        self.log = SharedLog()
        self._new_id = new_id
        self._lock = threading.Lock()
        self._sessions: list[_Session] = []  # the senior first
        self._membership_changes = 0
        self._ties: list[MemoryConsensus] = []

    def tie(
        self, clock: Clock, loop: asyncio.AbstractEventLoop | None = None, deliver: Deliver = straight
    ) -> MemoryConsensus:
        """Return one broker's connection. Without a `loop` all brokers are in one."""
        tie = MemoryConsensus(self, clock, loop, deliver)
        with self._lock:
            self._ties.append(tie)
        return tie

    def cut(self, node_id: int) -> None:
        """Make a broker unreachable. May be called from any thread; takes effect on the broker's loop."""
        for tie in self._ties_of(node_id):
            tie.on_loop(tie.cut)

    def heal(self, node_id: int) -> None:
        for tie in self._ties_of(node_id):
            tie.on_loop(tie.heal)

    def prolong(self, node_ids: Collection[int], seconds: float) -> None:
        """Count the memberships of these brokers as renewed this much later: their clocks are about to jump."""
        with self._lock:
            for session in self._sessions:
                if session.member.node_id in node_ids:
                    session.renewed_s += seconds

    # Called by the connections

    def members(self, now_s: float) -> tuple[int, tuple[Member, ...]]:
        """Return how often the membership has changed, and the members, the senior first."""
        with self._lock:
            has_changed = self._expire(now_s)
            answer = self._membership_changes, tuple(session.member for session in self._sessions)
        if has_changed:
            self._tell()
        return answer

    def join(self, node_id: int, directory_id: str, now_s: float) -> str:
        member = Member(node_id, id_text(self._new_id()))
        with self._lock:
            self._expire(now_s)
            former = next((each for each in self._sessions if each.member.node_id == node_id), None)
            if former is not None and former.directory_id != directory_id:
                raise StartupError(f"another broker, of another data directory, has the node id {node_id}")
            if former is not None:
                self._sessions.remove(former)
            self._sessions.append(_Session(member, directory_id, now_s))
            self._membership_changes += 1
        self._tell()
        return member.incarnation

    def renew(self, member: Member, now_s: float) -> bool:
        with self._lock:
            has_changed = self._expire(now_s)
            session = next((each for each in self._sessions if each.member == member), None)
            if session is not None:
                session.renewed_s = max(session.renewed_s, now_s)
        if has_changed:
            self._tell()
        return session is not None

    def leave(self, member: Member) -> None:
        with self._lock:
            self._sessions = [each for each in self._sessions if each.member != member]
            self._membership_changes += 1
        self._tell()

    def untie(self, tie: MemoryConsensus) -> None:
        with self._lock:
            if tie in self._ties:
                self._ties.remove(tie)

    def _expire(self, now_s: float) -> bool:
        alive = [each for each in self._sessions if now_s - each.renewed_s < self.session_timeout_s]
        has_changed = len(alive) < len(self._sessions)
        self._membership_changes += has_changed
        self._sessions = alive
        return has_changed

    def _tell(self) -> None:
        with self._lock:
            news = self._membership_changes, tuple(session.member for session in self._sessions)
            ties = list(self._ties)
        for tie in ties:
            tie.on_loop(partial(tie.deliver, partial(tie.hear, *news)))

    def _ties_of(self, node_id: int) -> list[MemoryConsensus]:
        with self._lock:
            return [tie for tie in self._ties if tie.node_id == node_id]


class MemoryConsensus:
    def __init__(
        self, ensemble: MemoryEnsemble, clock: Clock, loop: asyncio.AbstractEventLoop | None, deliver: Deliver
    ) -> None:
        self._ensemble, self._clock, self._loop = ensemble, clock, loop
        self.deliver = deliver
        self.log = MemoryLog(ensemble.log, loop, deliver)
        self.node_id: int | None = None
        self._member: Member | None = None
        self._membership_changes, self._members = 0, tuple[Member, ...]()
        self._listeners: list[Callable[[], None]] = []
        self._is_aborted = False
        self._reachable = asyncio.Event()
        self._reachable.set()

    @property
    def session_timeout_s(self) -> float:
        return self._ensemble.session_timeout_s

    @property
    def members(self) -> Sequence[Member]:
        if self._reachable.is_set() and not self._is_aborted:
            self._ensemble.members(self._clock.monotonic())  # so that listeners are told of memberships that have ended
        return self._members

    def on_members(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def look(self) -> Sequence[Member]:
        await self._reachable.wait()
        return self._ensemble.members(self._clock.monotonic())[1]

    async def join(self, node_id: int, directory_id: str) -> str:
        self.node_id = node_id
        await self._reachable.wait()
        incarnation = self._ensemble.join(node_id, directory_id, self._clock.monotonic())
        self._member = Member(node_id, incarnation)
        return incarnation

    async def renew(self) -> bool:
        if self._member is None or self._is_aborted:
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.deliver(partial(self._ask, self._member, answer))
        return await answer

    async def leave(self) -> None:
        if self._member is not None and self._reachable.is_set():
            self._ensemble.leave(self._member)
        self._member = None
        self._ensemble.untie(self)

    def abort(self) -> None:
        self._is_aborted = True
        self._ensemble.untie(self)
        self.log.abort()

    # Called by the ensemble, on this broker's loop

    def on_loop(self, callback: Callable[[], None]) -> None:
        """Call back on the broker's loop. May be called from any thread."""
        self.log.on_loop(callback)

    def cut(self) -> None:
        self._reachable.clear()
        self.log.cut()

    def heal(self) -> None:
        self._reachable.set()
        self.hear(*self._ensemble.members(self._clock.monotonic()))
        self.log.heal()

    def hear(self, changes: int, members: tuple[Member, ...]) -> None:
        """Store the list of members after `changes` changes, unless this broker has a newer list."""
        if changes <= self._membership_changes or not self._reachable.is_set() or self._is_aborted:
            return
        self._membership_changes = changes
        if members != self._members:
            self._members = members
            for listener in self._listeners:
                listener()

    # A renewal's way there and back

    def _ask(self, member: Member, answer: asyncio.Future[bool]) -> None:
        is_member = self._reachable.is_set() and self._ensemble.renew(member, self._clock.monotonic())
        self.deliver(partial(self._answer, answer, is_member))

    def _answer(self, answer: asyncio.Future[bool], is_member: bool) -> None:
        if not answer.done():
            answer.set_result(is_member and self._reachable.is_set() and not self._is_aborted)
