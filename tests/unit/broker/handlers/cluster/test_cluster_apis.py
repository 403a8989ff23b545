"""ListConfigResources, DescribeQuorum and log levels, as clients of every version see them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from flowstone.cluster.decisions.config_changes import Operation
from flowstone.cluster.decisions.configs import ConfigSource
from flowstone.cluster.image.features import METADATA_LEVEL_MAX, METADATA_VERSION
from flowstone.cluster.image.records import BrokerFenced, ControllerElected, FeatureLevelChanged, GroupConfigChanged
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire import messages as m
from tests.unit.broker.handlers.test_configs import describe, set_value

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
LOGGER_NAME = "flowstone.broker.handlers.cluster.tested"


def listed(broker: Any, version: int, *types: int) -> set[tuple[int, str]]:
    answer = broker.call(version, m.ListConfigResourcesRequest(resource_types=list(types)))
    assert answer.error_code == ErrorCode.NONE
    return {(each.resource_type, each.resource_name) for each in answer.config_resources}


@pytest.fixture
def configured(make_broker: Any) -> Any:
    broker = make_broker(brokers=2)
    records = [FeatureLevelChanged(METADATA_VERSION, METADATA_LEVEL_MAX), GroupConfigChanged("g", {"x": "1"})]
    for record in records:
        asyncio.run(broker.metadata.append([record]))
    broker.create("a", "b")
    return broker


def test_resources_are_listed_by_type_all_of_them_if_none_is_named(configured: Any) -> None:
    everything = {
        *((TOPIC, name) for name in "ab"),
        *((kind, name) for kind in (BROKER, LOGGER) for name in "12"),
        (GROUP, "g"),
    }
    assert listed(configured, 1) == everything
    assert listed(configured, 1, GROUP, TOPIC) == {each for each in everything if each[0] in (GROUP, TOPIC)}


def test_version_0_lists_client_metrics_of_which_there_are_none(configured: Any) -> None:
    assert listed(configured, 0) == set()


def test_a_type_that_does_not_exist_is_refused(configured: Any) -> None:
    with pytest.raises(ApiError, match="resource type 3 cannot be listed"):
        listed(configured, 1, 3)


@pytest.mark.parametrize("version", range(3))
def test_the_quorum_is_the_controller_and_the_brokers(make_broker: Any, version: int) -> None:
    broker = make_broker(brokers=3)
    dead = broker.image.brokers[3]
    asyncio.run(broker.metadata.append([ControllerElected(2, 7), BrokerFenced(3, dead.epoch)]))
    partitions = [m.DescribeQuorumRequestPartition(partition_index=index) for index in (0, 1)]
    topic = m.DescribeQuorumRequestTopic(topic_name="__cluster_metadata", partitions=partitions)
    answer = broker.call(version, m.DescribeQuorumRequest(topics=[topic]))
    found, missing = answer.topics[0].partitions
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (found.leader_id, found.leader_epoch, found.high_watermark) == (2, 7, broker.image.version + 1)
    assert [each.replica_id for each in found.current_voters] == [1, 2]
    assert [each.replica_id for each in found.observers] == [3]
    own = found.current_voters[0] if broker.services.config.node_id == 1 else found.current_voters[1]
    assert own.log_end_offset == found.high_watermark
    if version >= 2:
        assert [each.node_id for each in answer.nodes] == [1, 2, 3]
        assert {each.name: each.port for each in answer.nodes[0].listeners} == {"PLAINTEXT": 9092, "INSIDE": 9001}


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger(LOGGER_NAME)
    yield logger
    logger.setLevel(logging.NOTSET)


def test_the_level_of_a_logger_changes_at_once_and_is_described(broker: Any, logger: logging.Logger) -> None:
    own_id = str(broker.services.config.node_id)
    assert set_value(broker, LOGGER, own_id, LOGGER_NAME, "debug").error_code == ErrorCode.NONE
    assert logger.level == logging.DEBUG
    (config,) = describe(broker, 4, LOGGER, own_id, [LOGGER_NAME]).configs
    assert (config.value, config.config_source) == ("DEBUG", ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG)
    assert set_value(broker, LOGGER, own_id, LOGGER_NAME, None, Operation.DELETE).error_code == ErrorCode.NONE
    assert logger.level == logging.NOTSET
    assert "root" in [each.name for each in describe(broker, 4, LOGGER, own_id).configs]


@pytest.mark.parametrize(
    ("name", "value", "operation", "error"),
    [
        (LOGGER_NAME, "LOUD", Operation.SET, ErrorCode.INVALID_CONFIG),
        ("flowstone.nobody", "INFO", Operation.SET, ErrorCode.INVALID_CONFIG),
        (LOGGER_NAME, "INFO", Operation.APPEND, ErrorCode.INVALID_REQUEST),
        ("root", None, Operation.DELETE, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_loggers_cannot_do_is_refused(
    broker: Any, logger: logging.Logger, name: str, value: str | None, operation: int, error: ErrorCode
) -> None:
    own_id = str(broker.services.config.node_id)
    response = set_value(broker, LOGGER, own_id, name, value, operation)
    assert (ErrorCode(response.error_code), bool(response.error_message)) == (error, True)
    assert set_value(broker, LOGGER, "99", LOGGER_NAME, "INFO").error_code == ErrorCode.INVALID_REQUEST
    assert logger.level == logging.NOTSET
