"""Settings of this broker that take effect while it runs: of compaction, moves of replicas, producers, connections,
and the numbers of threads.

Reports the settings of Kafka that the broker was given and that have no effect, each once.
Others that can be altered at run time are read where they are needed (`cluster.decisions.configs.broker_config`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from flowstone.broker.network.connection_limits import ConnectionLimits
from flowstone.broker.requests.context import Services
from flowstone.cluster.decisions.configs import broker_config, idle_settings
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord

logger = logging.getLogger(__name__)


def follow_settings(services: Services, connections: ConnectionLimits) -> None:
    """Apply the altered settings of the broker, now and whenever they change."""

    reported: set[str] = set()

    def report(image: ClusterImage) -> None:
        names = sorted(idle_settings(image, services.config) - reported)
        if names:
            reported.update(names)
            logger.info(
                "settings of Kafka without effect, which this broker only stores (docs/configuration.md says why): %s",
                ", ".join(names),
            )

    def apply(image: ClusterImage) -> None:
        report(image)
        config = broker_config(image, services.config)
        services.logs.moves.bytes_per_s = config.replica_alter_log_dirs_io_max_bytes_per_second
        connections.configure(config)
        services.workers.resize_readers(config.num_reader_threads)
        for directory in services.logs.directories:
            directory.flusher.resize(config.num_flush_threads)
            directory.cleaner.configure(config)
            directory.housekeeping.configure(config)

    def changed(before: ClusterImage, after: ClusterImage, _records: Sequence[MetadataRecord]) -> None:
        if after.broker_configs is not before.broker_configs:
            apply(after)

    apply(services.metadata.image)
    services.metadata.on_change(changed)
