"""A client of Spark Connect that has only `pyspark-client`: reads and writes topics through a server with the package.

    python connect_client.py REMOTE BOOTSTRAP FROM TO COUNTS CHECKPOINTS

Prints what it saw as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

END_TIMEOUT_S = 300


def main(remote: str, bootstrap: str, source: str, target: str, counts: str, checkpoints: str) -> None:
    assert importlib.util.find_spec("flowstone") is None, "the client's environment has the package"
    assert not (Path(pyspark.__file__).parent / "jars").exists(), "the client's environment has Spark itself"
    spark = SparkSession.builder.remote(remote).getOrCreate()
    where = {"kafka.bootstrap.servers": bootstrap}
    rows = spark.range(100).selectExpr("cast(id % 3 as string) key", "cast(id as string) value")
    rows.write.format("flowstone").options(**where, topic=source).mode("append").save()
    found = {"read": spark.read.format("flowstone").options(**where, subscribe=source).load().count()}

    def stream() -> DataFrame:
        return (
            spark.readStream.format("flowstone").options(**where, subscribe=source, startingOffsets="earliest").load()
        )

    copy = stream().select("key", "value").writeStream.format("flowstone").options(**where, topic=target)
    query = copy.option("checkpointLocation", f"{checkpoints}/copy").trigger(availableNow=True).start()
    assert query.awaitTermination(END_TIMEOUT_S)

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.write.format("flowstone").options(**where, topic=counts).mode("append").save()

    changed = stream().groupBy("key").count().selectExpr("key", "cast(count as string) value")
    updates = changed.writeStream.outputMode("update").foreachBatch(write)
    query = updates.option("checkpointLocation", f"{checkpoints}/counts").trigger(availableNow=True).start()
    assert query.awaitTermination(END_TIMEOUT_S)

    try:
        spark.read.format("flowstone").options(**where, subscribe="nowhere").load().count()
    except PySparkException as error:
        found["error"] = str(error).splitlines()[0]
    print(json.dumps(found), flush=True)
    os._exit(0)  # the session's threads are not waited for


if __name__ == "__main__":
    main(*sys.argv[1:])
