"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs as clients of every version see them."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.cluster.decisions.config_changes import Operation
from flowstone.cluster.decisions.configs import ConfigSource
from flowstone.config import BROKER_SETTINGS, TOPIC_SETTINGS, Kind
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)

TOPIC, BROKER = 2, 4
SHOWN_OF_TOPIC = [name for name, setting in TOPIC_SETTINGS.items() if not setting.is_hidden]
TIMES = ("log.retention.", "log.roll.")


def describe(broker: Any, version: int, kind: int, name: str, keys: list[str] | None = None, **more: Any) -> Any:
    resource = DescribeConfigsRequestResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    (result,) = broker.call(version, DescribeConfigsRequest(resources=[resource], **more)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def set_value(broker: Any, kind: int, name: str, key: str, value: str | None, operation: int = Operation.SET) -> Any:
    config = IncrementalAlterConfigsRequestConfig(name=key, config_operation=operation, value=value)
    resource = IncrementalAlterConfigsRequestResource(resource_type=kind, resource_name=name, configs=[config])
    (response,) = broker.call(1, IncrementalAlterConfigsRequest(resources=[resource])).responses
    return response


@pytest.mark.parametrize("version", range(1, 5))
def test_every_setting_of_a_topic_is_described(broker: Any, version: int) -> None:
    broker.create("a")
    result = describe(broker, version, TOPIC, "a")
    assert result.error_code == ErrorCode.NONE
    configs = {config.name: config for config in result.configs}
    assert set(configs) == set(SHOWN_OF_TOPIC)
    retention = configs["retention.ms"]
    assert (retention.value, retention.config_source) == ("604800000", ConfigSource.DEFAULT_CONFIG)
    assert (retention.read_only, retention.is_sensitive) == (False, False)
    assert retention.synonyms == []
    if version >= 3:
        assert (retention.config_type, configs["cleanup.policy"].config_type) == (Kind.LONG, Kind.LIST)
        assert retention.documentation is None


@pytest.mark.parametrize("version", range(1, 5))
@pytest.mark.parametrize("keys", [["retention.ms"], ["retention.ms", "nonsense"]])
def test_only_the_settings_named_are_described(broker: Any, version: int, keys: list[str]) -> None:
    broker.create("a")
    assert [config.name for config in describe(broker, version, TOPIC, "a", keys).configs] == ["retention.ms"]


def test_an_empty_list_of_names_asks_for_all(broker: Any) -> None:
    broker.create("a")
    assert len(describe(broker, 4, TOPIC, "a", []).configs) == len(SHOWN_OF_TOPIC)


@pytest.mark.parametrize("version", range(1, 5))
def test_synonyms_show_every_place_a_value_comes_from(make_broker: Any, version: int) -> None:
    broker = make_broker(log_retention_hours="1")
    broker.create("a")
    set_value(broker, TOPIC, "a", "retention.ms", "7")
    (config,) = describe(broker, version, TOPIC, "a", ["retention.ms"], include_synonyms=True).configs
    assert [(each.name, each.value, each.source) for each in config.synonyms] == [
        ("retention.ms", "7", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.hours", "1", ConfigSource.STATIC_BROKER_CONFIG),
    ]


def test_documentation_is_given_to_those_who_ask(broker: Any) -> None:
    (config,) = describe(broker, 4, BROKER, "1", ["num.partitions"], include_documentation=True).configs
    assert config.documentation == BROKER_SETTINGS["num.partitions"].doc


def test_a_broker_shows_its_settings_and_which_cannot_be_changed(broker: Any) -> None:
    configs = {config.name: config for config in describe(broker, 4, BROKER, "1").configs}
    assert configs["log.dirs"].read_only
    assert not configs["num.partitions"].read_only
    assert "retention.ms" not in configs


@pytest.mark.parametrize("version", range(1, 5))
def test_a_time_that_was_not_set_is_shown_in_hours_as_kafka_does(broker: Any, version: int) -> None:
    configs = {config.name: config for config in describe(broker, version, BROKER, "1").configs}
    times = {name: (config.value, config.config_source) for name, config in configs.items() if name.startswith(TIMES)}
    default = ConfigSource.DEFAULT_CONFIG
    assert times == {
        "log.retention.ms": (None, default),
        "log.retention.minutes": (None, default),
        "log.retention.hours": ("168", default),
        "log.retention.bytes": ("-1", default),
        "log.retention.check.interval.ms": ("300000", default),
        "log.roll.ms": (None, default),
        "log.roll.hours": ("168", default),
        "log.roll.jitter.ms": (None, default),
        "log.roll.jitter.hours": ("0", default),
    }
    assert (configs["log.retention.ms"].read_only, configs["log.retention.hours"].read_only) == (False, True)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"log_retention_hours": "1"}, {"log.retention.hours": "1"}),
        ({"log_retention_hours": "168"}, {"log.retention.hours": "168"}),
        ({"log_retention_minutes": "90"}, {"log.retention.minutes": "90"}),
        ({"retention_ms": "5"}, {"log.retention.ms": "5"}),
        ({"log_retention_ms": "5", "log_retention_hours": "2"}, {"log.retention.ms": "5", "log.retention.hours": "2"}),
    ],
)
def test_a_time_is_shown_under_the_name_it_was_set_by(
    make_broker: Any, given: dict[str, str], shown: dict[str, str]
) -> None:
    broker = make_broker(**given)
    set_at_start = {
        config.name: config.value
        for config in describe(broker, 4, BROKER, "1").configs
        if config.config_source == ConfigSource.STATIC_BROKER_CONFIG and config.name.startswith(TIMES)
    }
    assert set_at_start == shown


def test_a_time_changed_at_run_time_is_shown_in_milliseconds_and_counts_for_topics(broker: Any) -> None:
    broker.create("a")
    assert set_value(broker, BROKER, "1", "log.retention.ms", "9").error_code == ErrorCode.NONE
    names = ["log.retention.ms", "log.retention.hours"]
    configs = {config.name: config.value for config in describe(broker, 4, BROKER, "1", names).configs}
    assert configs == {"log.retention.ms": "9", "log.retention.hours": "168"}
    (config,) = describe(broker, 4, TOPIC, "a", ["retention.ms"]).configs
    assert (config.value, config.config_source) == ("9", ConfigSource.DYNAMIC_BROKER_CONFIG)


def test_the_values_that_all_brokers_share_have_a_resource_of_their_own(broker: Any) -> None:
    assert describe(broker, 4, BROKER, "").configs == []
    assert set_value(broker, BROKER, "", "num.partitions", "6").error_code == ErrorCode.NONE
    (config,) = describe(broker, 4, BROKER, "").configs
    assert (config.name, config.value) == ("num.partitions", "6")
    assert config.config_source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (8, "2", ErrorCode.INVALID_REQUEST),
        (0, "1", ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_described_says_why(broker: Any, kind: int, name: str, error: ErrorCode) -> None:
    result = describe(broker, 4, kind, name)
    assert (result.error_code, result.configs) == (error, [])
    assert result.error_message


@pytest.mark.parametrize("version", range(3))
def test_the_older_request_replaces_a_topics_values(broker: Any, version: int) -> None:
    broker.create("a")
    set_value(broker, TOPIC, "a", "retention.ms", "7")
    configs = [AlterConfigsRequestConfig(name="segment.ms", value="8")]
    resource = AlterConfigsRequestResource(resource_type=TOPIC, resource_name="a", configs=configs)
    (response,) = broker.call(version, AlterConfigsRequest(resources=[resource])).responses
    assert (response.error_code, response.resource_type, response.resource_name) == (ErrorCode.NONE, TOPIC, "a")
    assert broker.image.topics["a"].configs == {"segment.ms": "8"}


@pytest.mark.parametrize("version", range(2))
def test_single_values_change_and_errors_stay_with_their_resource(broker: Any, version: int) -> None:
    broker.create("a", "b")
    resources = [
        IncrementalAlterConfigsRequestResource(
            resource_type=TOPIC,
            resource_name=name,
            configs=[IncrementalAlterConfigsRequestConfig(name=key, config_operation=Operation.SET, value="7")],
        )
        for name, key in (("a", "nonsense"), ("b", "retention.ms"))
    ]
    responses = broker.call(version, IncrementalAlterConfigsRequest(resources=resources)).responses
    assert [each.error_code for each in responses] == [ErrorCode.INVALID_CONFIG, ErrorCode.NONE]
    assert broker.image.topics["b"].configs == {"retention.ms": "7"}


def test_a_change_that_is_only_tried_changes_nothing(broker: Any) -> None:
    broker.create("a")
    config = IncrementalAlterConfigsRequestConfig(name="retention.ms", config_operation=Operation.SET, value="7")
    resource = IncrementalAlterConfigsRequestResource(resource_type=TOPIC, resource_name="a", configs=[config])
    (response,) = broker.call(1, IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)).responses
    assert response.error_code == ErrorCode.NONE
    assert broker.image.topics["a"].configs == {}


def test_a_removed_value_falls_back_to_the_next_place(broker: Any) -> None:
    broker.create("a")
    set_value(broker, TOPIC, "a", "retention.ms", "7")
    set_value(broker, TOPIC, "a", "retention.ms", None, Operation.DELETE)
    (config,) = describe(broker, 4, TOPIC, "a", ["retention.ms"]).configs
    assert (config.value, config.config_source) == ("604800000", ConfigSource.DEFAULT_CONFIG)


# Values that differ from the defaults, for every topic setting of Kafka 4.3.
TOPIC_OF_KAFKA = {
    "cleanup.policy": "compact,delete",
    "compression.gzip.level": "3",
    "compression.lz4.level": "4",
    "compression.type": "zstd",
    "compression.zstd.level": "5",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "1001",
    "flush.messages": "1002",
    "flush.ms": "1003",
    "follower.replication.throttled.replicas": "0:1,1:2",
    "index.interval.bytes": "1004",
    "leader.replication.throttled.replicas": "*",
    "local.retention.bytes": "1005",
    "local.retention.ms": "1006",
    "max.compaction.lag.ms": "1007",
    "max.message.bytes": "1008",
    "message.timestamp.after.max.ms": "1009",
    "message.timestamp.before.max.ms": "1010",
    "message.timestamp.type": "LogAppendTime",
    "min.cleanable.dirty.ratio": "0.25",
    "min.compaction.lag.ms": "1006",
    "min.insync.replicas": "2",
    "preallocate": "true",
    "remote.log.copy.disable": "true",
    "remote.log.delete.on.disable": "true",
    "remote.storage.enable": "true",
    "retention.bytes": "-5",
    "retention.ms": "1011",
    "segment.bytes": "1048577",
    "segment.index.bytes": "1012",
    "segment.jitter.ms": "1013",
    "segment.ms": "1014",
    "unclean.leader.election.enable": "true",
}


def test_a_topic_keeps_every_setting_that_a_tool_copies_from_kafka(broker: Any) -> None:
    configs = [CreateTopicsRequestConfig(name=name, value=value) for name, value in TOPIC_OF_KAFKA.items()]
    topic = CreateTopicsRequestTopic(name="copy", num_partitions=1, replication_factor=1, configs=configs)
    (created,) = broker.call(7, CreateTopicsRequest(topics=[topic])).topics
    assert created.error_code == ErrorCode.NONE, created.error_message
    told = {each.name: each for each in describe(broker, 4, TOPIC, "copy").configs}
    assert {name: told[name].value for name in TOPIC_OF_KAFKA} == TOPIC_OF_KAFKA
    assert {told[name].config_source for name in TOPIC_OF_KAFKA} == {ConfigSource.DYNAMIC_TOPIC_CONFIG}
    assert set(told) - set(TOPIC_OF_KAFKA) == {"errors.deadletterqueue.group.enable", "flowstone.validation"}


def test_a_broker_setting_without_effect_is_changed_and_shown(broker: Any) -> None:
    own = str(broker.services.config.node_id)
    assert set_value(broker, BROKER, own, "num.io.threads", "12").error_code == ErrorCode.NONE
    assert set_value(broker, BROKER, "", "num.io.threads", "9").error_code == ErrorCode.NONE
    (told,) = describe(broker, 4, BROKER, own, ["num.io.threads"], include_synonyms=True).configs
    assert (told.value, told.read_only) == ("12", False)
    assert [(each.value, each.source) for each in told.synonyms] == [
        ("12", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("9", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("8", ConfigSource.DEFAULT_CONFIG),
    ]


@pytest.mark.parametrize(
    ("resource", "name", "value"),
    [
        ("own", "num.io.threads", "0"),
        ("own", "queued.max.requests", "3"),
        ("", "cordoned.log.dirs", "/a"),
        ("own", "principal.builder.class", "org.example.Builder"),
    ],
)
def test_a_change_without_effect_that_kafka_refuses_is_refused(
    broker: Any, resource: str, name: str, value: str
) -> None:
    own = str(broker.services.config.node_id)
    told = set_value(broker, BROKER, own if resource == "own" else resource, name, value)
    assert told.error_code == ErrorCode.INVALID_REQUEST


def test_a_broker_setting_without_a_default_is_null_and_hidden_ones_are_not_shown(broker: Any) -> None:
    told = {each.name: each for each in describe(broker, 4, BROKER, str(broker.services.config.node_id)).configs}
    assert (told["num.replica.alter.log.dirs.threads"].value, told["process.roles"].value) == (None, None)
    assert told["principal.builder.class"].config_type == Kind.CLASS
    assert not [name for name in told if name.startswith(("internal.", "unstable."))]
