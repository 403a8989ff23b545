"""The options of the function for `foreachBatch`; tests/spark/test_update_mode.py runs it."""

from __future__ import annotations

import pytest

from pyspark_flowstone import to_topic
from pyspark_flowstone.values import OptionError

AT_LEAST_ONCE = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "counts"}
EXACTLY_ONCE = {**AT_LEAST_ONCE, "delivery": "exactly-once", "sinkName": "counts"}
OF_SEVERAL = {name: value for name, value in EXACTLY_ONCE.items() if name != "topic"}


def test_options_are_those_of_the_sink_and_may_be_numbers_and_booleans():
    made = to_topic({**AT_LEAST_ONCE, "kafka.enable.idempotence": True, "kafka.delivery.timeout.ms": 5000})
    assert made.options["kafka.enable.idempotence"] == "true"
    assert made.options["kafka.delivery.timeout.ms"] == "5000"


@pytest.mark.parametrize(
    ("options", "topics", "reason"),
    [
        ({"topic": "counts"}, (), "kafka.bootstrap.servers: the sink needs it"),
        ({**AT_LEAST_ONCE, "topik": "x"}, (), "did you mean topic"),
        ({**AT_LEAST_ONCE, "sinkName": "x"}, (), "sinkName: it applies only to delivery=exactly-once"),
        ({**EXACTLY_ONCE, "txnVersion": "1"}, (), "txnVersion: it is the number of the micro-batch here"),
        ({**EXACTLY_ONCE, "txnAppId": ""}, (), "txnAppId: it has 0 characters"),
        (AT_LEAST_ONCE, ("counts",), "topics: only an exactly-once sink needs them"),
        (OF_SEVERAL, (), "topics: an exactly-once sink needs the option topic"),
        (EXACTLY_ONCE, ("counts",), "topics: all rows go to the one that the option topic names"),
    ],
)
def test_a_mistake_is_reported_before_the_query_starts(options, topics, reason):
    with pytest.raises(OptionError, match=reason):
        to_topic(options, topics=topics)
