"""Settings of this broker that take effect while it runs: those of compaction, for all log directories.

Others that can be altered at run time are read where they are needed (`cluster.decisions.configs.broker_config`).
"""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.broker.requests.context import Services
from flowstone.cluster.decisions.configs import broker_config
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord


def follow_settings(services: Services) -> None:
    """Apply the altered settings of the broker, now and whenever they change."""

    def apply(image: ClusterImage) -> None:
        config = broker_config(image, services.config)
        for directory in services.logs.directories:
            directory.cleaner.configure(config)

    def changed(before: ClusterImage, after: ClusterImage, _records: Sequence[MetadataRecord]) -> None:
        if after.broker_configs is not before.broker_configs:
            apply(after)

    apply(services.metadata.image)
    services.metadata.on_change(changed)
