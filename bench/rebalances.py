"""Duration of a rebalance: from the last JoinGroup that is sent to the last SyncGroup that is answered.

One process plays all members, each with its own connection. The first member forms the group; the others send a join,
which the broker parks until the first joins again, which is the last JoinGroup. The assignment is fixed, and the broker
does not wait for more members (`NO_DELAY`).
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from bench import group_wire
from bench.commits import await_coordinator
from bench.connection import Connection
from bench.topics import RoundFailed, Target

NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}
TOPIC = "shared-out"  # a name in subscriptions: the broker does not look it up
SETTLE_SECONDS = 0.3  # for the joins that wait to arrive; not measured
REBALANCE_TIMEOUT_SECONDS = 30


class Members:
    """Connections that are members of a new group in every round."""

    def __init__(self, connections: Sequence[Connection], partitions: int) -> None:
        self._connections, self._partitions = connections, partitions

    def rebalance(self) -> float:
        """Run one rebalance and return its seconds."""
        group = f"rebalanced{time.time_ns()}"
        first, *others = self._connections
        await_coordinator(first, group)
        joined = group_wire.join_response(first.ask(group_wire.join_group(group, TOPIC)))
        group_wire.sync_response(first.ask(group_wire.sync_group(group, joined, TOPIC, self._partitions)))
        for connection in others:
            connection.send(group_wire.join_group(group, TOPIC))
        time.sleep(SETTLE_SECONDS)
        with selectors.DefaultSelector() as selector:
            for connection in self._connections:
                selector.register(connection, selectors.EVENT_READ)
            started = time.monotonic()
            first.send(group_wire.join_group(group, TOPIC, joined.member_id))
            self._answer_all(selector, group, started + REBALANCE_TIMEOUT_SECONDS)
            return time.monotonic() - started

    def _answer_all(self, selector: selectors.BaseSelector, group: str, deadline: float) -> None:
        syncing: set[object] = set()
        waiting = len(self._connections)
        assigned_bytes = 0
        while waiting:
            if time.monotonic() > deadline:
                raise RoundFailed(f"{waiting} members of {group} wait for their assignment")
            for key, _events in selector.select(REBALANCE_TIMEOUT_SECONDS):
                connection = key.fileobj
                assert isinstance(connection, Connection)
                size = connection.receive_response()
                answer = bytes(connection.buffer[:size])
                if connection in syncing:
                    assigned_bytes += group_wire.sync_response(answer)
                    waiting -= 1
                else:
                    syncing.add(connection)
                    joined = group_wire.join_response(answer)
                    connection.send(group_wire.sync_group(group, joined, TOPIC, self._partitions))
        if assigned_bytes < 4 * self._partitions:
            raise RoundFailed(f"{group} was assigned {assigned_bytes} bytes, too few for {self._partitions} partitions")


@contextmanager
def connected(target: Target, members: int, partitions: int) -> Iterator[Members]:
    with ExitStack() as stack:
        yield Members([stack.enter_context(Connection(target.address)) for _ in range(members)], partitions)
