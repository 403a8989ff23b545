"""How fast this broker sends to followers that catch up: `leader.replication.throttled.rate`, over all of them.

Followers in sync are not held back: producers wait for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowstone.cluster.decisions.configs import broker_config
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.config import LONG_MAX, BrokerConfig
from flowstone.replication.throttle import Throttle


class CatchUpRate:
    def __init__(self) -> None:
        self._throttle = Throttle(LONG_MAX)
        # Of which dynamic settings the rate is: to work them out takes longer than to answer a fetch.
        self._settings: Mapping[str, Mapping[str, str]] | None = None

    def throttle(self, image: ClusterImage, config: BrokerConfig) -> Throttle:
        if self._settings is not image.broker_configs:
            self._settings = image.broker_configs
            self._throttle.bytes_per_s = broker_config(image, config).leader_replication_throttled_rate
        return self._throttle
