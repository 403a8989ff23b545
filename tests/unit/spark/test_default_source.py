from __future__ import annotations

import socket

import pytest
from pyspark.sql.types import StructType

from flowstone import Broker
from flowstone.arrow.schema import schema as arrow_schema
from pyspark_flowstone import DefaultSource, versions
from pyspark_flowstone.reporting import QueryError
from pyspark_flowstone.schema import spark_schema
from pyspark_flowstone.versions import TELLS_START

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


@pytest.fixture(scope="module")
def bootstrap():
    with Broker() as broker:
        broker.create_topic("orders", partitions=2)
        yield broker.bootstrap


def source(bootstrap, **options):
    return DefaultSource({"kafka.bootstrap.servers": bootstrap, "subscribe": "orders", **options})


def sentence(bootstrap, **options):
    with pytest.raises(QueryError) as refused:
        source(bootstrap, **options).schema()
    return str(refused.value)


def test_a_wrong_option_is_found_when_the_schema_is_asked_for(bootstrap):
    assert sentence(bootstrap, failOnDataLoss="maybe") == "failOnDataLoss: 'maybe' is none of true, false"
    assert sentence(bootstrap, startingOffsets='{"orders": {').startswith("startingOffsets: it is not JSON")


def test_a_missing_topic_is_found_when_the_schema_is_asked_for(bootstrap):
    assert sentence(bootstrap, subscribe="orders,nowhere").startswith(
        f"subscribe: there is no topic nowhere at {bootstrap}; create it"
    )


def test_a_missing_partition_is_found_when_the_schema_is_asked_for(bootstrap):
    options = {"kafka.bootstrap.servers": bootstrap, "assign": '{"orders": [0, 7]}'}
    with pytest.raises(QueryError, match="assign: topic orders has 2 partitions, 0 to 1, and no partition 7 at "):
        DefaultSource(options).schema()


def test_a_topic_may_be_missing_where_a_query_goes_on_without_lost_records(bootstrap):
    assert source(bootstrap, subscribe="nowhere", failOnDataLoss="false").schema() == spark_schema(COLUMNS[:-1])


def test_a_broker_that_does_not_answer_is_named_with_the_option():
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
    assert sentence(address, connectTimeout="200ms") == (
        f"kafka.bootstrap.servers: no broker answers at {address} (Connection refused); gave up after trying for 0.2 s"
        "; check the address, and that the broker is running"
    )


def test_an_address_that_is_none_is_named_with_the_option():
    assert sentence("127.0.0.1:port").startswith("kafka.bootstrap.servers: 127.0.0.1:port is not HOST:PORT")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets: a streaming query has no end"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' is none of true, false"),
    ],
)
def test_a_stream_that_cannot_be_read_says_so_when_it_is_first_used(options, reason):
    """Spark loses what `streamReader` itself raises."""
    reader = source("127.0.0.1:9092", **options).streamReader(spark_schema(COLUMNS[:-1]))
    newer = (reader.prepareForTriggerAvailableNow, lambda: reader.latestOffset({}, None)) if TELLS_START else ()
    uses = (
        reader.initialOffset,
        *(newer or (reader.latestOffset,)),
        lambda: reader.partitions({}, {}),
        lambda: reader.read(None),
    )
    for use in uses:
        with pytest.raises(QueryError, match=f"^{reason}"):
            use()
    reader.stop()


def test_a_stream_whose_schema_was_given_says_so_when_it_is_first_used():
    reader = source("127.0.0.1:9092").streamReader(StructType())
    with pytest.raises(QueryError, match="schema: the source's columns are key"):
        reader.initialOffset()


def test_arrow_batches_have_the_schema_that_spark_makes_of_its_own():
    assert versions.arrow_schema(spark_schema(COLUMNS)).equals(arrow_schema(COLUMNS))
