"""Avro and Protobuf with a real registry and Confluent's serializers on the other side: FLOWSTONE_SPARK_LONG=1."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from flowstone.pipeline import PipelineError, formats
from flowstone.pipeline.formats.registry import client as registry_client
from flowstone.pipeline.model import ERROR, Format, FormatKind
from tests.spark_pipeline.formats import registry_server
from tests.spark_pipeline.formats.format_records import cause, fields, records
from tests.spark_pipeline.formats.protobuf_messages import descriptor_set, message_class
from tests.spark_pipeline.shop import Shop

pytestmark = pytest.mark.skipif(not os.environ.get("FLOWSTONE_SPARK_LONG"), reason="long: FLOWSTONE_SPARK_LONG=1")

V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "int"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "total", "type": "double", "default": 0.5}]}  # type: ignore[misc]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry_server.running(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def client(url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": url}) as found:
        yield found


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def avro(client: SchemaRegistryClient, topic: str, schema: Any, value: Any) -> bytes:
    found = AvroSerializer(client, json.dumps(schema))(value, context(topic))
    assert found is not None
    return found


def decoded(spark: SparkSession, values: list[bytes | None], format: Format, topic: str) -> list[Any]:
    return formats.decode(records(spark, values), format, spark, formats.subject_of(topic)).collect()


def test_avro_of_two_versions_is_read_with_the_newest(
    spark: SparkSession, url: str, client: SchemaRegistryClient
) -> None:
    values = [
        avro(client, "orders", V1, {"id": "a", "n": 1}),
        avro(client, "orders", V2, {"id": "b", "n": 2, "total": 9.0}),
    ]
    unknown = b"\x00\x00\x00\xff\xff\x00"
    format = Format(FormatKind.AVRO, registry=url)
    formats.check(format, "orders-value")
    old, new, tombstone, bad = decoded(spark, [*values, None, unknown], format, "orders")
    assert fields(old) == {"id": "a", "n": 1, "total": 0.5}
    assert fields(new) == {"id": "b", "n": 2, "total": 9.0}
    assert tombstone[ERROR] is None
    assert cause(bad) == f"UnknownSchema: the registry {url} has no schema 65535"


def test_avro_of_a_sink_is_read_by_confluents_deserializer(
    spark: SparkSession, url: str, client: SchemaRegistryClient
) -> None:
    frame = spark.sql("SELECT 'a' AS id, 7L AS n")
    format = Format(FormatKind.AVRO, registry=url)
    [row] = frame.select(formats.encode(frame.schema, format, "sink-value").alias("value")).collect()
    read = AvroDeserializer(client)(bytes(row.value), context("sink"))
    assert read == {"id": "a", "n": 7}
    fixed = Format(FormatKind.AVRO, registry=url, options={"auto.register.schemas": "false"})
    [again] = frame.select(formats.encode(frame.schema, fixed, "sink-value").alias("value")).collect()
    assert again.value == row.value


def test_protobuf_is_read_and_written(
    spark: SparkSession, url: str, client: SchemaRegistryClient, tmp_path: Path
) -> None:
    kind = message_class("shop.Order")
    serializer = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
    value = serializer(kind(id="a", total=1.5), context("shop"))
    by_registry = Format(FormatKind.PROTOBUF, message="shop.Order", registry=url)
    [row] = decoded(spark, [value], by_registry, "shop")
    assert fields(row)["id"] == "a"
    path = tmp_path / "shop.desc"
    path.write_bytes(descriptor_set())
    by_file = Format(FormatKind.PROTOBUF, str(path), "shop.Order", registry=url)
    for format, subject in ((by_file, "out-value"), (by_registry, "shop-value")):
        if format is by_registry:
            format = Format(FormatKind.PROTOBUF, message="shop.Order", registry=url,
                            options={"auto.register.schemas": "false"})  # fmt: skip
        frame = spark.sql("SELECT 'b' AS id, 2.5D AS total")
        [out] = frame.select(formats.encode(frame.schema, format, subject).alias("value")).collect()
        read = ProtobufDeserializer(kind, {"use.deprecated.format": False})(bytes(out.value), context("out"))
        assert (read.id, read.total) == ("b", 2.5)


def test_an_incompatible_schema_of_a_sink_is_refused_by_the_registry(spark: SparkSession, url: str) -> None:
    import urllib.request

    request = urllib.request.Request(
        f"{url}/config/strict-value", b'{"compatibility": "BACKWARD"}',
        {"Content-Type": "application/vnd.schemaregistry.v1+json"}, method="PUT",
    )  # fmt: skip
    format = Format(FormatKind.AVRO, registry=url)
    formats.encode(spark.sql("SELECT 'a' AS id").schema, format, "strict-value")
    with urllib.request.urlopen(request):
        pass
    with pytest.raises(PipelineError, match="not compatible with the subject's"):
        formats.encode(spark.sql("SELECT 1 AS id").schema, format, "strict-value")


def test_a_pipeline_reads_and_writes_with_the_registry(shop: Shop, url: str, client: SchemaRegistryClient) -> None:
    shop.declare(
        f"""
        pipeline.source("raw", topic("{{name}}-avro", value=avro(registry="{url}")))

        @pipeline.step(expect=[expect("some", "n > 0", otherwise="divert")])
        def checked(raw):
            return raw

        pipeline.sink("out", checked, topic("{{name}}-out", value=avro(registry="{url}"), key="id"))
        """
    )
    topic = shop.topic("avro")
    shop.broker.create_topic(topic)
    producer = Producer({"bootstrap.servers": shop.broker.bootstrap})
    for value in (avro(client, topic, V1, {"id": "a", "n": 1}), avro(client, topic, V2, {"id": "b", "n": 0}), b"junk"):
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    summary = shop.run()
    assert (summary.rows_out, summary.letters) == ({"out": 1}, 2)
    [out] = shop.out()
    read = AvroDeserializer(client)(out.value, context(shop.topic("out")))
    assert read == {"id": "a", "n": 1, "total": 0.5}


def test_a_registry_that_goes_away_fails_the_batch_and_no_record(
    spark: SparkSession, url: str, client: SchemaRegistryClient
) -> None:
    value = avro(client, "gone", V1, {"id": "a", "n": 1})
    nobody = Format(FormatKind.AVRO, json.dumps(V1), registry="http://127.0.0.1:1")
    with pytest.raises(Exception, match="does not answer"):
        decoded(spark, [value], nobody, "gone")
    with pytest.raises(registry_client.RegistryUnavailable):
        formats.check(nobody, "gone-value")
