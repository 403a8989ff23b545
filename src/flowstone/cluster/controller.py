"""The controller's own decisions: founding the cluster, registering brokers, handing out producer ids.

Pure functions from an image to the records to append and an answer. Topics are decided in `topic_changes`, settings in
`config_changes`.
"""

from __future__ import annotations

from flowstone.cluster.ids import IdSource, id_text
from flowstone.cluster.image import BrokerImage, ClusterImage
from flowstone.cluster.records import BrokerRegistered, ClusterCreated, MetadataRecord, ProducerIdsReserved

# Kafka's block. Larger would only make a restart skip more ids.
PRODUCER_ID_BLOCK_SIZE = 1000


def register_broker(image: ClusterImage, broker: BrokerImage, new_id: IdSource) -> tuple[list[MetadataRecord], str]:
    """A broker starts: the first one founds the cluster. The answer is the cluster's id."""
    records: list[MetadataRecord] = []
    cluster_id = image.cluster_id
    if not cluster_id:
        cluster_id = id_text(new_id())
        records.append(ClusterCreated(cluster_id))
    if image.brokers.get(broker.node_id) != broker:
        records.append(BrokerRegistered(broker))
    return records, cluster_id


def reserve_producer_ids(image: ClusterImage) -> tuple[list[MetadataRecord], range]:
    first = image.next_producer_id
    block = range(first, first + PRODUCER_ID_BLOCK_SIZE)
    return [ProducerIdsReserved(block.stop)], block


def controller_id(image: ClusterImage) -> int:
    """The broker that clients send changes to: the lowest registered, -1 while there is none."""
    return min(image.brokers, default=-1)
