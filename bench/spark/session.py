"""The one Spark session of a run, with both formats in it, and what its processes cost."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession
from scripts.fetch_spark_kafka import connector_jars

from bench import processes

LOOKS_MAX = 10


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    # Spark's workers would be `python3` of the path otherwise.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flowstone bench")
        .config("spark.jars", connector_jars())
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def cpu_seconds(spark: SparkSession) -> float:
    """Of the driver in Python and of the JVM with all that it started, ended workers too. Not of the brokers."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "the session is not connected to a driver of its own"
    jvm = gateway.proc.pid
    for _ in range(LOOKS_MAX - 1):
        with suppress(OSError):  # a process that ended as it was looked at: by the next look it is among the ended
            return _cpu_seconds(jvm)
    return _cpu_seconds(jvm)


def _cpu_seconds(jvm: int) -> float:
    return time.process_time() + processes.cpu_seconds(jvm) + processes.ended_cpu_seconds(jvm)
