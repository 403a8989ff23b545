"""The changes the metadata log is made of, and their form as JSON.

Every record is a frozen dataclass. Its JSON value carries its type's name and version, so that a broker meeting a
record it does not know says so and stops, instead of running on half of the truth. What a change means is `replay`'s.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flowstone.cluster.image.cluster_image import BrokerImage, Endpoint, PartitionImage
from flowstone.cluster.image.ids import id_text, parse_id
from flowstone.errors import StorageFault

RECORD_VERSION = 1

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterCreated:
    cluster_id: str


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """A broker joined, or came back with other addresses: the newest registration counts."""

    broker: BrokerImage


@dataclass(frozen=True, slots=True)
class BrokerFenced:
    """This life of a broker is over, as far as the cluster knows."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BrokerUnregistered:
    """The broker is gone for good; should one with its id ever come, it is a new one."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ControllerElected:
    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TopicCreated:
    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """Further partitions, numbered on from those the topic has."""

    topic_id: bytes
    partitions: tuple[PartitionImage, ...]


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """A partition's leader, in-sync replicas or replicas as they are from now on."""

    topic_id: bytes
    partition: int
    state: PartitionImage


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    topic_id: bytes


@dataclass(frozen=True, slots=True)
class TopicConfigChanged:
    """Values to set; None removes the topic's own value."""

    topic_id: bytes
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class BrokerConfigChanged:
    """Values to set for a broker (its node id as text) or for all of them (""); None removes one."""

    broker: str
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ProducerIdsReserved:
    """Every producer id below `next_producer_id` belongs to some broker."""

    next_producer_id: int


# Those that concern one topic, named by its `topic_id`.
TOPIC_RECORDS = (TopicCreated, PartitionsAdded, PartitionChanged, TopicDeleted, TopicConfigChanged)

MetadataRecord = (
    ClusterCreated
    | BrokerRegistered
    | BrokerFenced
    | BrokerUnregistered
    | ControllerElected
    | TopicCreated
    | PartitionsAdded
    | PartitionChanged
    | TopicDeleted
    | TopicConfigChanged
    | BrokerConfigChanged
    | ProducerIdsReserved
)


def encode(record: MetadataRecord) -> bytes:
    value: Json = {"type": type(record).__name__, "version": RECORD_VERSION, **_to_json(record)}
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode(data: bytes) -> MetadataRecord:
    """StorageFault, in a sentence for people, if this is not a record that this release knows."""
    try:
        value = json.loads(data)
        name, version = value["type"], value["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageFault(f"a metadata record is not JSON with a type and a version: {error!r}") from error
    reader = _READERS.get(name)
    if reader is None:
        raise StorageFault(f"the metadata log holds a record of unknown type {name!r}: is it a newer release's?")
    if version != RECORD_VERSION:
        raise StorageFault(
            f"the metadata log holds a {name} of version {version}; this release knows only version {RECORD_VERSION}"
        )
    try:
        return reader(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageFault(f"a {name} record of the metadata log is malformed: {error!r}") from error


def _to_json(record: MetadataRecord) -> Json:
    match record:
        case ClusterCreated(cluster_id):
            return {"cluster_id": cluster_id}
        case BrokerRegistered(broker):
            listeners = {name: [each.host, each.port] for name, each in broker.listeners.items()}
            return {
                "node_id": broker.node_id,
                "rack": broker.rack,
                "listeners": listeners,
                "incarnation": broker.incarnation,
                "epoch": broker.epoch,
                "fenced": broker.is_fenced,
            }
        case BrokerFenced(node_id, epoch) | BrokerUnregistered(node_id, epoch) | ControllerElected(node_id, epoch):
            return {"node_id": node_id, "epoch": epoch}
        case TopicCreated(name, topic_id, partitions, configs):
            states = _partitions_to_json(partitions)
            return {"name": name, "topic_id": id_text(topic_id), "partitions": states, "configs": dict(configs)}
        case PartitionsAdded(topic_id, partitions):
            return {"topic_id": id_text(topic_id), "partitions": _partitions_to_json(partitions)}
        case PartitionChanged(topic_id, partition, state):
            return {"topic_id": id_text(topic_id), "partition": partition, "state": _partition_to_json(state)}
        case TopicDeleted(topic_id):
            return {"topic_id": id_text(topic_id)}
        case TopicConfigChanged(topic_id, changes):
            return {"topic_id": id_text(topic_id), "changes": dict(changes)}
        case BrokerConfigChanged(name, changes):
            return {"broker": name, "changes": dict(changes)}
        case ProducerIdsReserved(next_producer_id):
            return {"next_producer_id": next_producer_id}


def _broker_from_json(value: Json) -> BrokerRegistered:
    listeners = {name: Endpoint(host, port) for name, (host, port) in value["listeners"].items()}
    life = value.get("incarnation", ""), value.get("epoch", 0), value.get("fenced", False)
    return BrokerRegistered(BrokerImage(value["node_id"], value["rack"], listeners, *life))


_READERS: Mapping[str, Callable[[Json], MetadataRecord]] = {
    "ClusterCreated": lambda value: ClusterCreated(value["cluster_id"]),
    "BrokerRegistered": _broker_from_json,
    "BrokerFenced": lambda value: BrokerFenced(value["node_id"], value["epoch"]),
    "BrokerUnregistered": lambda value: BrokerUnregistered(value["node_id"], value["epoch"]),
    "ControllerElected": lambda value: ControllerElected(value["node_id"], value["epoch"]),
    "TopicCreated": lambda value: TopicCreated(
        value["name"], parse_id(value["topic_id"]), _partitions_from_json(value["partitions"]), dict(value["configs"])
    ),
    "PartitionsAdded": lambda value: PartitionsAdded(
        parse_id(value["topic_id"]), _partitions_from_json(value["partitions"])
    ),
    "PartitionChanged": lambda value: PartitionChanged(
        parse_id(value["topic_id"]), value["partition"], _partition_from_json(value["state"])
    ),
    "TopicDeleted": lambda value: TopicDeleted(parse_id(value["topic_id"])),
    "TopicConfigChanged": lambda value: TopicConfigChanged(parse_id(value["topic_id"]), dict(value["changes"])),
    "BrokerConfigChanged": lambda value: BrokerConfigChanged(value["broker"], dict(value["changes"])),
    "ProducerIdsReserved": lambda value: ProducerIdsReserved(value["next_producer_id"]),
}


# A partition is a row, not an object: a thousand of them must not repeat five names each.
def _partition_to_json(state: PartitionImage) -> list[Any]:
    row = [state.leader, state.leader_epoch, state.partition_epoch, list(state.replicas), list(state.isr)]
    if state.adding or state.removing:
        row += [list(state.adding), list(state.removing)]
    return row


def _partition_from_json(row: list[Any]) -> PartitionImage:
    leader, leader_epoch, partition_epoch, *brokers = row
    return PartitionImage(leader, leader_epoch, partition_epoch, *map(tuple, brokers))


def _partitions_to_json(partitions: tuple[PartitionImage, ...]) -> list[list[Any]]:
    return [_partition_to_json(each) for each in partitions]


def _partitions_from_json(rows: list[list[Any]]) -> tuple[PartitionImage, ...]:
    return tuple(_partition_from_json(row) for row in rows)
