from __future__ import annotations

import re

import pytest

from flowstone.types import TopicPartition
from pyspark_flowstone.options import (
    Assigned,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Everywhere,
    Pattern,
    Topics,
    parse_options,
)
from pyspark_flowstone.sink_options import parse_sink_options
from pyspark_flowstone.values import OptionError

NEEDED = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def options(without=(), **more):
    given = {**NEEDED, **{name.replace("__", "."): value for name, value in more.items()}}
    return parse_options({name: value for name, value in given.items() if name not in without})


def test_an_address_and_a_topic_are_enough():
    found = options()
    assert (found.bootstrap, found.subscription) == ("127.0.0.1:9092", Topics(("orders",)))
    assert found.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert found.fail_on_data_loss
    assert not found.read_committed
    assert found.group_id is None


def test_a_batch_read_starts_at_the_first_and_ends_after_the_last_record():
    assert options().batch_bounds() == (Everywhere(-2), Everywhere(-1))


def test_a_stream_starts_at_what_comes_from_now_on():
    assert options().stream_start() == Everywhere(-1)


def test_names_are_compared_without_regard_to_case():
    found = parse_options({"KAFKA.bootstrap.SERVERS": "h:1", "Subscribe": "a", "startingoffsets": "EARLIEST"})
    assert found.starting == Everywhere(-2)


def test_several_topics_are_given_by_commas():
    assert options(subscribe=" b, a,b,").subscription == Topics(("a", "b"))


def test_topics_are_given_by_a_pattern():
    assert options(without=["subscribe"], subscribePattern="or.*").subscription == Pattern("or.*")


def test_partitions_are_given_one_by_one():
    found = options(without=["subscribe"], assign='{"b":[1,0],"a":[3]}').subscription
    assert found == Assigned((TopicPartition("a", 3), TopicPartition("b", 0), TopicPartition("b", 1)))


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({"startingOffsets": "earliest"}, Everywhere(-2)),
        ({"startingOffsets": "latest"}, Everywhere(-1)),
        ({"startingOffsets": '{"a":{"0":-2,"1":7}}'}, AtOffsets({("a", 0): -2, ("a", 1): 7})),
        ({"startingTimestamp": "1700000000000"}, AtTimestamp(1700000000000)),
        ({"startingTimestamp": "2023-11-14T22:13:20Z"}, AtTimestamp(1700000000000)),
        ({"startingTimestamp": "2023-11-14 23:13:20.5+01:00"}, AtTimestamp(1700000000500)),
        ({"startingTimestamp": "2023-11-14"}, AtTimestamp(1699920000000)),
        ({"startingOffsetsByTimestamp": '{"a":{"0":5}}'}, AtTimestamps({("a", 0): 5})),
        ({"startingTimestamp": "5", "startingOffsets": "latest"}, AtTimestamp(5)),
    ],
)
def test_every_form_of_a_start_is_understood(given, bound):
    assert options(**given).starting == bound


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({"endingOffsets": "latest"}, Everywhere(-1)),
        ({"endingOffsets": '{"a":{"0":-1}}'}, AtOffsets({("a", 0): -1})),
        ({"endingTimestamp": "9"}, AtTimestamp(9)),
        ({"endingTimestamp": "2023-11-14T22:13:20Z"}, AtTimestamp(1700000000000)),
        ({"endingOffsetsByTimestamp": '{"a":{"0":9}}'}, AtTimestamps({("a", 0): 9})),
    ],
)
def test_every_form_of_an_end_is_understood(given, bound):
    assert options(**given).ending == bound


def test_columns_are_chosen_in_the_order_given():
    assert options(columns="offset, VALUE,timestamptype").columns == ("offset", "value", "timestampType")


def test_headers_come_last_when_asked_for():
    assert options(includeHeaders="true").columns[-1] == "headers"


def test_the_group_of_the_kafka_connector_is_the_group():
    assert options(kafka__group__id="billing").group_id == "billing"


def test_a_delay_is_given_with_its_unit():
    assert options(maxTriggerDelay="2m").trigger_delay_max_ms == 120_000


def test_what_tunes_a_jvm_consumer_has_no_effect():
    options(kafka__max__poll__records="500", groupIdPrefix="x", kafka__security__protocol="plaintext")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"startingOffset": "earliest"},
            "startingOffset: the source has no such option; did you mean startingOffsets?",
        ),
        ({"kafka.max.pol.records": "5"}, "kafka.max.pol.records: .*; did you mean kafka.max.poll.records?"),
        ({"kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset: set startingOffsets instead"),
        ({"kafka.security.protocol": "TLS"}, "kafka.security.protocol: 'TLS' is not one of PLAINTEXT, SSL"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "kafka.security.protocol: sasl.mechanism needs one of SSL"),
        ({"assign": '{"a":[0]}'}, "needs exactly one of them, not subscribe and assign"),
        ({"subscribe": " , "}, "subscribe: it names no topic"),
        ({"startingOffsets": "newest"}, "startingOffsets: 'newest' is not earliest, latest or JSON"),
        ({"startingOffsets": "{"}, "startingOffsets: it is not JSON"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "startingOffsets: -3 cannot be used for partition 0 of topic a"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is not a time in milliseconds"),
        ({"startingTimestamp": "1969-12-31"}, "startingTimestamp: '1969-12-31' is not a time in milliseconds"),
        ({"endingOffsetsByTimestamp": "5"}, "endingOffsetsByTimestamp: '5' is not JSON by topic and partition"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss: 'perhaps' is none of true, false"),
        ({"minPartitions": "0"}, "minPartitions: '0' is not a whole number above 0"),
        ({"maxBytesPerTrigger": "1g"}, "maxBytesPerTrigger: '1g' is not a whole number above 0"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay: 'soon' is no duration such as 500ms, 30s or 15m"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger: 9 is more than"),
        ({"columns": "value,size"}, "columns: 'size' is none of key, value"),
        ({"columns": "value,value"}, "columns: 'value,value' names a column twice"),
        ({"isolation.level": "serializable"}, "isolation.level: 'serializable' is none of read_uncommitted"),
        ({"groupId": "a", "kafka.group.id": "b"}, "groupId: it says 'a' and kafka.group.id says 'b'"),
        ({"groupId": ""}, "groupId: it is empty"),
    ],
)
def test_a_bad_option_is_refused_in_one_sentence_that_names_it(given, sentence):
    with pytest.raises(OptionError, match=sentence) as caught:
        parse_options({**NEEDED, **given})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("without", "sentence"),
    [("kafka.bootstrap.servers", "kafka.bootstrap.servers: the source needs it"), ("subscribe", "exactly one of them")],
)
def test_a_missing_option_is_named(without, sentence):
    with pytest.raises(OptionError, match=sentence):
        options(without=[without])


def test_a_pattern_must_be_a_regular_expression():
    with pytest.raises(OptionError, match=r"subscribePattern: '\(' is not a regular expression"):
        options(without=["subscribe"], subscribePattern="(")


@pytest.mark.parametrize("assign", ["{}", "[]", '{"a":0}', '{"a":[-1]}', '{"a":["0"]}', "x"])
def test_an_assignment_names_partitions(assign):
    with pytest.raises(OptionError, match="assign"):
        options(without=["subscribe"], assign=assign)


@pytest.mark.parametrize("given", [{"startingOffsets": "latest"}, {"startingOffsets": '{"a":{"0":-1}}'}])
def test_a_batch_read_cannot_start_at_latest(given):
    with pytest.raises(OptionError, match="a batch read cannot start at latest"):
        options(**given).batch_bounds()


@pytest.mark.parametrize("given", [{"endingOffsets": "earliest"}, {"endingOffsets": '{"a":{"0":-2}}'}])
def test_a_batch_read_cannot_end_at_earliest(given):
    with pytest.raises(OptionError, match="a batch read cannot end at earliest"):
        options(**given).batch_bounds()


def test_a_stream_has_no_end():
    with pytest.raises(OptionError, match="a streaming query has no end"):
        options(endingOffsets="latest").stream_start()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sinkname", "sinkName: the source has no such option; it is one of the sink"),
        ("checkpointlocation", "checkpointLocation: the source has no such option"),
        ("Subscrib", "Subscrib: the source has no such option; did you mean subscribe?"),
    ],
)
def test_a_name_is_spelled_as_users_know_it_although_spark_passes_lower_case(name, sentence):
    with pytest.raises(OptionError, match=re.escape(sentence)):
        parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "a", name: "1"})


def test_a_name_of_the_source_is_spelled_by_the_sink():
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger: the sink has no such option; it is one of the source"):
        parse_sink_options({"kafka.bootstrap.servers": "h:1", "topic": "a", "maxoffsetspertrigger": "1"})


def test_the_time_for_the_first_connection_can_be_set():
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a"}
    assert parse_options(given).connect_timeout_s == 5
    assert parse_options({**given, "connectTimeout": "300ms"}).connect_timeout_s == 0.3
    of_sink = {"kafka.bootstrap.servers": "h:1", "topic": "a", "connectTimeout": "1m"}
    assert parse_sink_options(of_sink).connect_timeout_s == 60
    with pytest.raises(OptionError, match="connectTimeout: it has to be above 0"):
        parse_options({**given, "connectTimeout": "0s"})
