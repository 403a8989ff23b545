from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer

TIMEOUT_S = 20


@pytest.mark.parametrize("count", [1, 100])
def test_what_is_produced_is_consumed(flowstone_broker, flowstone_topic, count):
    producer = Producer({"bootstrap.servers": flowstone_broker.bootstrap})
    for number in range(count):
        producer.produce(flowstone_topic, str(number), key=b"key")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": flowstone_broker.bootstrap,
            "group.id": flowstone_topic,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([flowstone_topic])
    messages = consumer.consume(count, TIMEOUT_S)
    assert [int(message.value()) for message in messages] == list(range(count))
    consumer.close()


def test_the_test_reads_what_was_produced(flowstone_broker, flowstone_topic):
    producer = Producer({"bootstrap.servers": flowstone_broker.bootstrap})
    producer.produce(flowstone_topic, b"value", key=b"key")
    producer.flush(TIMEOUT_S)
    (record,) = flowstone_broker.wait_for(flowstone_topic, 1)
    assert (record.partition, record.offset, record.key, record.value) == (0, 0, b"key", b"value")
