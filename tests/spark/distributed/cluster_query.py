"""A driver of its own: copies a topic with a streaming query and counts both with batch reads.

    python cluster_query.py MASTER BOOTSTRAP FROM TO CHECKPOINT RECORDS_PER_TRIGGER

Prints the number of records in both topics and the processes that read them.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

END_TIMEOUT_S = 500


def main(master: str, bootstrap: str, source: str, target: str, checkpoint: str, per_trigger: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", "1")
        .getOrCreate()
    )
    where = {"kafka.bootstrap.servers": bootstrap}
    read = spark.readStream.format("flowstone").options(**where, subscribe=source, startingOffsets="earliest")
    rows = read.option("maxOffsetsPerTrigger", per_trigger).load().select("key", "value")
    writer = rows.writeStream.format("flowstone").options(**where, topic=target)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(END_TIMEOUT_S)
    counts = [
        spark.read.format("flowstone").options(**where, subscribe=topic).load().count() for topic in (source, target)
    ]
    hosts = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # without the driver
    print(f"counts {counts[0]} {counts[1]} executors {hosts}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
