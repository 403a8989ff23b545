"""Settings of groups as clients alter and describe them, and as coordinators read them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowstone.cluster.decisions.configs import ConfigSource
from flowstone.cluster.image.features import METADATA_LEVEL_MAX, METADATA_VERSION
from flowstone.cluster.image.records import FeatureLevelChanged
from flowstone.config import GROUP_SETTINGS, GroupSettings
from flowstone.errors import ApiError, ErrorCode
from tests.unit.broker.handlers.test_configs import describe, set_value

GROUP = 32
SESSION = "consumer.session.timeout.ms"


@pytest.fixture
def upgraded(broker: Any) -> Any:
    asyncio.run(broker.metadata.append([FeatureLevelChanged(METADATA_VERSION, METADATA_LEVEL_MAX)]))
    return broker


@pytest.mark.parametrize("version", range(1, 5))
def test_a_groups_settings_are_described_before_and_after_a_change(upgraded: Any, version: int) -> None:
    before = describe(upgraded, version, GROUP, "g")
    assert {config.name for config in before.configs} == set(GROUP_SETTINGS)
    assert {config.config_source for config in before.configs} == {ConfigSource.DEFAULT_CONFIG}
    assert set_value(upgraded, GROUP, "g", SESSION, "50000").error_code == ErrorCode.NONE
    (config,) = describe(upgraded, version, GROUP, "g", [SESSION], include_synonyms=True).configs
    assert (config.value, config.config_source) == ("50000", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert [each.name for each in config.synonyms] == [SESSION, f"group.{SESSION}"]


def test_a_coordinator_reads_a_changed_setting_at_once(upgraded: Any) -> None:
    settings = upgraded.services.groups.settings
    assert settings.of("g") == settings.of("h") == GroupSettings()
    set_value(upgraded, GROUP, "g", SESSION, "50000")
    assert (settings.of("g").consumer_session_timeout_ms, settings.of("h")) == (50_000, GroupSettings())
    set_value(upgraded, GROUP, "g", SESSION, "51000")
    assert settings.of("g").consumer_session_timeout_ms == 51_000


def test_what_a_group_cannot_have_is_refused_with_the_bound(upgraded: Any) -> None:
    response = set_value(upgraded, GROUP, "g", SESSION, "1")
    assert response.error_code == ErrorCode.INVALID_CONFIG
    assert "group.consumer.min.session.timeout.ms, 45000" in response.error_message
    assert describe(upgraded, 4, GROUP, "").error_code == ErrorCode.INVALID_REQUEST


def test_a_cluster_that_is_not_upgraded_refuses_settings_of_groups(broker: Any) -> None:
    with pytest.raises(ApiError, match="flowstone cluster features upgrade"):
        set_value(broker, GROUP, "g", SESSION, "50000")
