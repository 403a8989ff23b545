"""What is compared: a format of Spark on a broker. The same calls for each; only names and one mode differ."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from bench.modes import FLOWSTONE, KAFKA
from bench.servers import Server

OUR_FORMAT, STOCK_FORMAT = "flowstone", "kafka"
STOCK_ON_FLOWSTONE = "stock on flowstone"
FLUSHED = "flowstone, flushed"  # our sink on a broker that acknowledges what is on disk: its default
DESCRIPTIONS = {
    FLOWSTONE: "our source and sink on Flowstone",
    STOCK_ON_FLOWSTONE: "Spark's Kafka connector on Flowstone",
    KAFKA: "Spark's Kafka connector on Apache Kafka",
    FLUSHED: "our sink on Flowstone with its default, which flushes before it acknowledges; the others do not",
}
GROUP = "bench"


@dataclass(frozen=True, slots=True)
class System:
    name: str
    spark: SparkSession
    format: str
    server: Server

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

    def _options(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.server.address, "subscribe": topic}
