"""The kinds of readers of a partition; `LocalReplica.visible_end` says up to which offset each of them may see."""

from __future__ import annotations

from enum import Enum


class Reader(Enum):
    # A consumer with isolation level read_uncommitted, and the broker's own reads: up to the high watermark.
    UNCOMMITTED = "uncommitted"
    # A consumer with isolation level read_committed: up to the last stable offset.
    COMMITTED = "committed"
    # A follower, or a tool that asks as one: up to the end of the log.
    REPLICA = "replica"


# Looking up an enumeration's member by name is slow: hot paths compare with these constants.
UNCOMMITTED, COMMITTED = Reader.UNCOMMITTED, Reader.COMMITTED
# The isolation level of a request.
READ_COMMITTED = 1


def consumer(isolation_level: int) -> Reader:
    """Return the kind of consumer for an isolation level on the wire."""
    return Reader.COMMITTED if isolation_level == READ_COMMITTED else Reader.UNCOMMITTED
