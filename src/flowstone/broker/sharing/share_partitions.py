"""All share partitions that this broker leads, and the sessions of the members that fetch from them.

A share partition is loaded with the first fetch, and dropped when no session uses it any more or another broker leads
it. Its state is with the share coordinator.
"""

from __future__ import annotations

import asyncio

from flowstone.broker.coordinators.group_settings import GroupSettingsSource
from flowstone.broker.coordinators.share.share_states import ShareStates
from flowstone.broker.loop.workers import Workers
from flowstone.broker.sharing.led_share_partition import LedSharePartition
from flowstone.broker.sharing.letters.dead_letters import DeadLetterQueues
from flowstone.broker.sharing.reads.recent_batches import KeptBatches
from flowstone.broker.sharing.share_services import ShareCounts, ShareServices
from flowstone.broker.sharing.share_sessions import MemberKey, Place, ShareSession, ShareSessions
from flowstone.cluster.metadata import Metadata
from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import Clock
from flowstone.replication.served_partitions import Partitions

# Share partitions that were dropped are searched for after so many new ones.
SWEEP_INTERVAL = 64
# Share partitions whose state is loaded at the same time; the others wait.
LOADS_AT_ONCE = 100


class SharePartitions:
    def __init__(
        self,
        partitions: Partitions,
        states: ShareStates,
        settings: GroupSettingsSource,
        clock: Clock,
        workers: Workers,
        metadata: Metadata,
        producer_expiration_ms: int,
    ) -> None:
        """Create the object; `producer_expiration_ms` is how long brokers keep the state of an idle producer."""
        self._partitions = partitions
        dead_letters = DeadLetterQueues(metadata, partitions, states.peers, clock, workers, producer_expiration_ms)
        self.counts = ShareCounts()
        load_slots = asyncio.Semaphore(LOADS_AT_ONCE)
        self._services = ShareServices(
            states, settings, clock, workers, dead_letters, self.counts, KeptBatches(), load_slots
        )
        self.sessions = ShareSessions(self._session_closed)
        self._led: dict[ShareKey, LedSharePartition] = {}
        self._sweep_at = SWEEP_INTERVAL

    def close(self) -> None:
        """Answer all waiting fetches, because the broker stops."""
        for led in self._led.values():
            led.close(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self._led.clear()

    def __len__(self) -> int:
        return len(self._led)

    def find(self, key: ShareKey) -> LedSharePartition | None:
        """Return the share partition if it is loaded here."""
        return self._led.get(key)

    def get(self, group_id: str, place: Place) -> LedSharePartition:
        """Return the share partition, whose state may still be loading. Raises ApiError if it is not led here.

        One that nobody used is loaded again, because its start may have been altered meanwhile.
        """
        key = ShareKey(group_id, place.topic_id, place.partition)
        led = self._led.get(key)
        if led is not None and led.is_current and not led.is_idle:
            return led
        self._drop(key)
        partition = self._partitions.get_by_id(place.topic_id, place.partition)
        if not partition.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition.local.check_serving()
        if len(self._led) >= self._sweep_at:
            self._sweep()
        led = self._led[key] = LedSharePartition(key, partition, self._services)
        return led

    def forget(self, key: MemberKey, place: Place) -> None:
        """Record that a session does not fetch from a partition any more; its member keeps what it has acquired."""
        led = self._led.get(ShareKey(key.group_id, *place))
        if led is not None:
            led.sessions.discard(key)

    def _session_closed(self, session: ShareSession) -> None:
        """Release what the member has acquired, also from partitions that it has left since."""
        group_id, member_id = session.key
        for key in [key for key in self._led if key.group_id == group_id]:
            led = self._led[key]
            led.sessions.discard(session.key)
            led.release_member(member_id)
            if led.is_idle:
                self._drop(key)

    def _drop(self, key: ShareKey) -> None:
        led = self._led.pop(key, None)
        if led is not None:
            led.close(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _sweep(self) -> None:
        """Drop the share partitions that are not used any more."""
        for key in [key for key, led in self._led.items() if led.is_idle or not led.is_current]:
            self._drop(key)
        self._sweep_at = 2 * len(self._led) + SWEEP_INTERVAL
