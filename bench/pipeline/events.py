"""The events that all jobs read, the steps that they share, and what has to come out of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bench import topics
from bench.connection import Connection
from bench.servers import Server
from bench.spark import records

COLUMNS = "id bigint, customer string, kind string, total double, at timestamp"
KINDS = ("buy", "buy", "buy", "view")
DIFFERENT = 10_000
LARGE = 400.0
CENT = 0.01


@dataclass(frozen=True, slots=True)
class Expected:
    """What the jobs must write: rows of the table with their sum, and records of the topic."""

    rows: int
    gross: float
    large: int


def fill(server: Server, topic: str, count: int) -> Expected:
    """Fill a new topic with events and return what the steps make of them."""
    events = _events()
    with Connection(server.address) as admin:
        topics.create(admin, topic, records.PARTITIONS)
    producer = Producer({"bootstrap.servers": server.address, **records.PRODUCER})
    chosen = [json.dumps(each).encode() for each in events]
    for number in range(count):
        while True:
            try:
                producer.produce(topic, chosen[number % DIFFERENT], partition=number % records.PARTITIONS)
                break
            except BufferError:  # its queue is full
                producer.poll(0.1)
    producer.flush(records.TIMEOUT_S)
    records.check(server, topic, count)
    bought = [events[n % DIFFERENT] for n in range(count) if events[n % DIFFERENT]["kind"] == "buy"]
    gross = sum(float(str(each["total"])) * 1.19 for each in bought)
    return Expected(len(bought), gross, sum(float(str(each["total"])) > LARGE for each in bought))


def _events() -> list[dict[str, object]]:
    random = Random(20)
    return [
        {
            "id": number,
            "customer": f"customer-{random.randrange(5_000)}",
            "kind": random.choice(KINDS),
            "total": random.randrange(1, 50_000) / 100,
            "at": f"2026-11-{1 + number % 28:02}T{number % 24:02}:00:00.000Z",
        }
        for number in range(DIFFERENT)
    ]


def bought(orders: DataFrame) -> DataFrame:
    return orders.where("kind = 'buy' AND total > 0")


def priced(bought: DataFrame) -> DataFrame:
    return bought.withColumn("gross", F.col("total") * 1.19).withColumn("day", F.to_date("at"))


def large(priced: DataFrame) -> DataFrame:
    return priced.where(F.col("total") > LARGE).select("id", "customer", "total", "day")
