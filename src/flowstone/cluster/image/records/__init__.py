"""The metadata records: one module for each family of records, and what all have in common.

To add a type, declare it in a module of this package (`declaration` says how) and name it here.
"""

from __future__ import annotations

from flowstone.cluster.image.records.acls import AclsCreated, AclsDeleted
from flowstone.cluster.image.records.brokers import BrokerFenced, BrokerRegistered, BrokerUnregistered
from flowstone.cluster.image.records.cluster import ClusterCreated, ControllerElected
from flowstone.cluster.image.records.configs import BrokerConfigChanged, ClientMetricsChanged, GroupConfigChanged
from flowstone.cluster.image.records.declaration import MetadataRecord, UnknownRecord, decode, encode
from flowstone.cluster.image.records.features import FeatureLevelChanged
from flowstone.cluster.image.records.producers import ProducerIdsReserved
from flowstone.cluster.image.records.quotas import ClientQuotaChanged
from flowstone.cluster.image.records.scram import ScramCredentialChanged, ScramCredentialRemoved, ScramSecretChosen
from flowstone.cluster.image.records.tokens import DelegationTokensChanged
from flowstone.cluster.image.records.topics import (
    PartitionChanged,
    PartitionsAdded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    TopicRecord,
)

__all__ = [
    "AclsCreated",
    "AclsDeleted",
    "BrokerConfigChanged",
    "BrokerFenced",
    "BrokerRegistered",
    "BrokerUnregistered",
    "ClientMetricsChanged",
    "ClientQuotaChanged",
    "ClusterCreated",
    "ControllerElected",
    "DelegationTokensChanged",
    "FeatureLevelChanged",
    "GroupConfigChanged",
    "MetadataRecord",
    "PartitionChanged",
    "PartitionsAdded",
    "ProducerIdsReserved",
    "ScramCredentialChanged",
    "ScramCredentialRemoved",
    "ScramSecretChosen",
    "TopicConfigChanged",
    "TopicCreated",
    "TopicDeleted",
    "TopicRecord",
    "UnknownRecord",
    "decode",
    "encode",
]
