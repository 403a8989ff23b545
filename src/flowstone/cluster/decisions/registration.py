"""Creates the cluster, registers brokers and reserves producer ids: the decisions that brokers make for themselves.

Pure functions from an image to the records to append and an answer. Elections are decided in `elections`, topics in
`topic_changes`, settings in `config_changes`.

A broker's life is one incarnation: an unbroken membership of the cluster. A partition that an earlier life led gets a
new leader epoch, because the log may have become shorter between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from flowstone.cluster.decisions.feature_changes import check_supported
from flowstone.cluster.decisions.partition_states import PartitionChanges, alive_brokers, in_sync_with, settle, withdraw
from flowstone.cluster.image.cluster_image import BrokerImage, ClusterImage
from flowstone.cluster.image.features import FOUNDING_LEVELS, OFF, FeatureRange
from flowstone.cluster.image.ids import IdSource, id_text
from flowstone.cluster.image.records import (
    BrokerRegistered,
    ClusterCreated,
    FeatureLevelChanged,
    MetadataRecord,
    ProducerIdsReserved,
)
from flowstone.errors import StartupError
from flowstone.types import TopicPartition

# Kafka's block size. A larger one would only make a restart skip more ids.
PRODUCER_ID_BLOCK_SIZE = 1000
# How many partitions an error names; the others are only counted.
NAMED_PARTITIONS_MAX = 3


class Registration(NamedTuple):
    cluster_id: str
    # The broker epoch: followers send it with every fetch, and ISRs are proposed with it.
    epoch: int


def found_cluster(
    image: ClusterImage, new_id: IdSource, supported: Mapping[str, FeatureRange]
) -> tuple[list[MetadataRecord], str]:
    """Return the cluster's id, and the records that found the cluster if it has none yet.

    `supported` are the feature levels of the broker that founds it: a new cluster begins with the newest protocols.
    """
    if image.cluster_id:
        return [], image.cluster_id
    cluster_id = id_text(new_id())
    levels = {name: min(level, supported.get(name, OFF).max_level) for name, level in FOUNDING_LEVELS.items()}
    features = [FeatureLevelChanged(name, level) for name, level in levels.items() if level > image.feature_level(name)]
    return [ClusterCreated(cluster_id), *features], cluster_id


def register_broker(
    image: ClusterImage, broker: BrokerImage, *, is_clean: bool, new_id: IdSource, is_empty: bool = False
) -> tuple[list[MetadataRecord], Registration]:
    """Register a broker that starts or joins again; the first one creates the cluster.

    The new broker epoch is the offset of the record. Unless the broker `is_clean` (it stopped in order, or never
    stopped), its logs may be shorter than it had reported: it leaves every ISR in which it is not the only member. A
    broker that `is_empty` starts without its former data.

    Raises StartupError if an empty broker would make others drop records that they still have, or if its release does
    not support the cluster's feature levels.
    """
    check_supported(image, broker)
    records, cluster_id = found_cluster(image, new_id, broker.features)
    known = image.brokers.get(broker.node_id)
    if known is not None and known.incarnation == broker.incarnation and not known.is_fenced:
        same_life = replace(broker, epoch=known.epoch, is_fenced=False)
        if same_life != known:
            records.append(BrokerRegistered(same_life))
        return records, Registration(cluster_id, known.epoch)
    epoch = image.version + 1 + len(records)
    records.append(BrokerRegistered(replace(broker, epoch=epoch, is_fenced=False)))
    if known is not None:
        if is_empty:
            _check_replaceable(image, broker.node_id)
        records += _take_up(image, broker.node_id, is_clean=is_clean and not is_empty)
    return records, Registration(cluster_id, epoch)


def controller_id(image: ClusterImage) -> int:
    """Return the controller's id for clients: the elected controller, else the lowest live broker, else -1."""
    alive = alive_brokers(image)
    return image.controller_id if image.controller_id in alive else min(alive, default=-1)


def reserve_producer_ids(image: ClusterImage) -> tuple[list[MetadataRecord], range]:
    first = image.next_producer_id
    block = range(first, first + PRODUCER_ID_BLOCK_SIZE)
    return [ProducerIdsReserved(block.stop)], block


def _take_up(image: ClusterImage, node_id: int, *, is_clean: bool) -> Sequence[MetadataRecord]:
    """Return the changes of a broker's partitions that follow from its new registration."""
    changes, alive = PartitionChanges(), alive_brokers(image) | {node_id}
    for topic, partition, state in in_sync_with(image, node_id):
        wanted = settle(state if is_clean else withdraw(state, node_id), alive)
        changes.put(topic, partition, wanted, leads_anew=wanted.leader == node_id)
    return changes.records


def _check_replaceable(image: ClusterImage, node_id: int) -> None:
    last = [
        str(TopicPartition(topic.name, partition))
        for topic, partition, state in in_sync_with(image, node_id)
        if state.isr == (node_id,) and len(state.replicas) > 1
    ]
    if last:
        named = ", ".join(last[:NAMED_PARTITIONS_MAX])
        more = f" and {len(last) - NAMED_PARTITIONS_MAX} more" if len(last) > NAMED_PARTITIONS_MAX else ""
        raise StartupError(
            f"broker {node_id} starts with an empty data directory, but is the last in-sync replica of {named}{more}: "
            "the other replicas would drop what they have. Let one of them lead first, by an unclean election"
        )
