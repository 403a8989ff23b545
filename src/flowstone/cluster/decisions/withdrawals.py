"""Decisions about a broker that stops, whose disk failed, or that is removed: its replicas leave the ISRs.

Pure functions from an image to the records to append and an answer; the broker itself appends them, or, for one that is
gone, the broker that the operator's command reaches. `elections` handles brokers that die.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from flowstone.cluster.decisions.partition_states import PartitionChanges, alive_brokers, in_sync_with, settle, withdraw
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import BrokerRegistered, BrokerUnregistered, MetadataRecord
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition

# An incarnation that no broker has: a broker with it has ended its life itself.
NO_INCARNATION = ""


def shut_down(image: ClusterImage, node_id: int, epoch: int) -> tuple[list[MetadataRecord], int]:
    """Prepare a broker's stop: other brokers lead what they can, and it leaves the ISRs.

    Also returns how many partitions it still leads, because no other replica is in sync. Once there are none it is
    fenced, so that nothing new is given to it; it gives up its incarnation too, for while it is still a member it would
    be taken for alive again.
    """
    broker = image.brokers.get(node_id)
    if broker is None:
        raise _not_registered(node_id)
    if broker.epoch != epoch:
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {node_id} has epoch {broker.epoch}, not {epoch}.")
    changes, alive, leads = PartitionChanges(), alive_brokers(image), 0
    for topic, partition, state in in_sync_with(image, node_id):
        state = changes.put(topic, partition, settle(withdraw(state, node_id), alive))
        leads += state.leader == node_id
    records: list[MetadataRecord] = [*changes.records]
    if not leads and not broker.is_fenced:
        records.append(BrokerRegistered(replace(broker, incarnation=NO_INCARNATION, is_fenced=True)))
    return records, leads


def replica_failed(
    image: ClusterImage, node_id: int, partitions: Iterable[tuple[bytes, int]]
) -> tuple[list[MetadataRecord], list[TopicPartition]]:
    """Remove replicas on a failed or full disk from their ISRs, and let other brokers lead.

    Also returns the partitions without another in-sync replica: they stay as they are.
    """
    changes, alive, left = PartitionChanges(), alive_brokers(image), []
    for topic_id, partition in partitions:
        topic = image.topics_by_id.get(topic_id)
        if topic is None or not 0 <= partition < len(topic.partitions):
            continue  # deleted meanwhile
        state = changes.state(topic, partition)
        if node_id in state.isr:
            state = changes.put(topic, partition, settle(withdraw(state, node_id), alive))
            if node_id in state.isr:
                left.append(TopicPartition(topic.name, partition))
    return [*changes.records], left


def unregister_broker(image: ClusterImage, node_id: int) -> tuple[list[MetadataRecord], None]:
    """Unregister a broker for good. Raises ApiError if it is alive, or still has replicas, which no broker could serve
    then.
    """
    broker = image.brokers.get(node_id)
    if broker is None:
        raise _not_registered(node_id)
    if not broker.is_fenced:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker {node_id} is alive: stop it first.")
    held = sum(node_id in state.replicas for topic in image.topics.values() for state in topic.partitions)
    if held:
        message = f"Broker {node_id} has replicas of {held} partition(s): move them to other brokers first."
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    return [BrokerUnregistered(node_id, broker.epoch)], None


def _not_registered(node_id: int) -> ApiError:
    return ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {node_id} is not registered.")
