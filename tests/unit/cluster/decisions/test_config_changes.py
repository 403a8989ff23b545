"""Decisions on settings: what is set, what is refused with which error, and which value counts afterwards."""

from __future__ import annotations

import pytest

from flowstone.cluster.decisions.config_changes import (
    AlterationResult,
    ConfigAlteration,
    ConfigOperation,
    Operation,
    ResourceType,
    alter_configs,
)
from flowstone.cluster.decisions.configs import (
    ConfigSource,
    broker_config,
    describe_broker,
    describe_cluster_default,
    describe_topic,
    topic_config,
)
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage, PartitionImage
from flowstone.cluster.image.records import BrokerConfigChanged, TopicConfigChanged, TopicCreated
from flowstone.cluster.image.replay import apply
from flowstone.config import BrokerConfig, TopicDefaults, parse_broker_config
from flowstone.errors import ErrorCode

NODE_ID = 1
CONFIG = BrokerConfig(node_id=NODE_ID)
TOPIC_ID = b"t" * 16
CREATED = TopicCreated("t", TOPIC_ID, (PartitionImage(1, 0, 0, (1,), (1,)),), {"retention.ms": "5"})
IMAGE = apply(EMPTY_IMAGE, [CREATED])


def topic_change(
    *operations: tuple[str, int, str | None], name: str = "t", replaces_all: bool = False
) -> ConfigAlteration:
    each = [ConfigOperation(*operation) for operation in operations]
    return ConfigAlteration(ResourceType.TOPIC, name, each, replaces_all)


def broker_change(*operations: tuple[str, int, str | None], name: str = "1") -> ConfigAlteration:
    return ConfigAlteration(ResourceType.BROKER, name, [ConfigOperation(*operation) for operation in operations])


def after(image: ClusterImage, *alterations: ConfigAlteration) -> ClusterImage:
    records, results = alter_configs(image, alterations, CONFIG)
    assert all(result.error == ErrorCode.NONE for result in results), results
    return apply(image, records)


def refusal(image: ClusterImage, alteration: ConfigAlteration) -> ErrorCode:
    records, (result,) = alter_configs(image, [alteration], CONFIG)
    assert records == []
    assert result.message
    return result.error


def test_single_values_are_set_and_removed_and_the_others_stay() -> None:
    image = after(IMAGE, topic_change(("segment.bytes", Operation.SET, "2000000")))
    assert image.topics["t"].configs == {"retention.ms": "5", "segment.bytes": "2000000"}
    image = after(image, topic_change(("retention.ms", Operation.DELETE, None)))
    assert image.topics["t"].configs == {"segment.bytes": "2000000"}


def test_the_older_request_replaces_everything() -> None:
    image = after(IMAGE, topic_change(("segment.bytes", Operation.SET, "2000000"), replaces_all=True))
    assert image.topics["t"].configs == {"segment.bytes": "2000000"}


def test_a_list_grows_and_shrinks_starting_from_its_default() -> None:
    image = after(IMAGE, topic_change(("cleanup.policy", Operation.APPEND, "compact")))
    assert image.topics["t"].configs["cleanup.policy"] == "delete,compact"
    image = after(image, topic_change(("cleanup.policy", Operation.APPEND, "compact,delete")))
    assert image.topics["t"].configs["cleanup.policy"] == "delete,compact"
    image = after(image, topic_change(("cleanup.policy", Operation.SUBTRACT, "delete")))
    assert image.topics["t"].configs["cleanup.policy"] == "compact"


def test_a_change_that_changes_nothing_makes_no_record() -> None:
    same = topic_change(("retention.ms", Operation.SET, "5"), ("segment.ms", Operation.DELETE, None))
    assert alter_configs(IMAGE, [same], CONFIG) == ([], [AlterationResult()])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (topic_change(("nonsense", Operation.SET, "1")), ErrorCode.INVALID_CONFIG),
        (topic_change(("retention.ms", Operation.SET, "soon")), ErrorCode.INVALID_CONFIG),
        (topic_change(("retention.ms", Operation.SET, "-2")), ErrorCode.INVALID_CONFIG),
        (topic_change(("retention.ms", Operation.SET, None)), ErrorCode.INVALID_REQUEST),
        (topic_change(("retention.ms", Operation.APPEND, "1")), ErrorCode.INVALID_CONFIG),
        (topic_change(("nonsense", Operation.SUBTRACT, "1")), ErrorCode.INVALID_CONFIG),
        (topic_change(("cleanup.policy", Operation.SET, "delete,")), ErrorCode.INVALID_CONFIG),
        (topic_change(("compression.gzip.level", Operation.SET, "0")), ErrorCode.INVALID_CONFIG),
        (topic_change(("retention.ms", 7, "1")), ErrorCode.INVALID_REQUEST),
        (topic_change(*[("retention.ms", Operation.SET, "1")] * 2), ErrorCode.INVALID_REQUEST),
        (topic_change(("min.compaction.lag.ms", 0, "2"), ("max.compaction.lag.ms", 0, "1")), ErrorCode.INVALID_CONFIG),
        (topic_change(("retention.ms", Operation.SET, "1"), name="no"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (topic_change(("nonsense", Operation.SET, "1"), name="no"), ErrorCode.INVALID_CONFIG),
        (topic_change(("retention.ms", Operation.SET, "1"), name=""), ErrorCode.INVALID_REQUEST),
        (topic_change(("retention.ms", Operation.SET, "1"), name="a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (broker_change(("num.partitions", Operation.SET, "0")), ErrorCode.INVALID_REQUEST),
        (broker_change(("log.retention.ms", Operation.SET, "soon")), ErrorCode.INVALID_REQUEST),
        (broker_change(("log.dirs", Operation.SET, "/elsewhere")), ErrorCode.INVALID_REQUEST),
        (broker_change(("retention.ms", Operation.SET, "1")), ErrorCode.INVALID_REQUEST),
        (broker_change(("nonsense", Operation.SET, "1")), ErrorCode.INVALID_CONFIG),
        (broker_change(("num.partitions", Operation.SET, "1"), name="2"), ErrorCode.INVALID_REQUEST),
        (broker_change(("num.partitions", Operation.SET, "1"), name="one"), ErrorCode.INVALID_REQUEST),
        (ConfigAlteration(8, "1", []), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_kafka_refuses_is_refused_with_kafkas_error(change: ConfigAlteration, error: ErrorCode) -> None:
    assert refusal(IMAGE, change) == error


def test_a_resource_named_twice_is_refused_and_the_others_are_changed() -> None:
    twice = topic_change(("segment.ms", Operation.SET, "1"))
    records, results = alter_configs(
        IMAGE, [twice, broker_change(("num.partitions", Operation.SET, "4")), twice], CONFIG
    )
    assert [result.error for result in results] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert records == [BrokerConfigChanged("1", {"num.partitions": "4"})]


def test_a_topics_setting_is_looked_up_from_the_nearest_place_to_the_farthest() -> None:
    config, static = parse_broker_config({"log.retention.hours": "1", "log.segment.bytes": "3000000"})
    image = apply(EMPTY_IMAGE, [CREATED, TopicConfigChanged(TOPIC_ID, {"retention.ms": None})])

    def retention_ms(image: ClusterImage, node_id: int = NODE_ID) -> int:
        return topic_config(image, "t", static, node_id).retention_ms

    assert topic_config(image, "t", {}, NODE_ID).retention_ms == 7 * 24 * 3600 * 1000
    assert retention_ms(image) == 3600 * 1000
    image = after(image, broker_change(("log.retention.ms", Operation.SET, "30"), name=""))
    assert retention_ms(image) == 30
    image = after(image, broker_change(("log.retention.ms", Operation.SET, "20")))
    assert (retention_ms(image), retention_ms(image, node_id=2)) == (20, 30)
    image = after(image, topic_change(("retention.ms", Operation.SET, "10")))
    assert retention_ms(image) == 10
    assert topic_config(image, "t", static, NODE_ID).segment_bytes == 3000000
    (entry,) = describe_topic(image, image.topics["t"], static, NODE_ID, {"retention.ms"})
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        ("retention.ms", "10", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.ms", "20", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("log.retention.ms", "30", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.hours", "1", ConfigSource.STATIC_BROKER_CONFIG),
    ]
    assert (entry.value, entry.source) == ("10", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    (of_broker,) = describe_broker(image, config, static, {"log.retention.ms"})
    assert of_broker.synonyms == entry.synonyms[1:3]


def test_a_brokers_dynamic_value_counts_before_the_one_it_was_started_with() -> None:
    config = BrokerConfig(num_partitions=3)
    image = after(EMPTY_IMAGE, broker_change(("num.partitions", Operation.SET, "5"), name=""))
    assert broker_config(EMPTY_IMAGE, config) is config
    assert broker_config(image, config).num_partitions == 5
    image = after(image, broker_change(("num.partitions", Operation.SET, "7")))
    assert broker_config(image, config).num_partitions == 7
    assert broker_config(image, BrokerConfig(node_id=2)).num_partitions == 5
    (entry,) = describe_broker(image, config, TopicDefaults(), {"num.partitions"})
    assert [each.source for each in entry.synonyms] == [
        ConfigSource.DYNAMIC_BROKER_CONFIG,
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        ConfigSource.STATIC_BROKER_CONFIG,
        ConfigSource.DEFAULT_CONFIG,
    ]


def test_of_the_values_that_all_brokers_share_only_those_set_are_shown() -> None:
    assert describe_cluster_default(EMPTY_IMAGE) == []
    image = after(EMPTY_IMAGE, broker_change(("log.flush.interval.messages", Operation.SET, "9"), name=""))
    (entry,) = describe_cluster_default(image)
    assert (entry.setting.name, entry.value) == ("log.flush.interval.messages", "9")
    assert describe_cluster_default(image, {"num.partitions"}) == []


def test_every_setting_of_a_topic_and_of_a_broker_is_shown_once() -> None:
    given = TopicDefaults()
    of_topic = describe_topic(IMAGE, IMAGE.topics["t"], given, NODE_ID)
    for entries in (of_topic, describe_broker(IMAGE, BrokerConfig(), given)):
        names = [entry.setting.name for entry in entries]
        assert len(names) == len(set(names)) > 20


def with_readers(image: ClusterImage, count: int, name: str = "1") -> ClusterImage:
    return apply(image, [BrokerConfigChanged(name, {"num.reader.threads": str(count)})])


@pytest.mark.parametrize(
    ("current", "wanted", "reason"),
    [
        (8, 4, ""),
        (8, 16, ""),
        (8, 8, ""),
        (3, 1, ""),
        (8, 3, "value should be at least half the current value 8"),
        (8, 17, "value should not be greater than double the current value 8"),
        (3, 7, "value should not be greater than double the current value 3"),
    ],
)
@pytest.mark.parametrize("name", ["1", ""])
def test_a_number_of_threads_changes_by_a_factor_of_two_at_most(
    current: int, wanted: int, reason: str, name: str
) -> None:
    change = broker_change(("num.reader.threads", Operation.SET, str(wanted)), name=name)
    _records, (result,) = alter_configs(with_readers(IMAGE, current, name), [change], CONFIG)
    if not reason:
        assert result == AlterationResult()
        return
    message = f"Dynamic thread count update validation failed for num.reader.threads={wanted}, {reason}"
    assert result == AlterationResult(ErrorCode.INVALID_REQUEST, message)


@pytest.mark.parametrize("value", ["0", "65", "-1", "many"])
def test_a_number_of_threads_has_bounds_of_its_own(value: str) -> None:
    change = broker_change(("num.flush.threads", Operation.SET, value))
    assert refusal(IMAGE, change) == ErrorCode.INVALID_REQUEST


def test_a_number_of_threads_does_not_fall_far_when_its_value_is_removed() -> None:
    removal = broker_change(("num.reader.threads", Operation.DELETE, None))
    assert refusal(with_readers(IMAGE, 2 * CONFIG.num_reader_threads + 2), removal) == ErrorCode.INVALID_REQUEST
    image = after(with_readers(IMAGE, 2 * CONFIG.num_reader_threads), removal)
    assert broker_config(image, CONFIG).num_reader_threads == CONFIG.num_reader_threads


def test_a_number_of_threads_for_all_brokers_may_be_any_where_the_broker_has_its_own() -> None:
    image = with_readers(IMAGE, 3)
    image = after(image, broker_change(("num.reader.threads", Operation.SET, "64"), name=""))
    assert broker_config(image, CONFIG).num_reader_threads == 3
