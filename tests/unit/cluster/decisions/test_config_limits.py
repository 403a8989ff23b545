"""The limits of settings: how long a value is, how many groups and subscriptions have some, how threads change."""

from __future__ import annotations

import pytest

from flowstone.cluster.decisions import config_changes
from flowstone.cluster.decisions.config_changes import (
    SETTING_VALUE_LENGTH_MAX,
    AlterationResult,
    ConfigAlteration,
    ConfigOperation,
    Operation,
    ResourceType,
    alter_configs,
    check_topic_configs,
)
from flowstone.cluster.decisions.configs import describe_broker
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.records import ClientMetricsChanged, GroupConfigChanged
from flowstone.cluster.image.replay import apply
from flowstone.config import TOPIC_SETTINGS, BrokerConfig, Kind, TopicDefaults, parse_broker_config
from flowstone.errors import ApiError, ErrorCode

CONFIG = BrokerConfig(node_id=1)
INTERVAL, SELECTORS = "interval.ms", "match"


def change(kind: int, name: str, *values: tuple[str, str | None]) -> ConfigAlteration:
    operations = [
        ConfigOperation(each, Operation.DELETE if value is None else Operation.SET, value) for each, value in values
    ]
    return ConfigAlteration(kind, name, operations)


def metrics(*values: tuple[str, str | None], name: str = "all") -> ConfigAlteration:
    return change(ResourceType.CLIENT_METRICS, name, *values)


def altered(image: ClusterImage, alteration: ConfigAlteration) -> tuple[ClusterImage, ErrorCode, str]:
    records, (result,) = alter_configs(image, [alteration], CONFIG)
    return apply(image, records), result.error, result.message or ""


def after(image: ClusterImage, alteration: ConfigAlteration) -> ClusterImage:
    changed, code, message = altered(image, alteration)
    assert code is ErrorCode.NONE, message
    return changed


def test_a_subscription_is_stored_with_its_values_and_deleted_with_the_last_of_them() -> None:
    image = after(EMPTY_IMAGE, metrics((INTERVAL, "60000")))
    assert image.client_metrics == {"all": {INTERVAL: "60000"}}
    records, results = alter_configs(image, [metrics((INTERVAL, "60000"))], CONFIG)
    assert (records, results) == ([], [AlterationResult()])
    records, _ = alter_configs(image, [metrics((INTERVAL, "30000"))], CONFIG)
    assert records == [ClientMetricsChanged("all", {INTERVAL: "30000"})]
    assert after(image, metrics((INTERVAL, None))).client_metrics == {}


@pytest.mark.parametrize(
    ("alteration", "code"),
    [
        (metrics((INTERVAL, "60000"), name=""), ErrorCode.INVALID_REQUEST),
        (metrics((INTERVAL, "soon")), ErrorCode.INVALID_CONFIG),
        (metrics(("unknown", "1")), ErrorCode.INVALID_CONFIG),
        (change(ResourceType.GROUP, "", ("consumer.session.timeout.ms", "50000")), ErrorCode.INVALID_REQUEST),
        (change(77, "x"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_refused_change_leaves_no_record(alteration: ConfigAlteration, code: ErrorCode) -> None:
    changed, refused, message = altered(EMPTY_IMAGE, alteration)
    assert (refused, changed) == (code, EMPTY_IMAGE)
    assert message


def test_there_are_as_many_subscriptions_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "CLIENT_METRICS_MAX", 2)
    image = after(after(EMPTY_IMAGE, metrics((INTERVAL, "60000"), name="a")), metrics((INTERVAL, "60000"), name="b"))
    _, code, message = altered(image, metrics((INTERVAL, "60000"), name="c"))
    assert code is ErrorCode.POLICY_VIOLATION
    assert "2 subscriptions" in message
    assert after(image, metrics(name="c")) == image
    image = after(image, metrics((INTERVAL, "70000"), name="a"))
    assert set(
        after(after(image, metrics((INTERVAL, None), name="a")), metrics((INTERVAL, "1000"), name="c")).client_metrics
    ) == {"b", "c"}


def test_as_many_groups_have_settings_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "GROUPS_WITH_SETTINGS_MAX", 2)
    setting = "consumer.session.timeout.ms"
    image = apply(EMPTY_IMAGE, [GroupConfigChanged(each, {setting: "50000"}) for each in ("a", "b")])
    _, code, message = altered(image, change(ResourceType.GROUP, "c", (setting, "50000")))
    assert code is ErrorCode.POLICY_VIOLATION
    assert "2 groups" in message
    assert after(image, change(ResourceType.GROUP, "c")) == image
    assert after(image, change(ResourceType.GROUP, "a", (setting, "55000"))).group_configs["a"] == {setting: "55000"}


def test_a_value_may_be_as_long_as_the_limit() -> None:
    longest = "*" + " " * (SETTING_VALUE_LENGTH_MAX - 1)
    for kind, name, setting in (
        (ResourceType.CLIENT_METRICS, "all", "metrics"),
        (ResourceType.GROUP, "g", "consumer.session.timeout.ms"),
    ):
        _, _, message = altered(EMPTY_IMAGE, change(kind, name, (setting, longest)))
        assert "the longest that is taken" not in message
        _, code, message = altered(EMPTY_IMAGE, change(kind, name, (setting, longest + " ")))
        assert code is ErrorCode.INVALID_CONFIG
        assert message == (
            f"{setting}: a value of {SETTING_VALUE_LENGTH_MAX + 1} characters; "
            f"the longest that is taken has {SETTING_VALUE_LENGTH_MAX}"
        )
    with pytest.raises(ApiError, match="a value of 1025 characters"):
        check_topic_configs({"leader.replication.throttled.replicas": " " * 1025})


def test_the_smallest_lag_of_compaction_may_be_the_largest() -> None:
    check_topic_configs({"min.compaction.lag.ms": "1000", "max.compaction.lag.ms": "1000"})
    with pytest.raises(ApiError, match=r"min.compaction.lag.ms \(1001\) is larger") as error:
        check_topic_configs({"min.compaction.lag.ms": "1001", "max.compaction.lag.ms": "1000"})
    assert error.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(("count", "is_taken"), [("3", False), ("4", True), ("16", True), ("17", False)])
def test_a_number_of_threads_is_at_most_halved_and_at_most_doubled(count: str, is_taken: bool) -> None:
    broker, _ = parse_broker_config({"node.id": "1", "num.flush.threads": "8"})
    alteration = change(ResourceType.BROKER, "1", ("num.flush.threads", count))
    _, (result,) = alter_configs(EMPTY_IMAGE, [alteration], broker)
    assert (result.error is ErrorCode.NONE) is is_taken


@pytest.mark.parametrize(("name", "is_taken"), [("1", True), ("2", False), ("0", False), ("x", False), ("", True)])
def test_a_broker_changes_its_own_settings_and_those_of_all(name: str, is_taken: bool) -> None:
    _, code, _ = altered(EMPTY_IMAGE, change(ResourceType.BROKER, name, ("log.cleaner.threads", "1")))
    assert (code is ErrorCode.NONE) is is_taken


@pytest.mark.parametrize(
    ("name", "topic_setting", "default", "is_read_only"),
    [
        ("log.retention.ms", "retention.ms", None, False),
        ("log.retention.minutes", "retention.ms", None, True),
        ("log.retention.hours", "retention.ms", "168", True),
        ("log.roll.ms", "segment.ms", None, False),
        ("log.roll.hours", "segment.ms", "168", True),
        ("log.segment.bytes", "segment.bytes", str(1 << 30), False),
    ],
)
def test_of_the_broker_wide_names_of_a_setting_the_last_has_a_default_in_its_unit_and_the_first_can_be_changed(
    name: str, topic_setting: str, default: str | None, is_read_only: bool
) -> None:
    (entry,) = describe_broker(EMPTY_IMAGE, BrokerConfig(node_id=1), TopicDefaults(), {name})
    assert (entry.value, entry.setting.read_only) == (default, is_read_only)
    assert entry.setting.kind is (Kind.INT if is_read_only else TOPIC_SETTINGS[topic_setting].kind)
