"""Decides requests to change feature levels, and checks what the levels permit: pure, with Kafka's errors.

A level is finalized only if every registered broker supports it, alive or not: one that is dead may come back. So a
broker of a former release can follow whatever the cluster writes, until an operator raises a level after the upgrade.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from flowstone.cluster.image.cluster_image import BrokerImage, ClusterImage
from flowstone.cluster.image.features import METADATA_VERSION, OFF, FeatureRange
from flowstone.cluster.image.records import FeatureLevelChanged, MetadataRecord
from flowstone.errors import ApiError, ErrorCode, StartupError


class UpgradeType(IntEnum):
    """The kinds of change, with the protocol's numbers. A safe downgrade must lose nothing."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    name: str
    level: int
    upgrade_type: int


def update_features(image: ClusterImage, updates: Sequence[FeatureUpdate]) -> tuple[list[MetadataRecord], None]:
    """Return the records that change all of these levels. Raises ApiError, and changes none, if one is refused."""
    repeated = [name for name, count in Counter(each.name for each in updates).items() if count > 1]
    if repeated:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Feature {repeated[0]} must appear at most once.")
    for each in updates:
        reason = _reason_refused(image, each)
        if reason is not None:
            message = f"Invalid update version {each.level} for feature {each.name}. {reason}"
            raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, message)
    changed = [each for each in updates if each.level != image.feature_level(each.name)]
    return [FeatureLevelChanged(each.name, each.level) for each in changed], None


def check_levels(image: ClusterImage, records: Iterable[MetadataRecord]) -> None:
    """Raise ApiError if a record is newer than the metadata level that the cluster has finalized."""
    level = image.feature_level(METADATA_VERSION)
    for record in records:
        if record.level > level:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{type(record).__name__} needs {METADATA_VERSION} {record.level}, and this cluster's is {level}: "
                "upgrade every broker, then raise it with `flowstone cluster features upgrade`",
            )


def check_supported(image: ClusterImage, broker: BrokerImage) -> None:
    """Raise StartupError if the broker does not support a level that the cluster has finalized."""
    for name, level in image.finalized_features().items():
        supported = broker.supported_levels(name)
        if not supported.has(level):
            raise StartupError(
                f"the cluster has finalized {name} at level {level}, and this release supports {_told(supported)}: "
                f"start broker {broker.node_id} with the release that the other brokers run"
            )


def _reason_refused(image: ClusterImage, update: FeatureUpdate) -> str | None:
    """Return Kafka's reason for refusing the change, or None if it is permitted."""
    current = image.feature_level(update.name)
    if update.upgrade_type not in UpgradeType.__members__.values():
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    unsupported = _reason_not_supported(image.brokers, update)
    if unsupported is not None:
        return unsupported
    if update.level < current and update.upgrade_type == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if update.level > current and update.upgrade_type != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    if update.name == METADATA_VERSION and update.level < current:
        # The log, and snapshots of it, may hold records of the higher level.
        return (
            "Unsafe metadata downgrade is not supported in this version."
            if update.upgrade_type == UpgradeType.UNSAFE_DOWNGRADE
            else "Refusing to perform the requested downgrade because it might delete metadata information."
        )
    return None


def _reason_not_supported(brokers: Mapping[int, BrokerImage], update: FeatureUpdate) -> str | None:
    for broker in brokers.values():
        supported = broker.supported_levels(update.name)
        if not supported.has(update.level) and supported == OFF:
            return f"Broker {broker.node_id} does not support this feature."
        if not supported.has(update.level):
            return f"Broker {broker.node_id} only supports versions {_told(supported)}"
    return None


def _told(supported: FeatureRange) -> str:
    return f"{supported.min_level}-{supported.max_level}"
