"""Batches encoded here, through a real broker: read by a stock client, and decoded as it stored them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from flowstone import Broker
from flowstone.arrow.decode import Decoder
from flowstone.arrow.encode import Encoder
from flowstone.arrow.schema import HEADERS_TYPE
from flowstone.client import Cluster, Producer

PARTITIONS = 3
ROWS = 1000
NOW_MS = 1_700_000_000_000


def rows() -> Any:
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([f"k{i % 50}" if i % 4 else None for i in range(ROWS)]),
            "value": pa.array([f"value {i}" if i % 5 else None for i in range(ROWS)]),
            "timestamp": pa.array([NOW_MS + i for i in range(ROWS)], pa.timestamp("ms", "UTC")),
            "headers": pa.array(
                [[{"key": "h", "value": b"x"}, {"key": "n", "value": None}] if i % 3 else None for i in range(ROWS)],
                HEADERS_TYPE,
            ),
        }
    )


def expected() -> list[Any]:
    return sorted(
        (
            NOW_MS + i,
            f"k{i % 50}".encode() if i % 4 else None,
            f"value {i}".encode() if i % 5 else None,
            [("h", b"x"), ("n", None)] if i % 3 else None,
        )
        for i in range(ROWS)
    )


def read_with_a_stock_client(bootstrap: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "stock"})
    try:
        consumer.assign([TopicPartition("orders", partition, 0) for partition in range(PARTITIONS)])
        messages: list[Any] = []
        while len(messages) < count:
            messages += consumer.consume(count - len(messages), timeout=10)
        assert not [message.error() for message in messages if message.error()]
        return sorted((each.timestamp()[1], each.key(), each.value(), each.headers()) for each in messages)
    finally:
        consumer.close()


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_rows_are_stored_read_by_a_stock_client_and_decoded(compression: str) -> None:
    with Broker() as broker, Cluster(broker.bootstrap) as cluster:
        broker.create_topic("orders", partitions=PARTITIONS)
        with Producer(cluster) as producer:
            for each in Encoder(now_ms=NOW_MS, compression=compression).encode(
                rows(), {"orders": PARTITIONS}, "orders"
            ):
                producer.send(each.partition, each.batch, each.record_count)
            ends = producer.flush()

        assert read_with_a_stock_client(broker.bootstrap, ROWS) == expected()
        decoded = []
        for partition, end in ends.items():
            decoder = Decoder(partition, ("timestamp", "key", "value", "headers"), 0, end)
            for fetched in cluster.fetch(partition, 0, end):
                decoded += decoder.feed(fetched.records, fetched.aborted)
            decoded += decoder.finish()
    assert sorted(plain(row) for each in decoded for row in each.to_pylist()) == expected()


def plain(row: dict[str, Any]) -> Any:
    headers = row["headers"] and [(header["key"], header["value"]) for header in row["headers"]]
    return round(row["timestamp"].timestamp() * 1000), row["key"], row["value"], headers
