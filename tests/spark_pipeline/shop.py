"""`Shop`: a pipeline in a directory of its own, with topics that no other test uses, for tests of what pipelines do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from flowstone import Broker
from flowstone.embedded import Record
from flowstone.pipeline.authoring.loading import load
from flowstone.pipeline.model import PipelineModel
from flowstone.pipeline.operations.run import Reporter, RunOptions, RunSummary, run

FLUSH_TIMEOUT_S = 30.0
CONNECT_DEADLINE_S = 2.0
STEPS = """
    @pipeline.step(expect=[
        expect("positive", "total > 0", otherwise="divert"),
        expect("named", "customer IS NOT NULL"),
    ])
    def checked(orders):
        return orders.where("id IS NOT NULL")

    pipeline.sink("out", checked, topic("{name}-out", key="customer"))
"""
HEAD = """
    from flowstone.pipeline import *

    pipeline = Pipeline("{name}", bootstrap="{bootstrap}")
    pipeline.source("orders", topic("{name}-in", value=json("id string, customer string, total double"){options}))
"""


class Shop:
    def __init__(self, spark: SparkSession, broker: Broker, directory: Path, name: str) -> None:
        self.spark, self.broker, self.directory, self.name = spark, broker, directory, name
        self.stopping = threading.Event()  # ends a run, once set
        directory.mkdir()
        broker.create_topic(self.topic("in"))
        self.declare(STEPS)

    def topic(self, suffix: str) -> str:
        return f"{self.name}-{suffix}"

    def declare(self, steps: str, *, options: str = "", head: str = HEAD) -> None:
        """Write the pipeline's file; `options` are further arguments of its source's topic."""
        text = dedent(head) + dedent(steps)
        for name, value in {"name": self.name, "bootstrap": self.broker.bootstrap, "options": options}.items():
            text = text.replace(f"{{{name}}}", value)
        (self.directory / "pipeline.py").write_text(text)

    def load(self) -> PipelineModel:
        return load(self.directory)

    def feed(self, rows: Iterable[object], key: str | None = None) -> None:
        """Write rows to the source's topic: bytes as they are, others as JSON. Those with one key stay in order."""
        producer = Producer(self.broker.client_config)
        for row in rows:
            producer.produce(self.topic("in"), row if isinstance(row, bytes) else json.dumps(row).encode(), key)
        assert producer.flush(FLUSH_TIMEOUT_S) == 0

    def run(self, *, restarts: int = 0, reporter: Reporter | None = None) -> RunSummary:
        """Run the pipeline until it has processed what is there."""
        options = RunOptions(once=True, restarts=restarts, connect_deadline_s=CONNECT_DEADLINE_S)
        return run(self.load(), options, self.stopping, reporter or Reporter(), lambda *_: self.spark)

    def out(self, suffix: str = "out") -> list[Record]:
        """Return the committed records of a topic, in the order of their values."""
        if self.topic(suffix) not in self._topics():
            return []
        records = self.broker.records(self.topic(suffix), read_committed=True)
        return sorted(records, key=lambda each: each.value or b"")

    def rows(self, suffix: str = "out") -> list[dict[str, object]]:
        return [json.loads(each.value or b"") for each in self.out(suffix)]

    def checkpoint(self) -> Path:
        (found,) = (self.directory / ".flowstone/checkpoints" / self.name).iterdir()
        return found

    def _topics(self) -> set[str]:
        producer = Producer(self.broker.client_config)
        return set(producer.list_topics(timeout=FLUSH_TIMEOUT_S).topics)


def order(number: int, total: float = 1.0) -> dict[str, object]:
    return {"id": f"{number:05}", "customer": f"c{number % 5}", "total": total}
