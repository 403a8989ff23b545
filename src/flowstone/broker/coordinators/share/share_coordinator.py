"""The share coordinator of this broker: the states of share partitions, in `__share_group_state`.

`CoordinatorHost` decides where shards are hosted, and the state machine (`coordinator.share`) handles requests.
`share_states` sends requests to the right broker's coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowstone.broker.coordinators.coordinator_host import CoordinatorHost, HostServices
from flowstone.broker.coordinators.internal_topics import share_state_topic
from flowstone.cluster.image.ids import parse_id
from flowstone.coordinator.effects import Effects
from flowstone.coordinator.runtime import HostedShard, Token
from flowstone.coordinator.share import record_format as share_records
from flowstone.coordinator.share.config import ShareCoordinatorConfig
from flowstone.coordinator.share.records import ShareKey
from flowstone.coordinator.share.shard import ShareShard
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition

ShareCall = Callable[[ShareShard, int, Token], Effects[Any]]


class ShareCoordinator:
    def __init__(self, services: HostServices) -> None:
        config = ShareCoordinatorConfig(
            updates_per_snapshot=services.config.share_coordinator_snapshot_update_records_per_snapshot
        )
        self._host = CoordinatorHost(
            share_state_topic(services.config), share_records, lambda _leader_epoch: ShareShard(config), services
        )

    def close(self) -> None:
        """Refuse all waiting and further requests, because the broker stops."""
        self._host.close()

    async def wait_loaded(self, timeout_s: float) -> None:
        """Return when each shard hosted now has been loaded or has failed to load, or after `timeout_s`."""
        await self._host.wait_loaded(timeout_s)

    def partition_of(self, key: str) -> TopicPartition | None:
        """Return the partition that has the state of a share partition, or None while the topic does not exist."""
        return self._host.partition_of(key)

    def shard_of(self, key: ShareKey) -> HostedShard[ShareShard] | None:
        """Return the shard that has the state, or None if this broker does not lead its partition."""
        return self._host.shard_of(str(key))

    def shard_at(self, index: int) -> HostedShard[ShareShard] | None:
        """Return the shard of a partition of the topic, or None if this broker does not lead it."""
        return self._host.shard_at(index)

    def shards(self) -> list[tuple[int, HostedShard[ShareShard]]]:
        """Return the shards on this broker, by the partition of the topic."""
        return self._host.shards()

    async def create_topic(self) -> None:
        """Create `__share_group_state` unless it exists. Raises ApiError if that fails."""
        await self._host.create_topic()

    def request(self, key: ShareKey, call: ShareCall, token: Token | None = None) -> Token:
        """Pass a request to the share partition's shard; return the promise of its response, `token` if given.

        The promise raises ApiError if the request fails.
        """
        return self._host.request(str(key), call, token)


def check_share_key(text: str) -> None:
    """Raise ApiError unless the text is the key of a share partition: GROUP:TOPIC_ID:PARTITION."""
    group_id, _, rest = text.partition(":")
    topic_id, _, partition = rest.rpartition(":")
    try:
        valid = bool(group_id) and parse_id(topic_id) is not None and int(partition) >= 0
    except ValueError:
        valid = False
    if not valid:
        message = f"{text!r} is no share partition: the key is GROUP:TOPIC_ID:PARTITION"
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
