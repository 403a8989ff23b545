"""`check`: what is wrong with a pipeline is named with its line, and nothing is written."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from flowstone.pipeline.operations.check import check
from tests.spark_pipeline.shop import HEAD, STEPS, Shop

SINK = '\npipeline.sink("out", "s", topic("{name}-out", key="id"))\n'


def problems(shop: Shop) -> list[str]:
    found, _queries = check(shop.load(), lambda: shop.spark)
    return [str(each).replace(str(shop.directory), "") for each in found]


def test_a_good_pipeline_has_no_problem_and_nothing_is_written(shop: Shop) -> None:
    producer = Producer({"bootstrap.servers": shop.broker.bootstrap})
    before = producer.list_topics(timeout=10).topics.keys()
    assert problems(shop) == []
    assert producer.list_topics(timeout=10).topics.keys() == before
    assert [each.name for each in shop.directory.iterdir()] == ["pipeline.py"]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            'pipeline.sql("s", "SELECT id, nme FROM orders")' + SINK,
            "/pipeline.py:6: step s: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column",
        ),
        ('pipeline.sql("s", "SELEC id FROM orders")' + SINK, "/pipeline.py:6: step s: [PARSE_SYNTAX_ERROR]"),
        (
            'pipeline.sql("s", "FROM orders",\n    expect=[expect("named", "custmer IS NOT NULL")])' + SINK,
            "/pipeline.py:7: an expectation of step s: [UNRESOLVED_COLUMN.WITH_SUGGESTION]",
        ),
        (
            'pipeline.sql("s", "SELECT total FROM orders")' + SINK,
            "/pipeline.py:7: sink out: key is id, and the columns of s are total",
        ),
        (
            "@pipeline.step\ndef s(orders):\n    return 5\n" + SINK,
            "step s: the function returned int instead of a DataF",
        ),
        (
            "@pipeline.step\ndef s(orders):\n    return orders.nothing()\n" + SINK,
            "pipeline.py:8: step s: PySparkAttributeErr",
        ),
        (
            'pipeline.source("more", topic("no-such-topic", value=text()))\npipeline.sql("s", "FROM orders")' + SINK,
            "/pipeline.py:6: source more: there is no topic no-such-topic; create it with `flowstone topic",
        ),
        (
            'pipeline.source("more", topic("{name}-in", value=json("id strin")))\npipeline.sql("s", "FROM orders")'
            + SINK,
            '/pipeline.py:6: source more: the schema "id strin" is not Spark\'s DDL',
        ),
        (
            'pipeline.source("more", topic("{name}-in"))\npipeline.sql("s", "FROM orders")' + SINK,
            "/pipeline.py:6: source more: the format json needs the columns of its values",
        ),
        (
            'pipeline.sql("s", "SELECT id, total, total FROM orders")' + SINK,
            "/pipeline.py:7: sink out: s has more than one column total",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(shop: Shop, steps: str, message: str) -> None:
    shop.declare(steps)
    (found,) = problems(shop)
    assert message in found


def test_a_broker_that_does_not_answer_is_named(shop: Shop) -> None:
    shop.declare(STEPS, head=HEAD.replace("{bootstrap}", "127.0.0.1:1"))
    (found,) = problems(shop)
    assert found.startswith("bootstrap: no broker at 127.0.0.1:1 answers")
