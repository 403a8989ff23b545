"""The rate at which this broker sends to followers that catch up: `leader.replication.throttled.rate`, for all
together.

Followers that are in sync are not throttled: producers wait for them.
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
        # The dynamic settings from which the rate was computed: computing it takes longer than answering a fetch.
        self._settings: Mapping[str, Mapping[str, str]] | None = None

    def throttle(self, image: ClusterImage, config: BrokerConfig) -> Throttle:
        if self._settings is not image.broker_configs:
            self._settings = image.broker_configs
            self._throttle.bytes_per_s = broker_config(image, config).leader_replication_throttled_rate
        return self._throttle
