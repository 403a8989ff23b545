"""The compared jobs: each reads a topic once, from its beginning to its end, into a Delta table and a topic."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bench import topics
from bench.connection import Connection
from bench.load import Figures
from bench.modes import FLOWSTONE
from bench.pipeline import events
from bench.pipeline.events import CENT, COLUMNS, Expected
from bench.servers import Server
from bench.spark import records, session
from bench.spark.usage import spent_s
from bench.topics import RoundFailed
from flowstone.pipeline import Pipeline, delta, expect, json, tables, topic
from flowstone.pipeline.authoring.validation import validated
from flowstone.pipeline.model import PipelineModel, TableSink
from flowstone.pipeline.operations.run import Reporter, RunOptions, run

BARE, STOCK, STOCK_PARQUET = "bare flowstone job", "stock connector", "stock, files"
DESCRIPTIONS = {
    FLOWSTONE: "a declared pipeline, exactly once: a transaction for the topic, transaction ids in the table",
    BARE: "hand-written on Flowstone's format: from_json, foreachBatch with the same table writer and a topic write",
    STOCK: "hand-written on Spark's Kafka connector: foreachBatch with write_deltalake and a topic write",
    STOCK_PARQUET: "the same with Spark's own Parquet writer instead of a Delta table",
}
ROWS_PER_S, CPU_PER_ROW = "rows_per_s", "cpu_us_per_row"
ROWS_PER_BATCH = 250_000
QUERY_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Place:
    """Where one round of a job reads and writes."""

    spark: SparkSession
    server: Server
    source: str
    directory: Path
    sink: str  # a topic

    @property
    def table(self) -> str:
        return str(self.directory / "table")


Job = Callable[[Place], None]


def declared(place: Place) -> PipelineModel:
    """Return the pipeline: three steps and an expectation, into a table and a topic."""
    pipeline = Pipeline(f"bench-{place.sink}", bootstrap=place.server.address)
    source = topic(place.source, value=json(COLUMNS), records_per_batch_max=ROWS_PER_BATCH)
    pipeline.source("orders", source)
    pipeline.step(expect=[expect("identified", "id IS NOT NULL")])(events.bought)
    pipeline.step(events.priced)
    pipeline.step(events.large)
    pipeline.sink("table-out", events.priced, delta(place.table))
    pipeline.sink("large-out", events.large, topic(place.sink))
    return validated(pipeline.model(place.directory))


def run_declared(place: Place) -> None:
    run(declared(place), RunOptions(once=True, restarts=0), threading.Event(), Reporter(), lambda *_: place.spark)


def run_bare(place: Place) -> None:
    target = TableSink("delta", place.table)

    def write(rows: DataFrame, number: int) -> None:
        priced = events.priced(events.bought(rows)).persist()
        tables.write(priced, target, tables.MicroBatch("bench", number, {}))
        _write_topic(place, "flowstone", events.large(priced))
        priced.unpersist()

    _run(place, _parsed(_stream(place, "flowstone")), write)


def run_stock(place: Place) -> None:
    def write(rows: DataFrame, number: int) -> None:
        priced = events.priced(events.bought(rows)).persist()
        deltalake.write_deltalake(place.table, priced.toArrow(), mode="append")
        _write_topic(place, "kafka", events.large(priced))
        priced.unpersist()

    _run(place, _parsed(_stream(place, "kafka")), write)


def run_stock_parquet(place: Place) -> None:
    def write(rows: DataFrame, number: int) -> None:
        priced = events.priced(events.bought(rows)).persist()
        priced.write.mode("append").parquet(place.table)
        _write_topic(place, "kafka", events.large(priced))
        priced.unpersist()

    _run(place, _parsed(_stream(place, "kafka")), write)


JOBS: dict[str, Job] = {
    FLOWSTONE: run_declared,
    BARE: run_bare,
    STOCK: run_stock,
    STOCK_PARQUET: run_stock_parquet,
}


def _stream(place: Place, format: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": place.server.address, "subscribe": place.source, "includeHeaders": "true"}
    options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS_PER_BATCH)}
    return place.spark.readStream.format(format).options(**options).load()


def _parsed(rows: DataFrame) -> DataFrame:
    return rows.select(F.from_json(F.col("value").cast("string"), COLUMNS).alias("parsed")).select("parsed.*")


def _write_topic(place: Place, format: str, rows: DataFrame) -> None:
    value = F.to_json(F.struct(*rows.columns)).alias("value")
    writer = rows.select(value).write.format(format).option("kafka.bootstrap.servers", place.server.address)
    writer.option("topic", place.sink).mode("append").save()


def _run(place: Place, rows: DataFrame, write: Callable[[DataFrame, int], None]) -> None:
    writer = rows.writeStream.option("checkpointLocation", str(place.directory / "checkpoint"))
    query = writer.trigger(availableNow=True).foreachBatch(write).start()
    if not query.awaitTermination(QUERY_TIMEOUT_S):
        query.stop()
        raise RoundFailed(f"a job did not end within {QUERY_TIMEOUT_S} s")


def measure(name: str, spark: SparkSession, server: Server, source: str, count: int, expected: Expected) -> Figures:
    """Run a job once. Raises RoundFailed if its table or its topic is not what it must be."""
    sink = f"bench{time.time_ns()}"
    with tempfile.TemporaryDirectory() as directory, Connection(server.address) as admin:
        topics.create(admin, sink, records.PARTITIONS)
        place = Place(spark, server, source, Path(directory), sink)
        before, begun = session.cpu_usage(spark, server.pid), time.perf_counter()
        JOBS[name](place)
        seconds = time.perf_counter() - begun
        cpu_s = spent_s(before, session.cpu_usage(spark, server.pid))
        _check(name, place, expected)
    return {ROWS_PER_S: count / seconds, CPU_PER_ROW: cpu_s / count * 1e6}


def _check(name: str, place: Place, expected: Expected) -> None:
    kind = "parquet" if name == STOCK_PARQUET else "delta"
    table = tables.read(place.spark, kind, place.table, {})
    [found] = table.agg(F.count("*"), F.sum("gross")).collect()
    if found[0] != expected.rows or abs(found[1] - expected.gross) > CENT * expected.rows:
        raise RoundFailed(f"{name}: the table has {tuple(found)}, not {expected.rows, expected.gross}")
    reader = place.spark.read.format("flowstone").option("kafka.bootstrap.servers", place.server.address)
    large = reader.option("subscribe", place.sink).option("isolation.level", "read_committed").load().count()
    if large != expected.large:
        raise RoundFailed(f"{name}: the topic has {large} records, not {expected.large}")
