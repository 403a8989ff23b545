"""Well-formed requests that ask for nonsense or too much: Kafka's own error for each API, and others are unharmed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flowstone.broker.dispatch.dispatcher import REQUEST_BYTES_MAX_BUT_PRODUCE
from flowstone.cluster.decisions.topic_names import check_topic_name
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire import messages as m
from flowstone.wire.message import Message
from flowstone.wire.primitives import STRING_LENGTH_MAX
from tests.support.wire_client import Closed, fetch_request, frame

TOPIC = "requests"
MANY = 10_000
INT_MAX = 2**31 - 1
SIZE_BYTES = 4
UNKNOWN_TOPIC, INVALID = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST


def error_codes(message: Any) -> Iterator[ErrorCode]:
    """Every error in a response, at any depth."""
    if isinstance(message, list | tuple):
        for each in message:
            yield from error_codes(each)
    elif isinstance(message, Message):
        for name in message.__slots__:
            if name == "error_code" and message.error_code:  # type: ignore[attr-defined]
                yield ErrorCode(message.error_code)  # type: ignore[attr-defined]
            else:
                yield from error_codes(getattr(message, name))


def new_topic(name: str, **fields: Any) -> m.CreateTopicsRequestTopic:
    return m.CreateTopicsRequestTopic(name=name, **{"num_partitions": 1, "replication_factor": 1} | fields)


def create(*topics: m.CreateTopicsRequestTopic) -> m.CreateTopicsRequest:
    return m.CreateTopicsRequest(topics=topics, timeout_ms=1000)


def assigned(*replicas: list[int], first: int = 0) -> m.CreateTopicsRequestTopic:
    assignments = [
        m.CreateTopicsRequestAssignment(partition_index=first + index, broker_ids=each)
        for index, each in enumerate(replicas)
    ]
    return new_topic("assigned", num_partitions=-1, replication_factor=-1, assignments=assignments)


def grow(*topics: tuple[str, int]) -> m.CreatePartitionsRequest:
    wanted = [m.CreatePartitionsRequestTopic(name=name, count=count, assignments=None) for name, count in topics]
    return m.CreatePartitionsRequest(topics=wanted, timeout_ms=1000)


def alter(*operations: tuple[str, int, str | None], times: int = 1, kind: int = 2, name: str = TOPIC) -> Any:
    configs = [
        m.IncrementalAlterConfigsRequestConfig(name=each, config_operation=operation, value=value)
        for each, operation, value in operations
    ]
    resource = m.IncrementalAlterConfigsRequestResource(resource_type=kind, resource_name=name, configs=configs)
    return m.IncrementalAlterConfigsRequest(resources=[resource] * times)


def describe(kind: int, name: str, times: int = 1) -> m.DescribeConfigsRequest:
    resource = m.DescribeConfigsRequestResource(resource_type=kind, resource_name=name, configuration_keys=None)
    return m.DescribeConfigsRequest(resources=[resource] * times)


def offsets(*partitions: tuple[int, int], topic: str = TOPIC) -> m.ListOffsetsRequest:
    wanted = [m.ListOffsetsRequestPartition(partition_index=index, timestamp=time) for index, time in partitions]
    return m.ListOffsetsRequest(replica_id=-1, topics=[m.ListOffsetsRequestTopic(name=topic, partitions=wanted)])


def epochs(*partitions: int) -> m.OffsetForLeaderEpochRequest:
    wanted = [m.OffsetForLeaderEpochRequestPartition(partition=each, current_leader_epoch=-1) for each in partitions]
    topics = [m.OffsetForLeaderEpochRequestTopic(topic=TOPIC, partitions=wanted)]
    return m.OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)


def delete_records(*partitions: tuple[int, int]) -> m.DeleteRecordsRequest:
    wanted = [m.DeleteRecordsRequestPartition(partition_index=index, offset=offset) for index, offset in partitions]
    topics = [m.DeleteRecordsRequestTopic(name=TOPIC, partitions=wanted)]
    return m.DeleteRecordsRequest(topics=topics, timeout_ms=1000)


def fetch_many(count: int, index_of: Any) -> m.FetchRequest:
    partitions = [m.FetchRequestPartition(partition=index_of(n), partition_max_bytes=1) for n in range(count)]
    return m.FetchRequest(session_epoch=-1, topics=[m.FetchRequestTopic(topic=TOPIC, partitions=partitions)])


def metadata(*names: str) -> m.MetadataRequest:
    return m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name) for name in names])


def produce_nothing(times: int) -> m.ProduceRequest:
    data = [m.ProduceRequestPartition(index=0, records=None)] * times
    topics = [m.ProduceRequestTopic(name=TOPIC, partition_data=data)]
    return m.ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics)


def log_dirs(*partitions: int) -> m.DescribeLogDirsRequest:
    return m.DescribeLogDirsRequest(topics=[m.DescribeLogDirsRequestTopic(topic=TOPIC, partitions=partitions)])


def pages(cursor: m.DescribeTopicPartitionsCursor | None, *names: str, limit: int = 10) -> Any:
    topics = [m.DescribeTopicPartitionsRequestTopic(name=name) for name in names]
    return m.DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=cursor)


NAMES = [f"n{number}" for number in range(MANY)]

# What is asked: the version, the request, and the errors that must be in the answer, no others.
NONSENSE: dict[str, tuple[int, Message, set[ErrorCode]]] = {
    "Produce nothing often": (9, produce_nothing(MANY), {ErrorCode.INVALID_RECORD}),
    "Produce no topics": (9, m.ProduceRequest(acks=1), set()),
    "Fetch of one partition often": (11, fetch_many(MANY, lambda number: 0), set()),
    "Fetch of many unknown partitions": (11, fetch_many(MANY, lambda number: number + 1), {UNKNOWN_TOPIC}),
    "Fetch of a negative partition": (11, fetch_many(1, lambda number: -1), {UNKNOWN_TOPIC}),
    "Fetch from a negative offset": (11, fetch_request(TOPIC, -5), {ErrorCode.OFFSET_OUT_OF_RANGE}),
    "Fetch from beyond the end": (11, fetch_request(TOPIC, 10**15), {ErrorCode.OFFSET_OUT_OF_RANGE}),
    "Fetch of negative sizes": (11, fetch_request(TOPIC, 0, max_bytes=-5, min_bytes=-5, max_wait_ms=-5), set()),
    "Fetch of no topics": (11, m.FetchRequest(session_epoch=-1), set()),
    "Fetch of no topics in a new session": (11, m.FetchRequest(session_epoch=0), set()),
    "Fetch in a session that is not": (
        11,
        m.FetchRequest(session_id=INT_MAX, session_epoch=7),
        {ErrorCode.FETCH_SESSION_ID_NOT_FOUND},
    ),
    "ListOffsets twice": (5, offsets((0, -1), (0, -1)), {INVALID}),
    "ListOffsets often": (5, offsets(*((0, -1),) * MANY), {INVALID}),
    "ListOffsets of unknown partitions": (5, offsets((1, -1), (-1, -1), (INT_MAX, -1)), {UNKNOWN_TOPIC}),
    "ListOffsets of no topics": (5, m.ListOffsetsRequest(), set()),
    "ListOffsets at a time that is not": (11, offsets((0, -99)), {ErrorCode.UNSUPPORTED_VERSION}),
    "Metadata of no topics": (9, metadata(), set()),
    "Metadata of one topic often": (9, metadata(*(TOPIC,) * MANY), set()),
    "Metadata of many unknown topics": (9, metadata(*NAMES), {UNKNOWN_TOPIC}),
    "FindCoordinator of many": (4, m.FindCoordinatorRequest(coordinator_keys=NAMES), set()),
    "FindCoordinator of none": (4, m.FindCoordinatorRequest(), set()),
    "FindCoordinator of an unknown kind": (3, m.FindCoordinatorRequest(key="k", key_type=77), {INVALID}),
    "ApiVersions without a name": (3, m.ApiVersionsRequest(), {INVALID}),
    "CreateTopics of none": (5, create(), set()),
    "CreateTopics twice": (5, create(new_topic("twice"), new_topic("twice")), {INVALID}),
    "CreateTopics of what is there": (5, create(new_topic(TOPIC)), {ErrorCode.TOPIC_ALREADY_EXISTS}),
    "CreateTopics with no partitions": (5, create(new_topic("x", num_partitions=0)), {ErrorCode.INVALID_PARTITIONS}),
    "CreateTopics with negative partitions": (
        5,
        create(new_topic("x", num_partitions=-2)),
        {ErrorCode.INVALID_PARTITIONS},
    ),
    "CreateTopics with too many partitions": (
        5,
        create(new_topic("x", num_partitions=INT_MAX)),
        {ErrorCode.POLICY_VIOLATION},
    ),
    "CreateTopics with too many replicas": (
        5,
        create(new_topic("x", replication_factor=32767)),
        {ErrorCode.INVALID_REPLICATION_FACTOR},
    ),
    "CreateTopics on nobody": (5, create(assigned([])), {ErrorCode.INVALID_REPLICA_ASSIGNMENT}),
    "CreateTopics on strangers": (5, create(assigned(list(range(1000)))), {ErrorCode.INVALID_REPLICA_ASSIGNMENT}),
    "CreateTopics on one broker often": (5, create(assigned([1] * MANY)), {ErrorCode.INVALID_REPLICA_ASSIGNMENT}),
    "CreateTopics from partition 5 on": (5, create(assigned([1], first=5)), {ErrorCode.INVALID_REPLICA_ASSIGNMENT}),
    "DeleteTopics of none": (4, m.DeleteTopicsRequest(timeout_ms=1), set()),
    "DeleteTopics twice": (4, m.DeleteTopicsRequest(topic_names=[TOPIC] * MANY, timeout_ms=1), {INVALID}),
    "DeleteTopics of many unknown": (4, m.DeleteTopicsRequest(topic_names=NAMES, timeout_ms=1), {UNKNOWN_TOPIC}),
    "DeleteTopics without name and id": (
        6,
        m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name=None)], timeout_ms=1),
        {INVALID},
    ),
    "DeleteRecords of no topics": (2, m.DeleteRecordsRequest(timeout_ms=1), set()),
    "DeleteRecords beyond the end": (2, delete_records((0, 10**15), (0, -5)), {ErrorCode.OFFSET_OUT_OF_RANGE}),
    "DeleteRecords of unknown partitions": (2, delete_records(*((n, 0) for n in range(1, MANY))), {UNKNOWN_TOPIC}),
    "InitProducerId without a name": (4, m.InitProducerIdRequest(transactional_id=""), {INVALID}),
    "OffsetForLeaderEpoch often": (4, epochs(*(0,) * MANY), set()),
    "OffsetForLeaderEpoch of unknown partitions": (4, epochs(*range(1, MANY)), {UNKNOWN_TOPIC}),
    "DescribeConfigs of none": (4, m.DescribeConfigsRequest(), set()),
    "DescribeConfigs of one topic often": (4, describe(2, TOPIC, MANY), set()),
    "DescribeConfigs of an unknown kind": (4, describe(99, TOPIC), {INVALID}),
    "DescribeConfigs of another broker": (4, describe(4, "9" * 5000), {INVALID}),
    "AlterConfigs of none": (1, m.AlterConfigsRequest(), set()),
    "IncrementalAlterConfigs twice": (1, alter(times=MANY), {INVALID}),
    "IncrementalAlterConfigs of one setting twice": (1, alter(("flush.ms", 0, "1"), ("flush.ms", 0, "2")), {INVALID}),
    "IncrementalAlterConfigs of an unknown setting": (1, alter(("x" * 30_000, 0, "1")), {ErrorCode.INVALID_CONFIG}),
    "IncrementalAlterConfigs to nothing": (1, alter(("flush.ms", 0, None)), {INVALID}),
    "IncrementalAlterConfigs by an unknown operation": (1, alter(("flush.ms", 99, "1")), {INVALID}),
    "IncrementalAlterConfigs out of bounds": (1, alter(("flush.ms", 0, "-1")), {ErrorCode.INVALID_CONFIG}),
    "IncrementalAlterConfigs to a number without end": (
        1,
        alter(("flush.ms", 0, "9" * 30_000)),
        {ErrorCode.INVALID_CONFIG},
    ),
    "CreatePartitions of none": (2, grow(), set()),
    "CreatePartitions twice": (2, grow((TOPIC, 5), (TOPIC, 6)), {INVALID}),
    "CreatePartitions downwards": (2, grow((TOPIC, -5)), {ErrorCode.INVALID_PARTITIONS}),
    "CreatePartitions without end": (2, grow((TOPIC, INT_MAX)), {ErrorCode.POLICY_VIOLATION}),
    "CreatePartitions of many unknown topics": (2, grow(*((name, 2) for name in NAMES)), {UNKNOWN_TOPIC}),
    "DescribeLogDirs of one partition often": (2, log_dirs(*(0,) * MANY), set()),
    "DescribeLogDirs of unknown partitions": (2, log_dirs(*range(-MANY, 0)), set()),
    "DescribeCluster of an unknown kind": (
        1,
        m.DescribeClusterRequest(endpoint_type=99),
        {ErrorCode.UNSUPPORTED_ENDPOINT_TYPE},
    ),
    "UnregisterBroker of an unknown one": (
        0,
        m.UnregisterBrokerRequest(broker_id=-1),
        {ErrorCode.BROKER_ID_NOT_REGISTERED},
    ),
    "UpdateFeatures of many unknown": (
        2,
        m.UpdateFeaturesRequest(
            feature_updates=[m.UpdateFeaturesRequestFeatureUpdate(feature=name, max_version_level=1) for name in NAMES]
        ),
        {INVALID},
    ),
    "UpdateFeatures to a level below 0": (
        2,
        m.UpdateFeaturesRequest(
            feature_updates=[m.UpdateFeaturesRequestFeatureUpdate(feature="share.version", max_version_level=-1)]
        ),
        {ErrorCode.INVALID_UPDATE_VERSION},
    ),
    "DescribeTopicPartitions of many unknown": (0, pages(None, *NAMES, limit=INT_MAX), {UNKNOWN_TOPIC}),
    "DescribeTopicPartitions with a bad cursor": (
        0,
        pages(m.DescribeTopicPartitionsCursor(topic_name="other", partition_index=-1), TOPIC),
        {INVALID},
    ),
}


@pytest.fixture(scope="module", autouse=True)
def made(shared_broker):
    with shared_broker.connect() as client:
        assert client.create_topic(TOPIC) == 0


@pytest.mark.parametrize(("version", "request_", "expected"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_gets_the_errors_that_kafka_has_for_it(broker, version, request_, expected):
    with broker.connect() as client:
        assert set(error_codes(client.ask(version, request_))) == expected
        assert client.end_offset(TOPIC) == 0  # the connection serves on, and nothing was appended


def test_all_that_nonsense_at_once_harms_nobody(broker, bystander):
    with bystander(broker), broker.connect() as client:
        for version, request, _ in NONSENSE.values():
            client.ask(version, request)


def join_of(size_bytes: int) -> bytes:
    """A JoinGroup of exactly that size, which is legal but for its size: a few long texts of metadata."""
    head_bytes = len(join_frame(0)) - SIZE_BYTES
    return join_frame(size_bytes - head_bytes)


def join_frame(metadata_bytes: int) -> bytes:
    request = m.JoinGroupRequest(
        group_id="long",
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequestProtocol(name="range", metadata=bytes(metadata_bytes))],
    )
    return frame(1, request)


def test_a_long_request_that_is_no_produce_closes_the_connection(broker, bystander):
    with bystander(broker), broker.connect() as client:
        client.send(join_of(REQUEST_BYTES_MAX_BUT_PRODUCE))
        assert client.receive()
    with bystander(broker), broker.connect() as client:
        with suppress(Closed):
            client.send(join_of(REQUEST_BYTES_MAX_BUT_PRODUCE + 1))
        client.closed_after_s(1.0)


def test_what_is_said_of_an_error_always_fits_an_answer():
    with pytest.raises(ApiError) as refused:
        check_topic_name("x" * STRING_LENGTH_MAX)
    assert len(refused.value.message.encode()) <= STRING_LENGTH_MAX


BAD_NAMES = {
    "nothing": "",
    "a dot": ".",
    "two dots": "..",
    "a path up": "../x",
    "a long path up": "../" * 20 + "etc/passwd",
    "an absolute path": "/etc/passwd",
    "a path": "a/b",
    "a backslash": "a\\b",
    "NUL": "a\0b",
    "a new line": "a\nb",
    "a space": "a b",
    "250 characters": "x" * 250,
    "a letter beyond ASCII": "topic\u00fc",
    "a full-width letter": "\uff41",
    "a right-to-left mark": "a\u202eb",
    "an emoji": "\U0001f4a9",
}


def stored(directory: str | Path) -> tuple[list[Path], bytes]:
    """Everything there but checkpoints, which are written at any time, and the log of all that was ever created."""
    paths = sorted(each for each in Path(directory).rglob("*") if "-checkpoint" not in each.name)
    return paths, b"".join(each.read_bytes() for each in paths if each.parent.name == "__cluster_metadata")


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_a_bad_topic_name_is_refused_and_leaves_nothing_on_disk(broker, name):
    parent = broker.data.parent
    before = stored(parent)
    with broker.connect() as client:
        assert client.create_topic(name) == ErrorCode.INVALID_TOPIC_EXCEPTION
        answer = client.ask(9, metadata(name)).topics[0]
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert client.produce(name, b"").error_code in (UNKNOWN_TOPIC, ErrorCode.INVALID_TOPIC_EXCEPTION)
        assert client.fetch(name, 0).error_code in (UNKNOWN_TOPIC, ErrorCode.INVALID_TOPIC_EXCEPTION)
    assert stored(parent) == before


def test_asking_for_a_bad_name_makes_no_topic_where_asking_makes_topics(start_broker):
    broker = start_broker()
    with broker.connect() as client:
        before = stored(broker.data)
        answers = client.ask(9, metadata(*BAD_NAMES.values())).topics
        assert {answer.error_code for answer in answers} == {ErrorCode.INVALID_TOPIC_EXCEPTION}
        assert client.ask(9, m.MetadataRequest(topics=None)).topics == []
        assert stored(broker.data) == before
