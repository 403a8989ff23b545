"""Records a second of each format of pipelines: decoded and encoded in Spark, and for Arrow decoders alone.

    python -m bench.spark.formats            # half a million records of five fields, three rounds
    python -m bench.spark.formats 100000

The records are held in Spark's memory, so that no broker takes part. Decoded and encoded rows go to Spark's noop sink.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
from google.protobuf import descriptor_pb2
from pyspark.sql import DataFrame, SparkSession

from bench.spark.session import local_session
from flowstone.pipeline import formats
from flowstone.pipeline.formats.avro import decoding
from flowstone.pipeline.formats.protobuf import columns as protobuf
from flowstone.pipeline.model import RECORD, Format, FormatKind

ROUNDS = 3
RECORDS_DEFAULT = 500_000
BATCH = 10_000
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "total", "type": "double"},
        {"name": "n", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
DDL = "id string, customer string, total double, n bigint, at timestamp"
ROW = (
    "concat('order-', id) id",
    "IF(id % 5 = 0, NULL, concat('customer ', id % 100)) customer",
    "id / 7 total",
    "id n",
    "timestamp_micros(1700000000000000 + id) at",
)


def descriptor_set() -> bytes:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    order = file.message_type.add(name="Order")
    kinds = (field.TYPE_STRING, field.TYPE_STRING, field.TYPE_DOUBLE, field.TYPE_INT64, field.TYPE_MESSAGE)
    for number, (name, kind) in enumerate(zip(("id", "customer", "total", "n", "at"), kinds, strict=True), 1):
        order.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    order.field[4].type_name = ".google.protobuf.Timestamp"
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def measured(count: int, work: Callable[[], object]) -> float:
    """Return the median of millions of records a second, after one round to warm up."""
    rates = []
    for _ in range(ROUNDS + 1):
        started = time.perf_counter()
        work()
        rates.append(count / (time.perf_counter() - started) / 1e6)
    return median(rates[1:])


def to_noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def in_spark(spark: SparkSession, rows: DataFrame, format: Format, count: int) -> tuple[float, float, int, pa.Array]:
    """Return the rates of decoding and encoding, the bytes of a value, and a batch of values."""
    written = rows.select(formats.encode(rows.schema, format, "orders").alias("value"))
    headers = "CAST(array() AS array<struct<key: string, value: binary>>) headers"
    records = written.selectExpr(
        f"struct('t' topic, 0 partition, 0L offset, timestamp'2026-11-01' timestamp, "
        f"CAST(NULL AS binary) key, value, {headers}) {RECORD}"
    ).persist()
    try:
        to_noop(records)
        decoded = measured(count, lambda: to_noop(formats.decode(records, format, spark).drop(RECORD)))
        values = pa.array([bytes(row[0]) for row in written.limit(BATCH).collect()], pa.binary())
    finally:
        records.unpersist()
    encoded = measured(count, lambda: to_noop(written))
    return decoded, encoded, values.nbytes // len(values), values


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS_DEFAULT
    text = json.dumps(AVRO)
    found = descriptor_set()
    with local_session() as spark, tempfile.TemporaryDirectory() as work:
        path = Path(work, "order.desc")
        path.write_bytes(found)
        kinds = {
            "raw": Format(FormatKind.RAW),
            "json": Format(FormatKind.JSON, DDL),
            "csv": Format(FormatKind.CSV, DDL),
            "avro": Format(FormatKind.AVRO, text),
            "protobuf": Format(FormatKind.PROTOBUF, str(path)),
        }
        rows = spark.range(count).selectExpr(*ROW).persist()
        to_noop(rows)
        alone: dict[str, Callable[[pa.Array], object]] = {
            "avro": lambda values: decoding.decode(values, (text, ()), (text, ())),
            "protobuf": lambda values: protobuf.decode_values(values, found, "shop.Order"),
        }
        print("| million records a second | bytes | decoded in Spark | encoded in Spark | decoder alone, one core |")
        print("|---|---|---|---|---|")
        for name, format in kinds.items():
            given = rows if name != "raw" else rows.selectExpr("to_json(struct(*)) value")
            decoded, encoded, size, values = in_spark(spark, given, format, count)
            only = f"{measured(len(values), partial(alone[name], values)):.1f}" if name in alone else ""
            print(f"| {name} | {size} | {decoded:.2f} | {encoded:.2f} | {only} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
