"""Feature levels: what is permitted depends on every registered broker, and records on the level."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flowstone.cluster.decisions.feature_changes import (
    FeatureUpdate,
    UpgradeType,
    check_levels,
    check_supported,
    update_features,
)
from flowstone.cluster.decisions.registration import register_broker
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, BrokerImage, ClusterImage
from flowstone.cluster.image.features import METADATA_VERSION, SUPPORTED_FEATURES, FeatureRange, advertised_features
from flowstone.cluster.image.ids import random_id
from flowstone.cluster.image.records import BrokerRegistered, FeatureLevelChanged, MetadataRecord, ProducerIdsReserved
from flowstone.cluster.image.replay import apply
from flowstone.errors import ApiError, ErrorCode, StartupError

UPGRADE, SAFE, UNSAFE = UpgradeType
SHARE = "share.version"
NEW = {METADATA_VERSION: FeatureRange(1, 3), SHARE: FeatureRange(0, 2)}
OLD = {METADATA_VERSION: FeatureRange(1, 2), SHARE: FeatureRange(0, 1)}
NO_FEATURES: dict[str, FeatureRange] = {}


def cluster(*supported: dict[str, FeatureRange], **levels: int) -> ClusterImage:
    records: list[MetadataRecord] = [
        BrokerRegistered(BrokerImage(number, None, {}, features=each)) for number, each in enumerate(supported, 1)
    ]
    finalized = [FeatureLevelChanged(name.replace("_", "."), level) for name, level in levels.items()]
    return apply(EMPTY_IMAGE, records + finalized)


def refusal(image: ClusterImage, *updates: FeatureUpdate) -> tuple[ErrorCode, str]:
    with pytest.raises(ApiError) as raised:
        update_features(image, updates)
    return raised.value.code, raised.value.message


def test_a_level_that_every_broker_supports_is_finalized() -> None:
    image = cluster(NEW, NEW)
    records, _ = update_features(image, [FeatureUpdate(SHARE, 2, UPGRADE), FeatureUpdate(METADATA_VERSION, 3, UPGRADE)])
    assert apply(image, records).finalized_features() == {METADATA_VERSION: 3, SHARE: 2}


def test_a_level_that_the_oldest_broker_does_not_support_is_refused_even_if_it_is_dead() -> None:
    image = cluster(NEW, OLD)
    dead = replace(image.brokers[2], is_fenced=True)
    image = apply(image, [BrokerRegistered(dead)])
    assert refusal(image, FeatureUpdate(SHARE, 2, UPGRADE)) == (
        ErrorCode.INVALID_UPDATE_VERSION,
        "Invalid update version 2 for feature share.version. Broker 2 only supports versions 0-1",
    )


def test_a_broker_of_a_release_without_features_keeps_every_level_where_it_is() -> None:
    image = cluster(NEW, NO_FEATURES)
    for name, level in ((SHARE, 1), (METADATA_VERSION, 2)):
        code, message = refusal(image, FeatureUpdate(name, level, UPGRADE))
        assert code == ErrorCode.INVALID_UPDATE_VERSION
        assert "Broker 2 " in message


def test_one_refused_update_refuses_all_of_them() -> None:
    assert refusal(cluster(NEW), FeatureUpdate(SHARE, 1, UPGRADE), FeatureUpdate("moon.version", 1, UPGRADE)) == (
        ErrorCode.INVALID_UPDATE_VERSION,
        "Invalid update version 1 for feature moon.version. Broker 1 does not support this feature.",
    )


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (FeatureUpdate(SHARE, 0, UPGRADE), "Can't downgrade the version of this feature without setting"),
        (FeatureUpdate(SHARE, 2, SAFE), "Can't downgrade to a newer version"),
        (FeatureUpdate(SHARE, 2, UNSAFE), "Can't downgrade to a newer version"),
        (FeatureUpdate(SHARE, -1, SAFE), "cannot be less than 0"),
        (FeatureUpdate(SHARE, 2, 0), "does not support the given upgrade type"),
        (FeatureUpdate(SHARE, 2, 4), "does not support the given upgrade type"),
        (FeatureUpdate(METADATA_VERSION, 1, SAFE), "it might delete metadata information"),
        (FeatureUpdate(METADATA_VERSION, 1, UNSAFE), "Unsafe metadata downgrade is not supported"),
        (FeatureUpdate(METADATA_VERSION, 0, UNSAFE), "only supports versions 1-3"),
    ],
)
def test_a_change_that_kafka_refuses_is_refused_with_its_sentence(update: FeatureUpdate, reason: str) -> None:
    image = cluster(NEW, share_version=1, flowstone_metadata_version=2)
    code, message = refusal(image, update)
    assert code == ErrorCode.INVALID_UPDATE_VERSION
    assert reason in message


@pytest.mark.parametrize("kind", [SAFE, UNSAFE])
def test_a_downgrade_to_0_turns_a_feature_off(kind: UpgradeType) -> None:
    image = cluster(NEW, share_version=2)
    records, _ = update_features(image, [FeatureUpdate(SHARE, 0, kind)])
    assert SHARE not in apply(image, records).finalized_features()


def test_a_level_that_is_finalized_already_writes_no_record() -> None:
    image = cluster(NEW, share_version=1)
    assert update_features(image, [FeatureUpdate(SHARE, 1, kind) for kind in [UPGRADE]])[0] == []
    assert update_features(image, [FeatureUpdate(METADATA_VERSION, 1, UPGRADE)])[0] == []


def test_a_feature_named_twice_is_refused() -> None:
    update = FeatureUpdate(SHARE, 1, UPGRADE)
    assert refusal(cluster(NEW), update, update)[0] == ErrorCode.INVALID_REQUEST


class _NewerRecord(ProducerIdsReserved):
    LEVELS = (2,)


def test_a_record_above_the_finalized_metadata_level_is_refused_and_taken_once_it_is_raised() -> None:
    newer: list[Any] = [_NewerRecord(5)]
    with pytest.raises(ApiError, match=r"_NewerRecord needs flowstone.metadata.version 2, and this cluster's is 1"):
        check_levels(cluster(NEW), newer)
    check_levels(cluster(NEW, flowstone_metadata_version=2), newer)


def test_a_broker_that_does_not_support_a_finalized_level_is_not_registered() -> None:
    image = cluster(NEW, flowstone_metadata_version=3)
    for features in (OLD, NO_FEATURES):
        broker = BrokerImage(7, None, {}, features=features)
        with pytest.raises(StartupError, match=r"finalized flowstone.metadata.version at level 3.*start broker 7 with"):
            register_broker(image, broker, is_clean=True, new_id=random_id)
    check_supported(image, BrokerImage(7, None, {}, features=NEW))


def test_features_that_are_not_served_are_not_advertised() -> None:
    unserved = {name for name, levels in SUPPORTED_FEATURES.items() if levels.max_level == 0}
    assert unserved.isdisjoint(advertised_features())
    assert METADATA_VERSION in advertised_features()


def test_every_record_of_this_release_can_be_written_at_the_level_it_supports() -> None:
    from flowstone.cluster.image.records.declaration import RECORD_TYPES

    highest = SUPPORTED_FEATURES[METADATA_VERSION].max_level
    assert all(max(declared.LEVELS) <= highest for declared in RECORD_TYPES.values())
