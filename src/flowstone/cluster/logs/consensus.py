"""A broker's tie to what its cluster agrees through: ZooKeeper, or memory where all brokers are in one process.

It owns three things: the metadata log, who is a member, and the proof that one still is one. Members are listed with
the senior first; the first is the controller. Nothing follows from that list alone: whoever decides writes to the log,
and an append is a compare-and-set on the log's end, so that who decided on an old image, a deposed controller included,
cannot write.

Every call and every listener belongs to the broker's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from flowstone.cluster.logs.metadata_log import MetadataLog


class Member(NamedTuple):
    node_id: int
    incarnation: str  # one unbroken membership: who lost it and came back has another


class Consensus(Protocol):
    @property
    def log(self) -> MetadataLog: ...

    @property
    def session_timeout_s(self) -> float:
        """A member is not taken for dead before this long after its last successful `renew` was sent."""
        ...

    @property
    def members(self) -> Sequence[Member]:
        """The members that this broker last heard of, the senior first."""
        ...

    def on_members(self, listener: Callable[[], None]) -> None:
        """Calls back when `members` has changed, or our own membership was lost (then we are not in it)."""
        ...

    async def look(self) -> Sequence[Member]:
        """Ask for the members; the answer is no older than what this broker has seen of the log.

        Raises ApiError if there is no answer.
        """
        ...

    async def join(self, node_id: int, directory_id: str) -> str:
        """Becomes a member, again after one was lost; the new incarnation.

        A former life of the same data directory, whose process must be gone, is removed; another broker that has this
        node id is a StartupError.
        """
        ...

    async def renew(self) -> bool:
        """One round trip: whether this broker was a member, in its present incarnation, after the call was made.

        False too if nobody answers.
        """
        ...

    async def leave(self) -> None:
        """Gives the membership up, so that others need not wait for its end; then closes everything but the log."""
        ...

    def abort(self) -> None:
        """Ends at once, as a killed process would: the membership is left to run out."""
        ...
