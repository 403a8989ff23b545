"""librdkafka reuses sequence numbers after it has aborted a transaction whose batch was stored but not acknowledged.

A broker that takes the next transaction's batch for a repetition of that one acknowledges records that it does not
store (ADR 0029).
"""

from __future__ import annotations

import time

import confluent_kafka as ck

from flowstone.embedded import Broker

TIMEOUT_S = 20
REQUEST_TIMEOUT_MS, RESPONSE_DELAY_MS = 1000, 3000
RETRY_BACKOFF_MS = 15_000  # longer than the time until the transaction is aborted
RECORDS = 4


def new_producer(bootstrap: str) -> ck.Producer:
    producer = ck.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": "reused",
            "request.timeout.ms": REQUEST_TIMEOUT_MS,
            "socket.timeout.ms": 2 * REQUEST_TIMEOUT_MS,
            "retry.backoff.ms": RETRY_BACKOFF_MS,
            "retry.backoff.max.ms": RETRY_BACKOFF_MS,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def send(producer: ck.Producer, topic: str, name: str) -> None:
    producer.begin_transaction()
    for number in range(RECORDS):
        producer.produce(topic, f"{name} {number}")


def committed(broker: Broker, topic: str) -> list[bytes | None]:
    consumer = ck.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
        found: list[bytes | None] = []
        while True:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, "neither a record nor the end"
            if (error := message.error()) is not None:
                assert error.code() == ck.KafkaError._PARTITION_EOF
                return found
            found.append(message.value())
    finally:
        consumer.close()


def test_a_committed_transaction_is_readable_after_one_that_was_aborted_unacknowledged() -> None:
    with Broker() as broker:
        broker.create_topic("t", partitions=1)
        producer = new_producer(broker.bootstrap)
        with broker.fault("Produce", delay_ms=RESPONSE_DELAY_MS, times=1) as fault:
            send(producer, "t", "aborted")
            producer.poll(0)
            fault.wait()
            time.sleep((RESPONSE_DELAY_MS - 500) / 1000)  # librdkafka has given the request up, and waits to retry
            producer.abort_transaction(TIMEOUT_S)
        try:
            send(producer, "t", "committed")
            producer.commit_transaction(TIMEOUT_S)
        except ck.KafkaException as error:
            assert error.args[0].txn_requires_abort(), "the producer can go on with a new epoch"
            producer.abort_transaction(TIMEOUT_S)
            send(producer, "t", "committed")
            producer.commit_transaction(TIMEOUT_S)
        assert committed(broker, "t") == [f"committed {number}".encode() for number in range(RECORDS)]
