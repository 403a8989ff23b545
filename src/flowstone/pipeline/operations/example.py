"""`new`: the files of an example pipeline, in either form, which passes `check` and `test` as it is."""

from __future__ import annotations

from pathlib import Path

from flowstone.pipeline.authoring.loading import PYTHON_FILE, YAML_FILE
from flowstone.pipeline.authoring.validation import is_pipeline_name
from flowstone.pipeline.errors import PipelineError

PYTHON = '''"""Orders that can be paid: those with an amount, with the amount in euros."""

from pyspark.sql import DataFrame

from flowstone.pipeline import Pipeline, expect, json, topic

pipeline = Pipeline("{name}")
pipeline.source(
    "orders",
    topic("orders", value=json("order_id string NOT NULL, customer_id string, country string, amount_cents bigint")),
)


# A row that does not meet an expectation can be kept, dropped or diverted to the dead letters, or fail the pipeline.
@pipeline.step(
    expect=[
        expect("has_an_amount", "amount > 0", otherwise="divert"),
        expect("has_a_customer", "customer_id IS NOT NULL"),
    ]
)
def payable(orders: DataFrame) -> DataFrame:
    return orders.selectExpr("order_id", "customer_id", "country", "amount_cents / 100 AS amount", "_record")


pipeline.sink("out", payable, topic("{name}-payable", key="customer_id"))

pipeline.case(
    "an order without an amount is a dead letter",
    given={
        "orders": [
            {"order_id": "o-1", "customer_id": "c-1", "country": "DE", "amount_cents": 1250},
            {"order_id": "o-2", "customer_id": "c-1", "country": "DE", "amount_cents": 0},
            {"_value": "not JSON"},
        ]
    },
    expected={
        "out": [{"order_id": "o-1", "amount": 12.5}],
        "letters": [{"stage": "TRANSFORMATION"}, {"value": "not JSON", "stage": "VALUE_CONVERTER"}],
    },
)
'''
YAML = """# Orders that can be paid: those with an amount, with the amount in euros.
name: {name}
sources:
  orders:
    topic: orders
    value:
      format: json
      schema: order_id string NOT NULL, customer_id string, country string, amount_cents bigint
steps:
  payable:
    sql: SELECT order_id, customer_id, country, amount_cents / 100 AS amount, _record FROM orders
    # A row that does not meet an expectation can be kept, dropped or diverted to the dead letters, or fail all.
    expect:
      has_an_amount: {condition: amount > 0, otherwise: divert}
      has_a_customer: customer_id IS NOT NULL
sinks:
  out: {input: payable, topic: {name}-payable, key: customer_id}
tests:
  an order without an amount is a dead letter:
    given:
      orders:
        - {order_id: o-1, customer_id: c-1, country: DE, amount_cents: 1250}
        - {order_id: o-2, customer_id: c-1, country: DE, amount_cents: 0}
        - {_value: not JSON}
    expected:
      out:
        - {order_id: o-1, amount: 12.5}
      letters:
        - {stage: TRANSFORMATION}
        - {value: not JSON, stage: VALUE_CONVERTER}
"""
README = """# {name}

A pipeline of Flowstone, declared in `{file}`.

    flowstone pipeline test {directory}                 # its tests, without a broker
    flowstone up                                  # a broker, in another terminal
    flowstone topic create orders
    flowstone generate orders --rows 1000         # something to read
    flowstone pipeline check {directory}
    flowstone pipeline run {directory} --once           # without --once it goes on until Ctrl-C
    flowstone consume {name}-payable --max 3
    flowstone pipeline status {directory}
"""


def write_example(directory: Path, *, is_yaml: bool) -> list[Path]:
    """Write the files into a new or empty directory and return their paths. Raises PipelineError if it has files."""
    name = directory.resolve().name
    if not is_pipeline_name(name):
        raise PipelineError(
            f"{directory}: the directory's name becomes the pipeline's, and may have letters, digits, dots, hyphens "
            "and underscores"
        )
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise PipelineError(f"{directory} is not empty; name a new directory")
    file = YAML_FILE if is_yaml else PYTHON_FILE
    texts = {file: YAML if is_yaml else PYTHON, "README.md": README, ".gitignore": ".flowstone/\n"}
    for each, text in texts.items():
        for word, value in {"name": name, "file": file, "directory": str(directory)}.items():
            text = text.replace(f"{{{word}}}", value)
        (directory / each).write_text(text, encoding="utf-8")
    return [directory / each for each in texts]
