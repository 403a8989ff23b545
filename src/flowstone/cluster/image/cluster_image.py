"""The cluster as one immutable value: brokers, topics, partitions, configs, at one point of the metadata log.

An image is shared freely: each shows the cluster at one consistent moment. The only way to a new image is
`replay.apply`, and the records that it applies. It knows nothing of files, requests or time.

Invariant: `topics` and `topics_by_id` hold the same `TopicImage` objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from flowstone.authentication.delegation_tokens import DelegationToken
from flowstone.authentication.scram import ScramCredential, ScramMechanism
from flowstone.cluster.image.acl import Acl
from flowstone.cluster.image.features import FORMER_RELEASE, METADATA_LEVEL_MIN, METADATA_VERSION, OFF, FeatureRange
from flowstone.cluster.image.layered_map import LayeredMap
from flowstone.cluster.image.quota import QuotaEntity
from flowstone.types import TopicPartition

NO_LEADER = -1
NO_VERSION = -1
NO_CONTROLLER = -1
# The name of the settings that every broker shares, as in Kafka's requests.
CLUSTER_DEFAULT = ""

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


def _nothing() -> Mapping[Any, Any]:
    return _NOTHING


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker. A fenced one is not alive, as far as the cluster knows, and leads nothing.

    An incarnation is one unbroken membership; each has an epoch, which only grows. Both tell a broker's lives apart.
    """

    node_id: int
    rack: str | None
    listeners: Mapping[str, Endpoint]
    incarnation: str = ""
    epoch: int = 0
    is_fenced: bool = False
    # The feature levels that its release supports; empty for a release before there were features.
    features: Mapping[str, FeatureRange] = field(default_factory=_nothing)

    def supported_levels(self, feature: str) -> FeatureRange:
        return (self.features or FORMER_RELEASE).get(feature, OFF)


@dataclass(frozen=True, slots=True)
class PartitionImage:
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    # While the partition moves: the members of `replicas` being added, and those removed once the others are in sync.
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str] = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class ClusterImage:
    cluster_id: str = ""
    brokers: Mapping[int, BrokerImage] = field(default_factory=_nothing)
    topics: LayeredMap[str, TopicImage] = field(default_factory=LayeredMap)
    topics_by_id: LayeredMap[bytes, TopicImage] = field(default_factory=LayeredMap)
    # Dynamic broker settings, by node id as text, or by CLUSTER_DEFAULT.
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=_nothing)
    # The settings of groups, by group id: also of groups that do not exist, as in Kafka.
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=_nothing)
    # Subscriptions to clients' metrics, by the names that operators chose.
    client_metrics: Mapping[str, Mapping[str, str]] = field(default_factory=_nothing)
    next_producer_id: int = 0
    # Finalized feature levels that were ever changed; `finalized_features` adds the one that needs no record.
    features: Mapping[str, int] = field(default_factory=_nothing)
    # The credentials of users, by name and mechanism, and the secret behind those of users who do not exist.
    scram_credentials: Mapping[tuple[str, ScramMechanism], ScramCredential] = field(
        default_factory=_nothing, repr=False
    )
    scram_secret: bytes = field(default=b"", repr=False)
    # The delegation tokens by id.
    delegation_tokens: Mapping[str, DelegationToken] = field(default_factory=_nothing)
    # The access rules, in the order of their creation.
    acls: Mapping[Acl, None] = field(default_factory=_nothing)
    # The quotas of clients: values by key.
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=_nothing)
    # The broker that decides elections, and how many controllers there were, this one included.
    controller_id: int = NO_CONTROLLER
    controller_epoch: int = 0
    partition_count: int = 0
    # The offset of the last record applied.
    version: int = NO_VERSION

    def feature_level(self, name: str) -> int:
        """Return the finalized level of a feature; 0 if it is off."""
        return self.finalized_features().get(name, 0)

    def finalized_features(self) -> dict[str, int]:
        """Return the level of each feature that is on."""
        levels = {METADATA_VERSION: METADATA_LEVEL_MIN, **self.features}
        return {name: level for name, level in levels.items() if level > 0}

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def endpoint(self, node_id: int, listener_name: str) -> Endpoint | None:
        """Return the address at which clients of a listener reach the broker; None if it is unknown or has no such
        listener.
        """
        broker = self.brokers.get(node_id)
        return None if broker is None else broker.listeners.get(listener_name)


EMPTY_IMAGE = ClusterImage()
