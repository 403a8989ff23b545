"""Produce, Fetch, ListOffsets, DeleteRecords and OffsetForLeaderEpoch over a real socket, in every version."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from flowstone.broker.dispatch.dispatcher import REQUEST_BYTES_MAX_BUT_PRODUCE
from flowstone.embedded import Broker
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestPartition,
    FetchRequestTopic,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from flowstone.wire.record_batch import Codec, Record, build_batch, decode_records
from tests.support.wire_client import Client, batch_of, fetch_request, frame, produce_request

UNKNOWN_ID = b"\x01" * 16


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    host, _, port = broker.bootstrap.partition(":")
    with Client((host, int(port))) as connected:
        yield connected


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = f"t-{abs(hash(request.node.nodeid))}"
    assert client.create_topic(name, partitions=3) == 0
    return name


def topic_id_of(client: Client, name: str) -> bytes:
    response = client.ask(12, MetadataRequest(topics=[MetadataRequestTopic(name=name)]))
    return bytes(response.topics[0].topic_id)


def values(fetched: Any) -> list[bytes | None]:
    found, data, at = [], memoryview(fetched.records), 0
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if at + size > len(data):
            break
        found += [record.value for record in decode_records(data, at)]
        at += size
    return found


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_of_produce_stores_records(client: Client, topic: str, version: int) -> None:
    request = produce_request(topic, batch_of(b"a", b"b"))
    request.topic_data[0].topic_id = topic_id_of(client, topic)
    answer = client.ask(version, request).responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert values(client.fetch(topic, 0)) == [b"a", b"b"]


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_of_fetch_reads_them_back(client: Client, topic: str, version: int) -> None:
    client.produce(topic, batch_of(b"a", b"b"))
    client.produce(topic, batch_of(b"c"))
    request = fetch_request(topic, 2)
    request.topics[0].topic_id = topic_id_of(client, topic)
    answer = client.ask(version, request).responses[0].partitions[0]
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 3, 3)
    assert values(answer) == [b"c"]


def test_what_is_answered_is_not_left_to_the_garbage_collector(client: Client, topic: str) -> None:
    """Collecting it stops the loop: 20 ms for what a few thousand requests left."""
    requests = 100
    client.produce(topic, batch_of(b"a"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(requests):
            client.produce(topic, batch_of(b"a"))
            client.fetch(topic, 0)
        assert gc.collect() < requests
    finally:
        gc.enable()


def test_a_fetch_from_the_middle_of_a_batch_gives_the_whole_batch(client: Client, topic: str) -> None:
    client.produce(topic, batch_of(b"a", b"b", b"c"))
    assert values(client.fetch(topic, 1)) == [b"a", b"b", b"c"]


def test_a_fetch_gives_one_whole_batch_however_small_the_limit(client: Client, topic: str) -> None:
    client.produce(topic, batch_of(b"x" * 5000))
    client.produce(topic, batch_of(b"y" * 5000))
    assert values(client.fetch(topic, 0, max_bytes=1)) == [b"x" * 5000]


def test_only_the_first_partition_may_exceed_the_limit(client: Client, topic: str) -> None:
    for partition in (0, 1):
        client.produce(topic, batch_of(b"z" * 5000), partition=partition)
    wanted = [FetchRequestPartition(partition=each, fetch_offset=0, partition_max_bytes=10) for each in (0, 1)]
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=100, topics=[FetchRequestTopic(topic=topic, partitions=wanted)]
    )
    first, second = client.ask(11, request).responses[0].partitions
    assert values(first) == [b"z" * 5000]
    assert values(second) == []
    assert second.error_code == 0


def test_a_fetch_waits_until_there_is_something_to_read(broker: Broker, client: Client, topic: str) -> None:
    host, _, port = broker.bootstrap.partition(":")
    producer = Client((host, int(port)))
    timer = threading.Timer(0.2, lambda: producer.produce(topic, batch_of(b"late")))
    started = time.monotonic()
    timer.start()
    answer = client.fetch(topic, 0, max_wait_ms=10_000)
    waited_s = time.monotonic() - started
    timer.join()
    producer.close()
    assert values(answer) == [b"late"]
    assert 0.15 < waited_s < 5


def test_a_fetch_that_finds_nothing_is_answered_when_its_time_is_up(client: Client, topic: str) -> None:
    started = time.monotonic()
    answer = client.fetch(topic, 0, max_wait_ms=150)
    assert 0.1 < time.monotonic() - started < 5
    assert (answer.error_code, values(answer)) == (0, [])


@pytest.mark.parametrize("offset", [-1, 4, 1000])
def test_an_offset_outside_the_log_is_out_of_range(client: Client, topic: str, offset: int) -> None:
    client.produce(topic, batch_of(b"a", b"b", b"c"))
    assert client.fetch(topic, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_both_isolation_levels_read_and_say_what_was_aborted(client: Client, topic: str) -> None:
    client.produce(topic, batch_of(b"a"))
    assert client.fetch(topic, 0, isolation_level=0).aborted_transactions is None
    assert list(client.fetch(topic, 0, isolation_level=1).aborted_transactions) == []


def test_unknown_topics_and_ids_are_told_apart(client: Client, topic: str) -> None:
    assert client.fetch("nobody", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = fetch_request(topic, 0)
    request.topics[0].topic_id = UNKNOWN_ID
    answer = client.ask(13, request).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    produce = produce_request(topic, batch_of(b"a"))
    produce.topic_data[0].topic_id = UNKNOWN_ID
    refused = client.ask(13, produce).responses[0].partition_responses[0]
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_session_tells_only_what_is_new(client: Client, topic: str) -> None:
    wanted = [FetchRequestPartition(partition=each, fetch_offset=0, partition_max_bytes=1000) for each in range(3)]
    topics = [FetchRequestTopic(topic=topic, partitions=wanted)]
    opened = client.ask(11, FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=0, topics=topics))
    assert len(opened.responses[0].partitions) == 3
    idle = client.ask(11, FetchRequest(max_wait_ms=0, session_id=opened.session_id, session_epoch=1))
    assert (idle.error_code, list(idle.responses)) == (0, [])
    client.produce(topic, batch_of(b"new"), partition=1)
    told = client.ask(11, FetchRequest(max_wait_ms=0, session_id=opened.session_id, session_epoch=2))
    assert [each.partition_index for each in told.responses[0].partitions] == [1]
    assert values(told.responses[0].partitions[0]) == [b"new"]
    forgotten = [FetchRequestForgottenTopic(topic=topic, partitions=[1])]
    request = FetchRequest(
        max_wait_ms=0, session_id=opened.session_id, session_epoch=3, forgotten_topics_data=forgotten
    )
    assert list(client.ask(11, request).responses) == []
    wrong = client.ask(11, FetchRequest(max_wait_ms=0, session_id=opened.session_id, session_epoch=9))
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_answers_come_in_order_however_long_one_takes(client: Client, topic: str) -> None:
    client.send(frame(11, fetch_request(topic, 0, max_wait_ms=200), 1) + frame(9, produce_request(topic, None), 2))
    assert int.from_bytes(client.receive()[:4], "big") == 1
    assert int.from_bytes(client.receive()[:4], "big") == 2


def test_acks_0_gets_no_answer_and_stores(client: Client, topic: str) -> None:
    client.send(frame(9, produce_request(topic, batch_of(b"quiet"), acks=0), 1))
    assert client.end_offset(topic) == 1


def test_a_refused_produce_with_acks_0_closes_the_connection(client: Client, topic: str) -> None:
    client.send(frame(9, produce_request(topic, None, acks=0), 1))
    client.closed_after_s()


def test_other_acks_are_refused(client: Client, topic: str) -> None:
    assert client.produce(topic, batch_of(b"a"), acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert client.end_offset(topic) == 0


def test_a_refused_partition_does_not_hold_back_the_others(client: Client, topic: str) -> None:
    data = [ProduceRequestPartition(index=index, records=batch_of(b"a")) for index in (0, 7, 1)]
    request = ProduceRequest(
        acks=-1, timeout_ms=5000, topic_data=[ProduceRequestTopic(name=topic, partition_data=data)]
    )
    codes = [each.error_code for each in client.ask(9, request).responses[0].partition_responses]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]


def test_zstd_is_refused_where_the_version_does_not_know_it(client: Client, topic: str) -> None:
    batch = batch_of(b"z" * 100, codec=Codec.ZSTD)
    answer = client.ask(6, produce_request(topic, batch)).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert client.ask(7, produce_request(topic, batch)).responses[0].partition_responses[0].error_code == 0


def test_a_topic_with_a_codec_of_its_own_stores_every_batch_with_it_in_order(client: Client) -> None:
    assert client.create_topic("recompressed", compression_type="lz4") == 0
    for number in range(20):
        codec = (Codec.NONE, Codec.GZIP, Codec.LZ4)[number % 3]
        assert client.produce("recompressed", batch_of(b"%d" % number * 50, codec=codec)).base_offset == number
    fetched = client.fetch("recompressed", 0)
    assert values(fetched) == [b"%d" % number * 50 for number in range(20)]
    assert {fetched.records[22] & 7} == {Codec.LZ4}


def list_offsets(client: Client, topic: str, timestamp: int, version: int = 7) -> Any:
    partition = ListOffsetsRequestPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequestTopic(name=topic, partitions=[partition])])
    return client.ask(version, request).topics[0].partitions[0]


def timed_batch(*timestamps: int, codec: Codec = Codec.NONE) -> bytes:
    return build_batch(
        [Record(index, timestamp, None, b"v") for index, timestamp in enumerate(timestamps)], codec=codec
    )


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_offsets_are_found_by_time(client: Client, topic: str, version: int, codec: Codec) -> None:
    client.produce(topic, timed_batch(1000, 3000, 2000, codec=codec))
    client.produce(topic, timed_batch(5000, codec=codec))
    for timestamp, expected in ((0, (0, 1000)), (1001, (1, 3000)), (3001, (3, 5000)), (5001, (-1, -1))):
        answer = list_offsets(client, topic, timestamp, version)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, *expected)


def test_special_times_name_the_ends_and_the_newest_record(client: Client, topic: str) -> None:
    client.produce(topic, timed_batch(1000, 9000, 2000))
    client.produce(topic, timed_batch(4000))
    assert [list_offsets(client, topic, each).offset for each in (-1, -2)] == [4, 0]
    newest = list_offsets(client, topic, -3)
    assert (newest.offset, newest.timestamp) == (1, 9000)
    assert [list_offsets(client, topic, each, 11).offset for each in (-4, -5, -6)] == [0, -1, -1]
    assert list_offsets(client, topic, -3, 6).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert list_offsets(client, topic, -77, 11).error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", range(3))
def test_deleted_records_are_gone_and_the_log_starts_later(client: Client, topic: str, version: int) -> None:
    client.produce(topic, batch_of(*[b"%d" % number for number in range(10)]))

    def delete(offset: int) -> Any:
        partition = DeleteRecordsRequestPartition(partition_index=0, offset=offset)
        topics = [DeleteRecordsRequestTopic(name=topic, partitions=[partition])]
        return client.ask(version, DeleteRecordsRequest(topics=topics, timeout_ms=5000)).topics[0].partitions[0]

    assert delete(4).low_watermark == 4
    assert list_offsets(client, topic, -2).offset == 4
    assert client.fetch(topic, 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert client.fetch(topic, 4).error_code == 0
    assert delete(11).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete(2).low_watermark == 4
    assert delete(-1).low_watermark == 10


@pytest.mark.parametrize("version", range(2, 5))
def test_an_epoch_ends_where_the_log_ends(client: Client, topic: str, version: int) -> None:
    client.produce(topic, batch_of(b"a", b"b"))

    def ask(epoch: int, current: int = -1) -> Any:
        partition = OffsetForLeaderEpochRequestPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current)
        topics = [OffsetForLeaderEpochRequestTopic(topic=topic, partitions=[partition])]
        return client.ask(version, OffsetForLeaderEpochRequest(topics=topics)).topics[0].partitions[0]

    assert (ask(0).leader_epoch, ask(0).end_offset) == (0, 2)
    assert (ask(5).leader_epoch, ask(5).end_offset) == (-1, -1)
    assert ask(0, current=9).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_client_that_poses_as_a_replica_reads_nothing(client: Client, topic: str) -> None:
    client.produce(topic, batch_of(b"a"))
    answer = client.fetch(topic, 0, replica_id=2)
    assert (answer.error_code, values(answer)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])


def test_a_fetch_waits_for_no_more_than_what_is_missing(broker: Broker, client: Client, topic: str) -> None:
    """One batch is there already, and its client asks for one byte more."""
    first, second = batch_of(b"first"), batch_of(b"another")
    client.produce(topic, first)
    client.send(frame(11, fetch_request(topic, 0, max_wait_ms=60_000, min_bytes=len(first) + 1)))
    host, _, port = broker.bootstrap.partition(":")
    with Client((host, int(port))) as other:
        other.produce(topic, second)
    assert len(client.receive()) > len(first) + len(second)


def test_a_request_that_is_no_produce_may_not_be_as_large_as_one(client: Client) -> None:
    names = [MetadataRequestTopic(name="n" * 30_000) for _ in range(REQUEST_BYTES_MAX_BUT_PRODUCE // 30_000 + 1)]
    client.send(frame(1, MetadataRequest(topics=names)))
    client.closed_after_s(10)
