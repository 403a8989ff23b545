"""A key goes to the same partition whichever client sends it: murmur2, as the Java client does."""

from __future__ import annotations

from collections import Counter

from tests.clients.driver import Driver, Sent

PARTITIONS = 7
# Lengths around murmur2's blocks of four bytes, bytes above 127, and text.
KEYS = (b"", b"a", b"ab", b"abc", b"abcd", b"abcde", b"\xff\xfe\x80", b"customer-4711", "größe".encode(), b"x" * 1000)
# What the Java client's BuiltInPartitioner answers for these keys and 7 partitions.
JAVA_PARTITIONS = (2, 5, 0, 4, 5, 4, 3, 6, 4, 3)


def test_all_clients_send_a_key_to_the_same_partition(drivers: dict[str, Driver], topic_name: str) -> None:
    drivers["confluent-kafka"].create_topic(topic_name, PARTITIONS)

    for client in drivers.values():
        client.produce(topic_name, [Sent(client.name.encode(), key) for key in KEYS])

    seen: dict[bytes, list[int]] = {key: [] for key in KEYS}
    reader = drivers["aiokafka"]
    for partition in range(PARTITIONS):
        _first, end = reader.watermarks(topic_name, partition)
        for record in reader.consume_from_beginning(topic_name, partition, end):
            seen[record.key or b""].append(record.partition)
    assert seen == {key: [partition] * len(drivers) for key, partition in zip(KEYS, JAVA_PARTITIONS, strict=True)}


def test_records_without_a_key_are_spread_over_the_partitions(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 3)

    used = Counter(
        partition for _ in range(8) for partition, _offset in client.produce(topic_name, [Sent(b"value")] * 20)
    )

    assert len(used) > 1
