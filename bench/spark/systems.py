"""The compared systems: a Spark format with a broker. All have the same calls and differ only in names and a mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from pyspark.sql import DataFrame, SparkSession

from bench.modes import FLOWSTONE, KAFKA
from bench.servers import Server
from bench.spark import session
from bench.spark.usage import Usage

OUR_FORMAT, STOCK_FORMAT = "flowstone", "kafka"
STOCK_ON_FLOWSTONE = "stock on flowstone"
FLUSHED = "flowstone, flushed"  # our sink on a broker that acknowledges what is on disk: its default
DESCRIPTIONS = {
    FLOWSTONE: "our source and sink on Flowstone",
    STOCK_ON_FLOWSTONE: "Spark's Kafka connector on Flowstone, its consumers told not to wait at a log's end",
    KAFKA: "the same on Apache Kafka",
    FLUSHED: "our sink on Flowstone with its default, which flushes before it acknowledges; the others do not",
}
GROUP = "bench"
# The connector's consumers ask for more than a task needs, and where a log ends the broker keeps them waiting: half a
# second for each task by default, however many rows. Rates should not depend on that.
WITHOUT_WAITS = {"kafka.fetch.max.wait.ms": "10"}


@dataclass(frozen=True, slots=True)
class System:
    name: str
    spark: SparkSession
    format: str
    server: Server
    read_options: Mapping[str, str] = field(default_factory=dict)

    def by_default(self) -> Self:
        """Return the same system with a user's default settings."""
        return replace(self, read_options={})

    def read(self, topic: str) -> DataFrame:
        return self.spark.read.format(self.format).options(**self._options(topic)).load()

    def stream(self, topic: str) -> DataFrame:
        reader = self.spark.readStream.format(self.format).options(**self._options(topic))
        # The stock connector has no progress to show.
        options = {"groupId": GROUP} if self.format == OUR_FORMAT else {}
        return reader.options(startingOffsets="earliest", **options).load()

    def write(self, rows: DataFrame, topic: str) -> None:
        writer = rows.write.format(self.format).option("kafka.bootstrap.servers", self.server.address)
        writer.option("topic", topic).mode("append").save()

    def cpu_usage(self) -> Usage:
        """Return the usage of the session and the broker."""
        return session.cpu_usage(self.spark, self.server.pid)

    def _options(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.server.address, "subscribe": topic, **self.read_options}
