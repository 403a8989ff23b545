"""The replica that a consumer should read from: one in its own rack, if the leader is in another rack (KIP-392).

The leader decides with every fetch that names a rack. Live members of the ISR are as good as the leader: each has
everything below the high watermark.
"""

from __future__ import annotations

from flowstone.broker.requests.partition_lookup import live_broker
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader
from flowstone.wire.messages import FetchResponsePartition


def send_to_near_replica(
    image: ClusterImage, partition: Partition, rack: str, fetch_offset: int, listener_name: str
) -> FetchResponsePartition | None:
    """Return the answer that names the replica to read from, or None if the consumer should read from this broker."""
    high_watermark = partition.local.visible_end(Reader.UNCOMMITTED)
    node_id = _near_replica(image, partition, rack, listener_name) if fetch_offset <= high_watermark else None
    if node_id is None:
        return None
    return FetchResponsePartition(
        partition_index=partition.topic_partition.partition,
        high_watermark=high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.log_start_offset,
        preferred_read_replica=node_id,
        records=b"",
    )


def _near_replica(image: ClusterImage, partition: Partition, rack: str, listener_name: str) -> int | None:
    """Return the replica in the consumer's rack, or None if the consumer should go on reading from the leader."""
    leader = image.brokers.get(partition.leader_id)
    if not partition.is_leader or leader is None or leader.rack == rack:
        return None
    for node_id in partition.isr:
        broker = live_broker(image, node_id)
        if broker is not None and broker.rack == rack and listener_name in broker.listeners:
            return node_id
    return None
