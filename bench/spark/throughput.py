"""Reading and writing of many rows: one round of each, which fails if a row is missing.

Reads use Spark's noop sink, which discards every row. A batch is measured from the call to its end; a stream by the
time of its micro-batches, because the start of a query does not depend on the rows, and the whole query's rate is shown
next to it. The processor time per row, in Spark, its workers and the broker, is shown too: on a shared machine it is
more reliable than the wall time.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import concat, format_string, lit

from bench import topics
from bench.load import Figures
from bench.spark import records
from bench.spark.rounds import Work
from bench.spark.systems import System
from bench.spark.usage import spent_s
from bench.topics import RoundFailed

READ, SMALL_READ, WRITE = "read", "small read", "write"
BATCH, AVAILABLE_NOW = "batch", "availableNow"
SIZES_BYTES = (100, 1_000)
COMPRESSIONS = ("none", "lz4")
ROWS_PER_S = "rows_per_s"
CPU_PER_ROW = "cpu_us_per_row"
SECONDS = "seconds"
SMALL_READ_ROWS = 1_000
# Measured: the compilers take a fifth of the processor time of a session's tenth query, a tenth of its twentieth's.
WARM_UP_ROWS = 100_000
WARM_UP_READS = 15
WARM_UP_STREAMS = 5
QUERY_TIMEOUT_S = 120
ID_BYTES = 12


def read_variant(size_bytes: int, compression: str) -> str:
    return f"{size_bytes:,} B values, {compression}"


def write_variant(size_bytes: int) -> str:
    return f"{size_bytes:,} B values"


def batch_read(topic: str, size_bytes: int, compression: str, count: int) -> Work:
    return Work(
        READ, BATCH, read_variant(size_bytes, compression), ROWS_PER_S, partial(_read, topic=topic, count=count)
    )


def available_now_read(topic: str, size_bytes: int, compression: str, count: int) -> Work:
    run = partial(_stream, topic=topic, count=count)
    return Work(READ, AVAILABLE_NOW, read_variant(size_bytes, compression), ROWS_PER_S, run)


def small_read(topic: str) -> Work:
    """Return the workload for the fixed cost of a query, with default settings."""
    return Work(
        SMALL_READ, BATCH, f"{SMALL_READ_ROWS:,} rows, default settings", SECONDS, partial(_small_read, topic=topic)
    )


def batch_write(size_bytes: int, count: int) -> Work:
    run = partial(_write, size_bytes=size_bytes, count=count)
    return Work(WRITE, BATCH, write_variant(size_bytes), ROWS_PER_S, run)


def warm_up(system: System, topic: str, count: int) -> None:
    """Run queries until the JVM has compiled the code that plans and runs them."""
    for _ in range(WARM_UP_READS):
        _read(system, topic, count)
    for _ in range(WARM_UP_STREAMS):
        _stream(system, topic, count)


def check_rows(system: System, topic: str, count: int) -> None:
    """Raise RoundFailed unless the system reads every record, which the noop sink would not detect."""
    found = system.read(topic).where("value is not null").count()
    if found != count:
        raise RoundFailed(f"{system.name} read {found} rows of {topic}, not {count}")


def _read(system: System, topic: str, count: int) -> Figures:
    before, begun = system.cpu_usage(), time.perf_counter()
    system.read(topic).write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - begun
    cpu_s = spent_s(before, system.cpu_usage())
    return {ROWS_PER_S: count / seconds, CPU_PER_ROW: cpu_s / count * 1e6}


def _small_read(system: System, topic: str) -> Figures:
    return {SECONDS: SMALL_READ_ROWS / _read(system.by_default(), topic, SMALL_READ_ROWS)[ROWS_PER_S]}


def _stream(system: System, topic: str, count: int) -> Figures:
    with tempfile.TemporaryDirectory() as checkpoint:
        before, begun = system.cpu_usage(), time.perf_counter()
        writer = system.stream(topic).writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        if not query.awaitTermination(QUERY_TIMEOUT_S):
            query.stop()
            raise RoundFailed(f"{system.name} did not read {topic} in {QUERY_TIMEOUT_S} s")
        whole_s = time.perf_counter() - begun
        cpu_s = spent_s(before, system.cpu_usage())
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    rows = sum(progress["numInputRows"] for progress in batches)
    if rows != count:
        raise RoundFailed(f"{system.name} streamed {rows} rows of {topic}, not {count}")
    batches_s = sum(progress["durationMs"]["triggerExecution"] for progress in batches) / 1000
    return {
        ROWS_PER_S: count / batches_s,
        "whole_query_rows_per_s": count / whole_s,
        CPU_PER_ROW: cpu_s / count * 1e6,
    }


def _write(system: System, size_bytes: int, count: int) -> Figures:
    with topics.fresh_topic(system.server, records.PARTITIONS) as topic:
        rows = _rows(system.spark, size_bytes, count)
        begun = time.perf_counter()
        system.write(rows, topic)
        seconds = time.perf_counter() - begun
        records.check(system.server, topic, count)
    return {ROWS_PER_S: count / seconds}


def _rows(spark: SparkSession, size_bytes: int, count: int) -> DataFrame:
    """Return rows that are cheap to generate and all different."""
    value = concat(format_string(f"%0{ID_BYTES}d", "id"), lit("x" * (size_bytes - ID_BYTES)))
    return spark.range(count).select(value.alias("value"))
