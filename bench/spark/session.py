"""The Spark session of a run, with both formats, and the costs of its processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession
from scripts.fetch_spark_kafka import connector_jars

from bench.spark.usage import Usage, usage


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Yield a session that has the stock connector, too."""
    with local_session({"spark.jars": connector_jars()}) as spark:
        yield spark


@contextmanager
def local_session(more: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    # Otherwise Spark's workers use `python3` from the path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flowstone bench")
        .config(map=dict(more or {}))
        # As docs/spark-cluster.md recommends: Python workers send to the JVM over Unix sockets instead of TCP.
        .config("spark.python.unix.domain.socket.enabled", "true")
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


def cpu_usage(spark: SparkSession, *others: int) -> Usage:
    """Return the usage of the Python driver, of its JVM with all its children, and of these brokers' processes."""
    return {os.getpid(): time.process_time(), **usage(jvm(spark), *others)}


def jvm(spark: SparkSession) -> int:
    """Return the id of the JVM process, which starts planners and workers."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "the session is not connected to a driver of its own"
    pid: int = gateway.proc.pid
    return pid
