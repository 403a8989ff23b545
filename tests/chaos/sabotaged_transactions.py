"""`flowstone up` with a bug in its transactions, done to the running program's own functions.

python sabotaged_transactions.py BUG <arguments of flowstone up>
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

from flowstone.broker.coordinators.local_markers import LocalMarkers, Marker
from flowstone.cli.up.command import run_up
from flowstone.coordinator.groups.shard import GroupShard
from flowstone.coordinator.transactions import endings, shard
from flowstone.errors import ErrorCode
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.promise import Promise
from flowstone.replication.local_replica import LocalReplica
from flowstone.types import TopicPartition

ABORTED_ONE_OF = 10


def show_aborted() -> None:
    """Fetch names no aborted transactions."""
    _replace(LocalReplica, "aborted_transactions", lambda self, *arguments: [])


def show_open() -> None:
    """A read_committed consumer sees up to the high watermark."""
    _replace(PartitionLog, "last_stable_offset", lambda self, high_watermark: high_watermark)


def tear() -> None:
    """In one partition every transaction is aborted."""
    write = LocalMarkers.write

    def torn(self: LocalMarkers, where: TopicPartition, marker: Marker) -> Promise[None]:
        is_wrong = where == TopicPartition("accounts", 1)
        return write(self, where, marker._replace(is_commit=False) if is_wrong else marker)

    _replace(LocalMarkers, "write", torn)


def abort_some() -> None:
    """Now and then a transaction is aborted that was to be committed, and its producer is told that it was."""
    end = endings._end_v1
    calls = itertools.count(1)

    def careless(turn: Any, request: Any, before: Any) -> ErrorCode:
        is_wrong = next(calls) % ABORTED_ONE_OF == 0
        return end(turn, request._replace(is_commit=False) if is_wrong else request, before)

    _replace(endings, "_end_v1", careless)


def forget_offsets() -> None:
    """The offsets of a transaction are dropped when it is committed."""
    end_transaction = GroupShard.end_transaction

    def dropped(self: GroupShard, now_ms: int, token: Any, request: Any) -> Any:
        marker = request.marker._replace(is_commit=False)
        return end_transaction(self, now_ms, token, request._replace(marker=marker))

    _replace(GroupShard, "end_transaction", dropped)


def never_time_out() -> None:
    """A transaction whose producer is gone stays open."""
    _replace(shard, "abort_if_timed_out", lambda turn, stored: None)


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    assert hasattr(owner, name)
    setattr(owner, name, function)


BUGS: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (show_aborted, show_open, tear, abort_some, forget_offsets, never_time_out)
}


if __name__ == "__main__":
    BUGS[sys.argv[1]]()
    sys.exit(run_up(sys.argv[2:]))
