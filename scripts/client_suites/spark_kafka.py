"""Spark's own Kafka connector in a separate Spark session, with our broker and next to our source and sink."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from scripts.client_suites.suite import Server, Suite, Unavailable, run
from scripts.fetch_kafka import FetchError, java_command
from scripts.fetch_spark_kafka import connector_jars

PROGRAM = Path(__file__).with_name("spark_kafka_checks.py")
TIMEOUT_S = 600  # with three brokers on a busy machine it took half of this


def run_suite(suite: Suite, server: Server) -> None:
    try:
        java_command()
        jars = connector_jars()
    except FetchError as error:
        raise Unavailable(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="flowstone-spark-kafka-") as folder:
        # Otherwise Spark's workers use `python3` from the path.
        variables = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [sys.executable, str(PROGRAM), server.address, jars, folder]
        suite.take_report(run(command, timeout_s=TIMEOUT_S, variables=variables))
