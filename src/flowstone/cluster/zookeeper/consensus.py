"""A broker's consensus in ZooKeeper: membership, and the metadata log over the same session.

A member has two ephemeral nodes. The one of its node id keeps others from it, tells its incarnation, and is as old as
the membership, which defines the order of seniority. The other is named by the incarnation alone, and is written to
when the membership is renewed. A write is needed because a read is answered by the one server this broker is connected
to, which may be cut off and not know yet that the others have ended the session. A write needs a majority, and fails
after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import WatchedEvent

from flowstone.cluster.image.ids import id_text, random_id
from flowstone.cluster.logs.consensus import Member
from flowstone.cluster.logs.local_copy import LocalCopy
from flowstone.cluster.zookeeper.client import LOST, SessionState, ZooKeeperClient, succeeded
from flowstone.cluster.zookeeper.ensemble_login import NO_LOGIN, EnsembleLogin
from flowstone.cluster.zookeeper.log import ZooKeeperLog
from flowstone.cluster.zookeeper.nodes import MEMBERS, SESSIONS, decode_member, encode_member
from flowstone.errors import ApiError, ErrorCode, StartupError, StorageFault
from flowstone.ports.clock import Clock, done_within

JOIN_PAUSE_S = 0.1
# How long a broker that stops tries to tell ZooKeeper: if it cannot, its membership expires by itself.
LEAVE_TIMEOUT_S = 2.0
# How long a start waits for the session of another data directory with its node id; longer than any should last.
HOLDER_WAIT_S = 60.0
# Renewals seen meanwhile, as proof that the other broker is alive. One alone may have been in flight when it died.
RENEWALS_OF_A_LIVE_HOLDER = 2

logger = logging.getLogger(__name__)


class ZooKeeperConsensus:
    def __init__(
        self,
        connect: str,
        session_timeout_s: float,
        copy: LocalCopy,
        clock: Clock,
        login: EnsembleLogin = NO_LOGIN,
        **log_options: int,
    ) -> None:
        """Create the consensus. `connect` is as Kafka's zookeeper.connect: HOST:PORT,HOST:PORT/path.

        Belongs to the running event loop. Nothing is done before the log is loaded.
        """
        self._clock = clock
        self._client = ZooKeeperClient(connect, session_timeout_s, login)
        self.log = ZooKeeperLog(self._client, copy, clock, **log_options)
        self._member: Member | None = None
        self._members: tuple[Member, ...] = ()
        self._listeners: list[Callable[[], None]] = []
        self._is_stale = self._has_ended = False
        self._looking: asyncio.Task[None] | None = None
        self._client.on_state(self._session_changed)

    @property
    def session_timeout_s(self) -> float:
        return self._client.session_timeout_s

    @property
    def members(self) -> Sequence[Member]:
        return self._members

    def on_members(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    # Membership

    async def join(self, node_id: int, directory_id: str) -> str:
        session_id, incarnation = None, ""
        while True:
            # A new incarnation with every session, and the same one while the outcome of an attempt is unknown.
            if self._client.session_id != session_id or not incarnation:
                session_id, incarnation = self._client.session_id, id_text(random_id())
            try:
                if await self._try_join(Member(node_id, incarnation), directory_id):
                    self._member = Member(node_id, incarnation)
                    self._set_members(await self._list(self._watch))
                    return incarnation
            except LOST:
                await self._clock.sleep(JOIN_PAUSE_S)

    async def _try_join(self, member: Member, directory_id: str) -> bool:
        path, session_path = self._paths(member)
        transaction = self._client.kazoo.transaction()
        transaction.create(path, encode_member(member.incarnation, directory_id), ephemeral=True)
        transaction.create(session_path, b"", ephemeral=True)
        if succeeded(await self._client.ask(transaction.commit_async)):
            return True
        try:
            data, stat = await self._client.ask(lambda: self._client.kazoo.get_async(path))
        except NoNodeError:  # it has gone since
            return False
        incarnation, directory = decode_member(data)
        if incarnation == member.incarnation and stat.ephemeralOwner == self._client.session_id:
            return True  # an earlier attempt, whose answer was lost
        if directory != directory_id:
            await self._wait_until_gone(Member(member.node_id, incarnation))
            return False
        # An earlier life of this data directory: this process holds the directory's lock, so that life has ended.
        await self._client.ask(self._removal(Member(member.node_id, incarnation)))
        return False

    async def _wait_until_gone(self, holder: Member) -> None:
        """Wait until the membership of another data directory has ended. Raises StartupError if its broker is alive.

        This broker may have lost its disk: then the holder is its former life, whose session soon expires. A broker
        that lives renews its membership, and each renewal is a new version of its node.
        """
        path, session_path = self._paths(holder)
        began_s, first_version = self._clock.monotonic(), None
        while True:
            try:
                await self._client.ask(lambda: self._client.kazoo.get_async(path))
                _, stat = await self._client.ask(lambda: self._client.kazoo.get_async(session_path))
            except NoNodeError:
                return
            if first_version is None:
                first_version = stat.version
                logger.warning(
                    "a broker with another data directory has the node id %d in ZooKeeper. If that was this broker "
                    "before it lost its data, its session expires soon; waiting for that",
                    holder.node_id,
                )
            elif stat.version - first_version >= RENEWALS_OF_A_LIVE_HOLDER:
                raise StartupError(
                    f"another broker, of another data directory, has the node id {holder.node_id} and is alive: "
                    "set another node.id, or stop that broker first"
                )
            elif self._clock.monotonic() - began_s > HOLDER_WAIT_S:
                raise StartupError(
                    f"another broker, of another data directory, has the node id {holder.node_id}, and its ZooKeeper "
                    f"session has not ended in {HOLDER_WAIT_S:.0f} s: set another node.id, or stop that broker first"
                )
            await self._clock.sleep(JOIN_PAUSE_S)

    async def renew(self) -> bool:
        member = self._member
        if member is None:
            return False
        _, session_path = self._paths(member)
        try:
            await self._client.ask(lambda: self._client.kazoo.set_async(session_path, b""))
        except (NoNodeError, *LOST):
            return False
        return self._member == member

    async def leave(self) -> None:
        if self._has_ended:
            return
        self._end()
        if self._member is not None:
            leaving = asyncio.ensure_future(self._client.ask(self._removal(self._member)))
            await done_within(self._clock, leaving, LEAVE_TIMEOUT_S)
            leaving.cancel()
            if leaving.done() and not leaving.cancelled() and (error := leaving.exception()) is not None:
                logger.info("the membership is left to expire: %r", error)
        self._member = None
        await self._client.release()

    def abort(self) -> None:
        self._end()
        self._client.drop()
        self.log.abort()

    def _end(self) -> None:
        self._has_ended = True
        if self._looking is not None:
            self._looking.cancel()

    def _paths(self, member: Member) -> tuple[str, str]:
        return (
            self._client.path(f"{MEMBERS}/{member.node_id}"),
            self._client.path(f"{SESSIONS}/{member.incarnation}"),
        )

    def _removal(self, member: Member) -> Callable[[], Any]:
        transaction = self._client.kazoo.transaction()
        for path in self._paths(member):
            transaction.delete(path)
        commit: Callable[[], Any] = transaction.commit_async
        return commit

    # The other members

    async def look(self) -> Sequence[Member]:
        try:
            # The server may be behind another one, from which this broker has read the log before.
            await self._client.ask(lambda: self._client.kazoo.sync_async(self._client.path(MEMBERS)))
            return await self._list(None)
        except LOST as error:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper does not answer") from error

    async def _list(self, watch: Callable[[WatchedEvent], None] | None) -> tuple[Member, ...]:
        directory = self._client.path(MEMBERS)
        names = await self._client.ask(lambda: self._client.kazoo.get_children_async(directory, watch))
        found = await asyncio.gather(*(self._describe(name) for name in names))
        return tuple(member for _, member in sorted(each for each in found if each is not None))

    async def _describe(self, name: str) -> tuple[int, Member] | None:
        """Return (when it joined, member); None if it has left since."""
        try:
            data, stat = await self._client.ask(
                lambda: self._client.kazoo.get_async(self._client.path(f"{MEMBERS}/{name}"))
            )
            return stat.czxid, Member(int(name), decode_member(data)[0])
        except NoNodeError:
            return None
        except (ValueError, StorageFault) as error:
            logger.warning("%s in ZooKeeper is not the registration of a broker: %s", name, error)
            return None

    def _watch(self, event: WatchedEvent) -> None:
        self._client.on_loop(self._stale)

    def _stale(self) -> None:
        self._is_stale = True
        if self._looking is None and not self._has_ended:
            self._looking = asyncio.ensure_future(self._refresh())

    async def _refresh(self) -> None:
        try:
            while self._is_stale:
                self._is_stale = False
                self._set_members(await self._list(self._watch))
        except LOST:
            self._is_stale = True  # until there is a connection again
        finally:
            self._looking = None
        if self._is_stale and self._client.is_connected:
            self._stale()

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._stale()
        elif state is SessionState.EXPIRED and self._member is not None:
            logger.warning("broker %d's membership has expired", self._member.node_id)
            lost, self._member = self._member, None
            self._set_members(tuple(member for member in self._members if member != lost))

    def _set_members(self, members: tuple[Member, ...]) -> None:
        if members != self._members:
            self._members = members
            for listener in self._listeners:
                listener()
