from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


@pytest.mark.parametrize("count", [1, 100])
def test_what_is_produced_is_consumed(flowstone_broker, flowstone_topic, count):
    async def produce_and_consume():
        async with AIOKafkaProducer(bootstrap_servers=flowstone_broker.bootstrap) as producer:
            for number in range(count):
                await producer.send(flowstone_topic, str(number).encode(), key=b"key")
        consumer = AIOKafkaConsumer(
            flowstone_topic,
            bootstrap_servers=flowstone_broker.bootstrap,
            group_id=flowstone_topic,
            auto_offset_reset="earliest",
        )
        async with consumer:
            return [int((await consumer.getone()).value) for _ in range(count)]

    assert asyncio.run(asyncio.wait_for(produce_and_consume(), 20)) == list(range(count))


def test_the_test_reads_what_was_produced(flowstone_broker, flowstone_topic):
    async def produce():
        async with AIOKafkaProducer(bootstrap_servers=flowstone_broker.bootstrap) as producer:
            await producer.send_and_wait(flowstone_topic, b"value", key=b"key")

    asyncio.run(produce())
    (record,) = flowstone_broker.wait_for(flowstone_topic, 1)
    assert (record.key, record.value) == (b"key", b"value")
