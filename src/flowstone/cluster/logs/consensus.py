"""A broker's connection to its cluster's consensus: ZooKeeper, or memory if all brokers are in one process.

Owns three things: the metadata log, the list of members, and the proof that this broker still is a member. Members are
listed with the senior first; the first is the controller. The list alone gives no authority: a decision is written to
the log, and an append is a compare-and-set on the log's end, so that a broker that decided on an old image, such as a
deposed controller, cannot write.

Every call and every listener belongs to the broker's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from flowstone.cluster.logs.metadata_log import MetadataLog


class Member(NamedTuple):
    node_id: int
    incarnation: str  # one unbroken membership: a broker that lost it and joined again has another


class Consensus(Protocol):
    @property
    def log(self) -> MetadataLog: ...

    @property
    def session_timeout_s(self) -> float:
        """Return how long after a member's last successful `renew` was sent the cluster takes it for alive."""
        ...

    @property
    def members(self) -> Sequence[Member]:
        """Return the members that this broker last learned of, the senior first."""
        ...

    def on_members(self, listener: Callable[[], None]) -> None:
        """Call `listener` when `members` has changed, or our own membership was lost (then we are not in it)."""
        ...

    async def look(self) -> Sequence[Member]:
        """Read the members; the answer is no older than what this broker has seen of the log.

        Raises ApiError if there is no answer.
        """
        ...

    async def join(self, node_id: int, directory_id: str) -> str:
        """Become a member, or one again after the membership was lost; return the new incarnation.

        An earlier life of the same data directory, whose process must have ended, is removed. Raises StartupError if
        another broker has this node id.
        """
        ...

    async def renew(self) -> bool:
        """Renew the membership in one round trip; return whether this broker was a member, in this incarnation, after
        the call.

        Also returns False if there is no answer.
        """
        ...

    async def leave(self) -> None:
        """Give up the membership, so that others need not wait for its end; then close everything except the log."""
        ...

    def abort(self) -> None:
        """Stop at once, as if the process were killed: the membership is left to expire."""
        ...
