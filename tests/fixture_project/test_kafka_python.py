from __future__ import annotations

import pytest
from kafka import KafkaConsumer, KafkaProducer

TIMEOUT_S = 20


@pytest.mark.parametrize("count", [1, 100])
def test_what_is_produced_is_consumed(flowstone_broker, flowstone_topic, count):
    producer = KafkaProducer(bootstrap_servers=flowstone_broker.bootstrap)
    for number in range(count):
        producer.send(flowstone_topic, str(number).encode(), key=b"key")
    producer.flush(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(
        flowstone_topic,
        bootstrap_servers=flowstone_broker.bootstrap,
        group_id=flowstone_topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_S * 1000,
    )
    assert [int(next(consumer).value) for _ in range(count)] == list(range(count))
    consumer.close()


def test_the_test_reads_what_was_produced(flowstone_broker, flowstone_topic):
    producer = KafkaProducer(bootstrap_servers=flowstone_broker.bootstrap)
    producer.send(flowstone_topic, b"value", key=b"key")
    (record,) = flowstone_broker.wait_for(flowstone_topic, 1)
    assert (record.key, record.value) == (b"key", b"value")
    producer.close()
