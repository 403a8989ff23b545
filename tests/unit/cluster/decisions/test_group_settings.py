"""Settings of groups: what is accepted, what is refused with which error, and which value counts afterwards."""

from __future__ import annotations

from itertools import pairwise

import pytest

from flowstone.cluster.decisions import config_changes
from flowstone.cluster.decisions.config_changes import (
    ConfigAlteration,
    ConfigOperation,
    Operation,
    ResourceType,
    alter_configs,
)
from flowstone.cluster.decisions.configs import ConfigSource, describe_group, group_settings
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.records import GroupConfigChanged
from flowstone.cluster.image.replay import apply
from flowstone.config import GROUP_SETTINGS, BrokerConfig, GroupSettings, parse_broker_config
from flowstone.config.group import reset_duration_ms
from flowstone.errors import ConfigError, ErrorCode

CONFIG = BrokerConfig(node_id=1)


def change(*values: tuple[str, str | None], group_id: str = "g", operation: int = Operation.SET) -> ConfigAlteration:
    operations = [ConfigOperation(name, operation, value) for name, value in values]
    return ConfigAlteration(ResourceType.GROUP, group_id, operations)


def after(image: ClusterImage, *alterations: ConfigAlteration) -> ClusterImage:
    records, results = alter_configs(image, alterations, CONFIG)
    assert all(result.error == ErrorCode.NONE for result in results), results
    return apply(image, records)


def refused(image: ClusterImage, alteration: ConfigAlteration) -> tuple[ErrorCode, str]:
    records, (result,) = alter_configs(image, [alteration], CONFIG)
    assert records == []
    assert result.message
    return result.error, result.message


def test_without_values_of_its_own_a_group_has_the_brokers_defaults() -> None:
    assert group_settings(EMPTY_IMAGE, "g", CONFIG) == GroupSettings()
    broker, _ = parse_broker_config({"group.consumer.heartbeat.interval.ms": "7000"})
    assert group_settings(EMPTY_IMAGE, "g", broker).consumer_heartbeat_interval_ms == 7000


def test_a_groups_own_value_counts_before_the_brokers_and_for_that_group_only() -> None:
    image = after(
        EMPTY_IMAGE, change(("consumer.session.timeout.ms", "50000"), ("share.isolation.level", "read_committed"))
    )
    settings = group_settings(image, "g", CONFIG)
    assert (settings.consumer_session_timeout_ms, settings.share_isolation_level) == (50_000, "read_committed")
    assert group_settings(image, "other", CONFIG) == GroupSettings()


def test_a_value_is_removed_and_the_group_is_forgotten_with_its_last_one() -> None:
    image = after(EMPTY_IMAGE, change(("share.lookahead", "2000"), ("share.ordering", "key")))
    image = after(image, change(("share.ordering", None), operation=Operation.DELETE))
    assert image.group_configs == {"g": {"share.lookahead": "2000"}}
    image = after(image, change(("share.lookahead", None), operation=Operation.DELETE))
    assert image.group_configs == {}


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("consumer.session.timeout.ms", "44999", "group.consumer.min.session.timeout.ms, 45000"),
        ("consumer.session.timeout.ms", "60001", "group.consumer.max.session.timeout.ms, 60000"),
        ("consumer.heartbeat.interval.ms", "4999", "group.consumer.min.heartbeat.interval.ms"),
        ("consumer.assignment.interval.ms", "15001", "group.consumer.max.assignment.interval.ms"),
        ("share.delivery.count.limit", "1", "group.share.min.delivery.count.limit"),
        ("share.delivery.count.limit", "11", "group.share.max.delivery.count.limit"),
        ("share.partition.max.record.locks", "99", "group.share.min.partition.max.record.locks"),
        ("share.record.lock.duration.ms", "60001", "group.share.max.record.lock.duration.ms"),
        ("share.auto.offset.reset", "none", "by_duration:PT1H"),
        ("share.auto.offset.reset", "by_duration:", "by_duration:PT1H"),
        ("share.auto.offset.reset", "by_duration:-PT1H", "by_duration:PT1H"),
        ("share.isolation.level", "committed", "read_committed"),
        ("share.renew.acknowledge.enable", "yes", "true or false"),
        ("share.ordering", "keys", "none, key"),
        ("share.redelivery.backoff.ms", "60001", "larger than share.redelivery.backoff.max.ms"),
        ("consumer.session.timeout.ms", "x", "not a whole number"),
        ("consumer.session.timeout", "45000", "Unknown group config name"),
        ("retention.ms", "1", "Unknown group config name"),
    ],
)
def test_what_a_group_cannot_have_is_an_invalid_config(name: str, value: str, told: str) -> None:
    error, message = refused(EMPTY_IMAGE, change((name, value)))
    assert error == ErrorCode.INVALID_CONFIG
    assert told in message


def test_the_session_timeout_must_be_greater_than_the_heartbeat_interval() -> None:
    values = {"group.consumer.min.session.timeout.ms": "5000", "group.consumer.heartbeat.interval.ms": "6000"}
    broker, _ = parse_broker_config(values)
    _, (result,) = alter_configs(EMPTY_IMAGE, [change(("consumer.session.timeout.ms", "6000"))], broker)
    assert result.error == ErrorCode.INVALID_CONFIG
    assert result.message == "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms"


def test_the_default_group_has_no_settings() -> None:
    error, message = refused(EMPTY_IMAGE, change(("share.lookahead", "2000"), group_id=""))
    assert (error, message) == (ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")


def test_the_number_of_groups_with_settings_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "GROUPS_WITH_SETTINGS_MAX", 1)
    image = after(EMPTY_IMAGE, change(("share.lookahead", "2000")))
    assert refused(image, change(("share.lookahead", "2000"), group_id="h"))[0] == ErrorCode.POLICY_VIOLATION
    after(image, change(("share.lookahead", "3000")))


def test_a_stored_value_outside_of_new_bounds_is_moved_into_them() -> None:
    values = {"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "newer", "unknown": "1"}
    image = apply(EMPTY_IMAGE, [GroupConfigChanged("g", dict(values))])
    broker, _ = parse_broker_config({"group.consumer.max.session.timeout.ms": "50000"})
    settings = group_settings(image, "g", broker)
    assert settings.consumer_session_timeout_ms == 50_000
    assert settings.consumer_heartbeat_interval_ms == 5000


def test_a_description_names_every_place_that_a_value_comes_from() -> None:
    broker, _ = parse_broker_config({"node.id": "1", "group.share.delivery.count.limit": "6"})
    image = after(EMPTY_IMAGE, change(("share.delivery.count.limit", "7")))
    (entry,) = describe_group(image, "g", broker, ["share.delivery.count.limit", "nonsense"])
    assert entry.value == "7"
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        ("share.delivery.count.limit", "7", ConfigSource.DYNAMIC_GROUP_CONFIG),
        ("group.share.delivery.count.limit", "6", ConfigSource.STATIC_BROKER_CONFIG),
        ("group.share.delivery.count.limit", "5", ConfigSource.DEFAULT_CONFIG),
    ]
    described = {each.setting.name: each for each in describe_group(EMPTY_IMAGE, "g", broker)}
    assert set(described) == set(GROUP_SETTINGS)
    assert (described["share.ordering"].value, described["share.ordering"].synonyms) == ("none", ())


@pytest.mark.parametrize(
    "values",
    [
        {"group.consumer.session.timeout.ms": "70000"},
        {"group.share.min.session.timeout.ms": "50000"},
        {"group.consumer.heartbeat.interval.ms": "45000", "group.consumer.max.heartbeat.interval.ms": "45000"},
    ],
)
def test_a_broker_does_not_start_with_defaults_that_its_bounds_forbid(values: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"group\.(consumer|share)\."):
        parse_broker_config(values)


def test_durations_are_read_as_java_writes_them() -> None:
    texts = ["PT0.5S", "PT1S", "PT1M", "PT1H", "P1D", "P1DT1H"]
    found = [reset_duration_ms(f"by_duration:{text}") for text in texts]
    assert found == [500, 1000, 60_000, 3_600_000, 86_400_000, 90_000_000]
    assert all(before < later for before, later in pairwise(filter(None, found)))
    assert reset_duration_ms("latest") is None
