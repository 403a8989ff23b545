"""UpdateFeatures, and the features in ApiVersions, as clients of every version see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowstone.cluster.image.cluster_image import BrokerImage
from flowstone.cluster.image.features import GROUP_VERSION, METADATA_VERSION, TRANSACTION_VERSION, FeatureRange
from flowstone.cluster.image.records import BrokerRegistered, FeatureLevelChanged
from flowstone.errors import ErrorCode
from flowstone.wire.messages import ApiVersionsRequest, UpdateFeaturesRequest, UpdateFeaturesRequestFeatureUpdate

SHARE = "share.version"
UPGRADE, SAFE = 1, 2


@pytest.fixture
def supporting(broker: Any) -> Any:
    """A broker of a cluster whose only member supports share.version 0 to 2."""
    features = {METADATA_VERSION: FeatureRange(1, 1), SHARE: FeatureRange(0, 2)}
    asyncio.run(broker.metadata.append([BrokerRegistered(BrokerImage(1, None, {}, features=features))]))
    return broker


def update(level: int, *, upgrade_type: int = UPGRADE, **fields: Any) -> UpdateFeaturesRequest:
    each = UpdateFeaturesRequestFeatureUpdate(feature=SHARE, max_version_level=level, upgrade_type=upgrade_type)
    return UpdateFeaturesRequest(feature_updates=[each], **fields)


def api_versions(broker: Any, version: int) -> Any:
    return broker.call(version, ApiVersionsRequest(client_software_name="a", client_software_version="1"))


@pytest.mark.parametrize("version", range(3))
def test_a_level_that_all_brokers_support_is_finalized_in_every_version(supporting: Any, version: int) -> None:
    answer = supporting.call(version, update(1))
    assert answer.error_code == ErrorCode.NONE
    assert [(each.feature, each.error_code) for each in answer.results] == ([(SHARE, 0)] if version < 2 else [])
    assert supporting.image.feature_level(SHARE) == 1


@pytest.mark.parametrize("version", range(3))
def test_a_refused_level_is_the_error_of_the_whole_request(supporting: Any, version: int) -> None:
    answer = supporting.call(version, update(3))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "had an error: Invalid update version 3 for feature share.version." in answer.error_message
    assert not answer.results
    assert supporting.image.features == {}


def test_a_request_that_only_validates_changes_nothing(supporting: Any) -> None:
    assert supporting.call(2, update(1, validate_only=True)).error_code == ErrorCode.NONE
    assert supporting.call(2, update(3, validate_only=True)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert supporting.image.features == {}


def test_version_0_says_by_a_flag_that_a_level_may_go_down(supporting: Any) -> None:
    supporting.call(0, update(2))
    assert supporting.call(0, update(1)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    lower = UpdateFeaturesRequestFeatureUpdate(feature=SHARE, max_version_level=1, allow_downgrade=True)
    assert supporting.call(0, UpdateFeaturesRequest(feature_updates=[lower])).error_code == ErrorCode.NONE
    assert supporting.image.feature_level(SHARE) == 1


def test_more_features_than_there_can_be_are_refused(supporting: Any) -> None:
    many = [UpdateFeaturesRequestFeatureUpdate(feature=str(n), max_version_level=1) for n in range(101)]
    answer = supporting.call(2, UpdateFeaturesRequest(feature_updates=many))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [3, 4])
def test_supported_and_finalized_features_are_advertised_with_an_epoch(supporting: Any, version: int) -> None:
    before = api_versions(supporting, version)
    others = [(TRANSACTION_VERSION, 0, 2), (GROUP_VERSION, 0, 1), (SHARE, 0, 1)] if version >= 4 else []
    assert [(each.name, each.min_version, each.max_version) for each in before.supported_features] == [
        (METADATA_VERSION, 1, 2),
        *others,
    ]
    assert [(each.name, each.max_version_level) for each in before.finalized_features] == [(METADATA_VERSION, 1)]
    supporting.call(2, update(2))
    after = api_versions(supporting, version)
    assert (SHARE, 2, 2) in [
        (each.name, each.max_version_level, each.min_version_level) for each in after.finalized_features
    ]
    assert after.finalized_features_epoch > before.finalized_features_epoch >= 0
    asyncio.run(supporting.metadata.append([FeatureLevelChanged(SHARE, 0)]))
    off = api_versions(supporting, version)
    assert SHARE not in [each.name for each in off.finalized_features]
    assert off.finalized_features_epoch > after.finalized_features_epoch


def test_a_feature_that_can_be_off_is_left_out_for_clients_that_fail_on_level_0(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowstone.cluster.image.features.SUPPORTED_FEATURES", {SHARE: FeatureRange(0, 2)})
    assert [each.name for each in api_versions(broker, 4).supported_features] == [SHARE]
    assert list(api_versions(broker, 3).supported_features) == []
