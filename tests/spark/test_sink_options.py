"""The sink's options and columns: what is taken, and the one sentence for what is not. No Spark session is needed."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_flowstone.sink_options import COLUMNS, SinkOptions, columns_written, parse_sink_options
from pyspark_flowstone.values import OptionError

BOOTSTRAP = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def schema(**kinds: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])  # type: ignore[arg-type]


def refusal(**options: str) -> str:
    with pytest.raises(OptionError) as refused:
        parse_sink_options({**BOOTSTRAP, **{name.replace("_", "."): value for name, value in options.items()}})
    return str(refused.value)


def test_only_the_address_is_needed() -> None:
    assert parse_sink_options(BOOTSTRAP) == SinkOptions(
        bootstrap="127.0.0.1:9092",
        topic=None,
        acks=-1,
        idempotent=True,
        compression="none",
        delivery_timeout_s=120.0,
        record_bytes_max=1 << 20,
    )


def test_names_are_the_kafka_connectors_in_any_case() -> None:
    given = {
        "Kafka.Bootstrap.Servers": "a:1,b:2",
        "TOPIC": "orders",
        "kafka.acks": "1",
        "kafka.compression.type": "ZSTD",
        "kafka.delivery.timeout.ms": "5000",
        "kafka.max.request.size": "2097152",
    }
    assert parse_sink_options(given) == SinkOptions("a:1,b:2", "orders", 1, False, "zstd", 5.0, 2 << 20)


def test_sparks_own_options_and_what_tunes_a_jvm_producer_have_no_effect() -> None:
    more = {"checkpointLocation": "/x", "kafka.linger.ms": "20", "kafka.security.protocol": "plaintext"}
    assert parse_sink_options({**BOOTSTRAP, **more}) == parse_sink_options(BOOTSTRAP)


def test_an_address_is_needed() -> None:
    with pytest.raises(OptionError, match=r"kafka.bootstrap.servers: the sink needs it"):
        parse_sink_options({"topic": "orders"})


def test_a_misspelt_name_is_refused_with_the_right_one() -> None:
    assert "topics: the sink has no such option; did you mean topic?" in refusal(topics="orders")
    assert "did you mean kafka.compression.type?" in refusal(kafka_compression_typ="lz4")


def test_bad_values_are_refused_with_the_options_name() -> None:
    assert refusal(topic=" ").startswith("topic: it is empty")
    assert refusal(kafka_acks="2") == "kafka.acks: '2' is none of all, -1, 1, 0"
    assert refusal(kafka_compression_type="brotli").startswith("kafka.compression.type: 'brotli' is none of none, gzip")
    assert refusal(kafka_delivery_timeout_ms="soon").startswith("kafka.delivery.timeout.ms: 'soon' is not a whole")
    assert "needs kafka.acks to be all" in refusal(kafka_acks="1", kafka_enable_idempotence="true")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("kafka.transactional.id", "say delivery=exactly-once and sinkName"),
        ("kafka.partitioner.class", "name others in a column `partition`"),
        ("kafka.value.serializer", "bytes or text"),
        ("kafka.security.protocol", "'X' is not one of PLAINTEXT, SSL"),
        ("kafka.nonsense", "Kafka producers have no such setting"),
    ],
)
def test_what_would_change_the_result_is_refused_by_name(name: str, reason: str) -> None:
    with pytest.raises(OptionError, match=f"^{name}: .*{reason}"):
        parse_sink_options({**BOOTSTRAP, name: "x"})


def test_a_login_without_a_protocol_that_has_one_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^kafka\.security\.protocol: sasl\.mechanism needs one of .*SASL_SSL"):
        parse_sink_options({**BOOTSTRAP, "kafka.sasl.mechanism": "PLAIN"})


EXACTLY_ONCE = {**BOOTSTRAP, "delivery": "exactly-once", "sinkName": "totals"}


def test_an_exactly_once_sink_has_a_name_and_a_timeout() -> None:
    options = parse_sink_options({**EXACTLY_ONCE, "kafka.transaction.timeout.ms": "5000"})
    assert (options.is_exactly_once, options.sink_name, options.transaction_timeout_ms) == (True, "totals", 5000)
    assert parse_sink_options(EXACTLY_ONCE).transaction_timeout_ms == 900_000
    assert not parse_sink_options({**BOOTSTRAP, "delivery": "at-least-once"}).is_exactly_once


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"delivery": "exactly-once"}, "sinkName: exactly-once delivery needs it"),
        ({"delivery": "twice"}, "delivery: 'twice' is none of at-least-once, exactly-once"),
        ({"sinkName": "totals"}, "sinkName: it applies only to delivery=exactly-once"),
        ({"kafka.transaction.timeout.ms": "1"}, "kafka.transaction.timeout.ms: it applies only to"),
        ({**EXACTLY_ONCE, "sinkName": "no name"}, "sinkName: 'no name' is not 1 to 200 letters"),
        ({**EXACTLY_ONCE, "sinkName": "x" * 201}, "is not 1 to 200 letters"),
        ({**EXACTLY_ONCE, "kafka.acks": "1"}, "delivery: exactly-once needs kafka.acks=all"),
        ({**EXACTLY_ONCE, "kafka.enable.idempotence": "false"}, "kafka.enable.idempotence=true"),
        ({**EXACTLY_ONCE, "kafka.transaction.timeout.ms": "0"}, "is not a whole number above 0"),
        ({"txnAppId": "a", "txnVersion": "1"}, "txnAppId: it applies only to delivery=exactly-once"),
        ({**EXACTLY_ONCE, "txnAppId": "a"}, "txnAppId and txnVersion: the sink needs both or neither"),
        ({**EXACTLY_ONCE, "txnVersion": "1"}, "txnAppId and txnVersion: the sink needs both or neither"),
        ({**EXACTLY_ONCE, "txnAppId": "", "txnVersion": "1"}, "txnAppId: it has 0 characters"),
        ({**EXACTLY_ONCE, "txnAppId": "a", "txnVersion": "-1"}, "txnVersion: '-1' is not a number from 0 on"),
    ],
)
def test_options_that_contradict_exactly_once_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_sink_options({**BOOTSTRAP, **given})


def test_every_column_is_written_and_others_are_left_out() -> None:
    rows = schema(
        key=StringType(),
        value=BinaryType(),
        topic=StringType(),
        partition=IntegerType(),
        offset=LongType(),
        timestamp=TimestampType(),
        headers=HEADERS,
        note=LongType(),
    )
    assert set(columns_written(rows, None)) == set(COLUMNS)


def test_the_option_topic_wins_over_the_column() -> None:
    rows = schema(value=StringType(), topic=LongType())
    assert columns_written(rows, "orders") == ("value",)


def test_a_topic_has_to_be_named_somewhere() -> None:
    with pytest.raises(OptionError, match=r"topic: the sink needs this option, or a column `topic`"):
        columns_written(schema(value=StringType()), None)


def test_rows_without_a_value_are_refused() -> None:
    with pytest.raises(OptionError, match=r"need a column `value` to write; their columns are key, id"):
        columns_written(schema(key=StringType(), id=LongType()), "orders")


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("value", schema(a=LongType()), r"`value` is struct<a:bigint>, and has to be string or binary.*to_json"),
        ("key", LongType(), r"`key` is bigint, and has to be string or binary; cast it"),
        ("partition", LongType(), r"`partition` is bigint, and has to be int; cast it"),
        ("timestamp", TimestampNTZType(), r"`timestamp` is timestamp_ntz, and has to be timestamp; cast it"),
        ("headers", ArrayType(StringType()), r"`headers` is array<string>, and has to be array<struct<key: string"),
    ],
)
def test_a_column_of_another_type_is_refused_with_the_right_one(name: str, kind: object, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        columns_written(schema(**{"value": StringType(), name: kind}), "orders")


def test_two_columns_of_one_name_are_refused() -> None:
    rows = StructType([StructField("value", StringType()), StructField("value", StringType())])
    with pytest.raises(OptionError, match="two columns have the same name"):
        columns_written(rows, "orders")
