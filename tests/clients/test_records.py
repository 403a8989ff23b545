"""What a producer sends is what a consumer gets, byte for byte, with every library."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowstone.embedded import Broker
from flowstone.errors import ErrorCode
from flowstone.wire.record_batch import parse_header
from tests.clients.conftest import DRIVERS
from tests.clients.driver import Driver, Refused, Sent

MIB = 1 << 20
# Kafka's max.message.bytes of 1 MiB and 12 bytes is for the batch, so a value must leave space for its header.
BATCH_OVERHEAD_BYTES = 100

EVERY_CODEC = [(kind.name, codec) for kind in DRIVERS for codec in kind.codecs]


def test_a_record_arrives_with_its_key_value_and_headers(client: Driver, topic: str) -> None:
    headers = (("trace", b"\x00\xff"), ("empty", b""), ("trace", b"again"))
    client.produce(topic, [Sent(b"value", b"key", headers=headers)])

    (received,) = client.consume_from_beginning(topic, 0, 1)

    assert (received.key, received.value, received.headers) == (b"key", b"value", headers)


def test_a_null_header_stays_null(client: Driver, drivers: dict[str, Driver], topic: str) -> None:
    # kafka-python and aiokafka take no null header, but read it.
    drivers["confluent-kafka"].produce(topic, [Sent(b"value", headers=(("null", None), ("empty", b"")))])

    (received,) = client.consume_from_beginning(topic, 0, 1)

    assert received.headers == (("null", None), ("empty", b""))


@pytest.mark.parametrize("value", [None, b""], ids=["null", "empty"])
def test_null_and_empty_values_stay_what_they_are(client: Driver, topic: str, value: bytes | None) -> None:
    client.produce(topic, [Sent(value, b"key")])

    (received,) = client.consume_from_beginning(topic, 0, 1)

    assert received.value == value


@pytest.mark.parametrize("key", [None, b""], ids=["null", "empty"])
def test_null_and_empty_keys_stay_what_they_are(client: Driver, topic: str, key: bytes | None) -> None:
    client.produce(topic, [Sent(b"value", key, partition=0)])

    (received,) = client.consume_from_beginning(topic, 0, 1)

    assert received.key == key


def test_records_of_a_partition_keep_their_order_and_number(client: Driver, topic: str) -> None:
    values = [b"%d" % number for number in range(500)]

    acknowledged = client.produce(topic, [Sent(value, partition=0) for value in values])
    received = client.consume_from_beginning(topic, 0, len(values))

    assert acknowledged == [(0, offset) for offset in range(len(values))]
    assert [(record.offset, record.value) for record in received] == list(enumerate(values))


def test_partitions_have_offsets_of_their_own(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 3)

    acknowledged = client.produce(topic_name, [Sent(b"%d" % number, partition=number % 3) for number in range(9)])

    assert sorted(acknowledged) == [(partition, offset) for partition in range(3) for offset in range(3)]
    assert [record.value for record in client.consume_from_beginning(topic_name, 1, 3)] == [b"1", b"4", b"7"]


@pytest.mark.parametrize(("name", "codec"), EVERY_CODEC)
def test_a_batch_is_stored_in_the_codec_its_producer_chose(
    broker: Broker, drivers: dict[str, Driver], topic_name: str, name: str, codec: str
) -> None:
    producer = drivers[name]
    producer.create_topic(topic_name, 1)

    producer.produce(topic_name, [Sent(bytes(1000), partition=0)], compression=codec)

    # A client that dislikes what the broker advertises sends uncompressed batches silently.
    segment = Path(broker.data_directory, f"{topic_name}-0", "00000000000000000000.log").read_bytes()
    assert parse_header(segment).codec.name.lower() == codec


@pytest.mark.parametrize(("name", "codec"), EVERY_CODEC)
def test_compressed_records_are_read_by_every_client(
    drivers: dict[str, Driver], topic_name: str, name: str, codec: str
) -> None:
    producer = drivers[name]
    producer.create_topic(topic_name, 1)
    values = [b"%d, and much that repeats itself " % number * 8 for number in range(100)]

    producer.produce(topic_name, [Sent(value, partition=0) for value in values], compression=codec)

    for consumer in drivers.values():
        if codec in consumer.codecs:
            received = consumer.consume_from_beginning(topic_name, 0, len(values))
            assert [record.value for record in received] == values, consumer.name


def test_a_value_of_almost_one_mebibyte_is_taken(client: Driver, topic: str) -> None:
    value = bytes(range(256)) * ((MIB - 256) // 256)

    client.produce(topic, [Sent(value)], size_bytes_max=2 * MIB)

    (received,) = client.consume_from_beginning(topic, 0, 1)
    assert received.value == value


def test_a_batch_beyond_the_topics_limit_is_refused(client: Driver, topic: str) -> None:
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Sent(bytes(MIB + BATCH_OVERHEAD_BYTES))], size_bytes_max=2 * MIB)

    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.watermarks(topic, 0) == (0, 0)


def test_a_topic_with_a_larger_limit_takes_a_larger_value(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 1, {"max.message.bytes": str(4 * MIB)})
    value = bytes(3 * MIB)

    client.produce(topic_name, [Sent(value)], size_bytes_max=5 * MIB)

    (received,) = client.consume_from_beginning(topic_name, 0, 1)
    assert received.value == value


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_arrive_whatever_acknowledgement_was_asked_for(client: Driver, topic: str, acks: str) -> None:
    values = [b"%d" % number for number in range(20)]

    client.produce(topic, [Sent(value, partition=0) for value in values], acks=acks)

    assert [record.value for record in client.consume_from_beginning(topic, 0, len(values))] == values


def test_an_idempotent_producer_numbers_its_records_without_gaps(client: Driver, topic: str) -> None:
    acknowledged = client.produce(topic, [Sent(b"%d" % number, partition=0) for number in range(50)], idempotent=True)

    assert acknowledged == [(0, offset) for offset in range(50)]
