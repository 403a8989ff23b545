"""Features whose level all brokers of a cluster agree on, and which levels this release supports.

A feature's finalized level is what every broker uses; it is raised only when all of them support it, so brokers of
several releases can be one cluster while they are upgraded one by one. A level of 0 is that the feature is off.

`flowstone.metadata.version` is the level of the metadata records: each record version names the level from which it may
be written. It has a name of its own because the levels of Kafka's `metadata.version` stand for Kafka's releases. The
others have Kafka's names and levels, since clients act on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

METADATA_VERSION = "flowstone.metadata.version"
# 2 is the protocol that raises the producer epoch with every transaction (KIP-890): clients use it from that level on.
TRANSACTION_VERSION = "transaction.version"
# 1 is the protocol of consumer groups whose partitions the coordinator assigns (KIP-848).
GROUP_VERSION = "group.version"
# 1 is share groups (KIP-932).
SHARE_VERSION = "share.version"
# The level of a cluster, and of a broker, without a feature record: that of the releases before there were features.
METADATA_LEVEL_MIN = 1
# The newest level: 2 has settings of groups.
METADATA_LEVEL_MAX = 2


class FeatureRange(NamedTuple):
    """The levels of a feature that a broker supports."""

    min_level: int
    max_level: int

    def has(self, level: int) -> bool:
        return self.min_level <= level <= self.max_level

    def __str__(self) -> str:
        return f"{self.min_level} to {self.max_level}" if self.min_level < self.max_level else str(self.max_level)


# What this release supports. A feature whose range ends at 0 is not served yet and is not advertised.
SUPPORTED_FEATURES: Mapping[str, FeatureRange] = MappingProxyType(
    {
        METADATA_VERSION: FeatureRange(METADATA_LEVEL_MIN, METADATA_LEVEL_MAX),
        TRANSACTION_VERSION: FeatureRange(0, 2),
        GROUP_VERSION: FeatureRange(0, 1),
        SHARE_VERSION: FeatureRange(0, 1),
    }
)
# The levels with which a new cluster begins, as far as its first broker supports them. Others begin switched off.
FOUNDING_LEVELS: Mapping[str, int] = MappingProxyType(
    {METADATA_VERSION: METADATA_LEVEL_MAX, TRANSACTION_VERSION: 2, GROUP_VERSION: 1, SHARE_VERSION: 1}
)
# The features of a broker whose registration names none.
FORMER_RELEASE: Mapping[str, FeatureRange] = MappingProxyType(
    {METADATA_VERSION: FeatureRange(METADATA_LEVEL_MIN, METADATA_LEVEL_MIN)}
)
OFF = FeatureRange(0, 0)


def advertised_features() -> dict[str, FeatureRange]:
    """Return the features that this broker advertises to clients and other brokers."""
    return {name: levels for name, levels in SUPPORTED_FEATURES.items() if levels.max_level > 0}
