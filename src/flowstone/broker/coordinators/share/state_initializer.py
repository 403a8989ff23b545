"""Initializes the state of share partitions at the share coordinator, for share groups that this broker coordinates.

A group's shard returns the task; its outcome is passed back to the shard, which notes it. If this broker stops or the
shard moves in between, the next heartbeat of the group asks again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.broker.coordinators.coordinator_host import HostServices
from flowstone.broker.coordinators.group_coordinator import GroupCoordinator
from flowstone.broker.coordinators.share.share_states import ShareStates
from flowstone.coordinator.groups.shard import GroupShard
from flowstone.coordinator.groups.share.messages import InitializeStates
from flowstone.coordinator.runtime import HostedShard
from flowstone.coordinator.share.messages import InitialState
from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ErrorCode

logger = logging.getLogger(__name__)

# A failure is logged at most this often: every heartbeat of every group may fail while the topic has no leader.
LOG_INTERVAL_S = 60.0


def states_for_groups(groups: GroupCoordinator, services: HostServices, peers: BrokerPeers) -> ShareStates:
    """Return the states of share partitions, which are initialized from now on when the groups ask for it."""
    states = ShareStates(services, peers)
    groups.initialize_states = StateInitializer(states, services.clock.monotonic).begin
    return states


class StateInitializer:
    def __init__(self, states: ShareStates, monotonic: Callable[[], float]) -> None:
        self._states, self._monotonic = states, monotonic
        self._logged_s: float | None = None

    def begin(self, shard: HostedShard[GroupShard], task: InitializeStates) -> None:
        """Start a task, without waiting for it."""
        self._states.spawn(self._initialize(shard, task))

    async def _initialize(self, shard: HostedShard[GroupShard], task: InitializeStates) -> None:
        results = await self._states.initialize(
            [
                InitialState(ShareKey(task.group_id, topic_id, index), task.state_epoch)
                for topic_id, indexes in task.partitions.items()
                for index in indexes
            ]
        )
        done: dict[bytes, list[int]] = {}
        for key, result in results.items():
            # A newer state epoch: the state exists already, and operators have moved it since.
            if result.error_code in (ErrorCode.NONE, ErrorCode.FENCED_STATE_EPOCH):
                done.setdefault(key.topic_id, []).append(key.partition)
            else:
                self._log(key, result.error_code, result.error_message)
        partitions = {topic_id: tuple(indexes) for topic_id, indexes in done.items()}
        shard.execute(lambda machine, now_ms: machine.share_states_initialized(now_ms, task.group_id, partitions))
        if len(results) > sum(map(len, partitions.values())):
            shard.execute(lambda machine, now_ms: machine.share_states_failed(now_ms, task.group_id))

    def _log(self, key: ShareKey, code: ErrorCode, message: str | None) -> None:
        now_s = self._monotonic()
        if self._logged_s is None or now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            logger.warning(
                "the share group %s cannot read partition %d yet, because its state was not initialized: %s %s; "
                "its members try again with their heartbeats",
                key.group_id,
                key.partition,
                code.name,
                message or "",
            )
