"""`pipeline.yaml`: the same model as the Python form, and errors that name the line."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import jsonschema
import pytest
import yaml

from flowstone.pipeline import Pipeline, PipelineError
from flowstone.pipeline.authoring import fields
from flowstone.pipeline.authoring.json_schema import json_schema
from flowstone.pipeline.authoring.loading import load
from flowstone.pipeline.model import PipelineModel

FUNCTIONS = """
    def named(customers):
        return customers
"""
YAML = """
    name: shop
    bootstrap: "broker:9092"
    dead_letters: shop-bad
    delivery: at-least-once
    trigger: {interval_s: 2.5}
    master: local[3]
    spark: {spark.sql.shuffle.partitions: 4}
    checkpoints: cp
    sources:
      orders:
        topic: [orders, more-orders]
        value: {format: csv, schema: "id string", options: {sep: ;}}
        starting: 2026-11-01T00:00:00Z
        records_per_batch_max: 1000
        options: {minPartitions: 8}
      others:
        pattern: other-.*
        value: {format: avro, registry: "http://r:8081"}
      images: {topic: images, value: raw}
      words: {topic: words, value: text}
      events: {topic: events, value: {format: protobuf, schema: e.desc, message: shop.Event}}
      customers: {delta: /lake/customers, options: {version: 3}}
      drops: {files: in, kind: csv, schema: "id string", options: {header: true}}
      countries: {parquet: countries}
    steps:
      counted:
        sql: SELECT id, count(*) AS n FROM named JOIN orders USING (id) GROUP BY id
        expect:
          many: n > 1
          few: {condition: n < 9, otherwise: divert}
      from_file: {sql_file: words.sql, inputs: [words]}
      named: {function: "shop_functions:named"}
    sinks:
      out: {input: counted, topic: out, key: id, value: json, options: {kafka.compression.type: zstd}}
      lake:
        input: named
        delta: lake
        keys: id
        partition_by: [country]
        compact_every_s: 60
        delete_when: gone
        options: {AWS_REGION: eu}
      ice: {input: words, iceberg: a.b}
      screen: {input: orders, console: 5}
    tests:
      one:
        given: {orders: [{id: a, _key: k}, {_value: "x"}]}
        expected: {counted: [{n: 1}], letters: []}
"""
PYTHON = """
    from flowstone.pipeline import *
    from shop_functions import named

    pipeline = Pipeline(
        "shop", bootstrap="broker:9092", dead_letters="shop-bad", delivery="at-least-once", trigger=interval(2.5),
        master="local[3]", spark={"spark.sql.shuffle.partitions": "4"}, checkpoints="cp",
    )
    pipeline.source("orders", topic(
        "orders", "more-orders", value=csv("id string", sep=";"), starting="2026-11-01T00:00:00Z",
        records_per_batch_max=1000, minPartitions="8",
    ))
    pipeline.source("others", topic(pattern="other-.*", value=avro(registry="http://r:8081")))
    pipeline.source("images", topic("images", value=raw()))
    pipeline.source("words", topic("words", value=text()))
    pipeline.source("events", topic("events", value=protobuf("e.desc", message="shop.Event")))
    pipeline.source("customers", delta("/lake/customers", version="3"))
    pipeline.source("drops", files("in", "csv", "id string", header="true"))
    pipeline.source("countries", parquet("countries"))
    pipeline.sql("counted", "SELECT id, count(*) AS n FROM named JOIN orders USING (id) GROUP BY id", expect=[
        expect("many", "n > 1"), expect("few", "n < 9", otherwise="divert"),
    ])
    pipeline.sql("from_file", sql_file="words.sql", inputs=["words"])
    pipeline.step(named)
    pipeline.sink("out", "counted", topic("out", key="id", **{"kafka.compression.type": "zstd"}))
    pipeline.sink("lake", named, delta(
        "lake", keys=["id"], partition_by=["country"], compact_every_s=60, delete_when="gone", AWS_REGION="eu",
    ))
    pipeline.sink("ice", "words", iceberg("a.b"))
    pipeline.sink("screen", "orders", console(5))
    pipeline.case(
        "one", given={"orders": [{"id": "a", "_key": "k"}, {"_value": "x"}]},
        expected={"counted": [{"n": 1}], "letters": []},
    )
"""


def loaded(directory: Path, name: str, text: str) -> PipelineModel:
    directory.mkdir(exist_ok=True)
    (directory / "shop_functions.py").write_text(dedent(FUNCTIONS))
    (directory / "words.sql").write_text("SELECT * FROM words")
    (directory / name).write_text(dedent(text).lstrip())
    return load(directory)


def without_text(model: PipelineModel) -> PipelineModel:
    """The model without what may differ: paths of the directory, and the order of declarations."""
    steps = sorted(model.steps, key=lambda each: each.name)
    return replace(model, steps=tuple(steps))


def test_both_forms_give_the_same_model(tmp_path: Path) -> None:
    in_yaml = loaded(tmp_path, "pipeline.yaml", YAML)
    (tmp_path / "pipeline.yaml").unlink()
    assert without_text(in_yaml) == without_text(loaded(tmp_path, "pipeline.py", PYTHON))
    assert [each.name for each in in_yaml.steps] == ["from_file", "named", "counted"]
    assert in_yaml.checkpoints == str(tmp_path / "cp")
    line = dedent(YAML).lstrip().splitlines().index("  counted:") + 1
    assert str(in_yaml.steps[2].declared_at) == f"{tmp_path / 'pipeline.yaml'}:{line}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "pipeline.yaml:1: it is empty"),
        ("name: [", "pipeline.yaml:1: it is not YAML"),
        ("- a", "pipeline.yaml:1: it should have fields"),
        ("sources: {}", "pipeline.yaml:1: the pipeline needs a name"),
        ("name: a\nname: b", "pipeline.yaml:2: name is there twice"),
        ("name: a\nsorces: {}", "pipeline.yaml:2: sorces: there is no such field; did you mean sources?"),
        (
            "name: a\ndelivery: twice",
            "pipeline.yaml:2: delivery: it is 'twice', and can be exactly-once, at-least-once",
        ),
        ("name: a\ntrigger: often", "pipeline.yaml:2: trigger: it is 'often', and can be continuous, once or"),
        (
            "name: a\nsources:\n  o: {topik: x}",
            "pipeline.yaml:3: sources.o: topik: there is no such field; did you mean topic",
        ),
        (
            "name: a\nsources:\n  o:\n    topic: x\n    start: x",
            "5: start: there is no such field of sources.o; did you mean st",
        ),
        ("name: a\nsources:\n  o: {topic: x, delta: y}", "pipeline.yaml:3: sources.o: it needs exactly one of topic, "),
        (
            "name: a\nsources:\n  o: {topic: x, value: jsn}",
            "3: sources.o.value: there is no format jsn; did you mean json",
        ),
        (
            "name: a\nsources:\n  o: {topic: x, records_per_batch_max: few}",
            "records_per_batch_max: it should be a whole",
        ),
        (
            "name: a\nsources:\n  o: {topic: x}\nsteps:\n  s: {inputs: o}",
            "5: steps.s: it needs exactly one of sql, sql_file",
        ),
        (
            "name: a\nsources:\n  o: {topic: x}\nsteps:\n  s: {inputs: o, function: 'no_such:f'}",
            "5: steps.s.function: no_such:f cannot be imported: ModuleNotFoundError",
        ),
        (
            "name: a\nsources:\n  o: {topic: x}\nsteps:\n  s:\n    sql: from o\n    expect: {p: {otherwise: drop}}",
            "pipeline.yaml:7: steps.s.expect.p: it needs a condition",
        ),
        ("name: a\nsources:\n  o: {topic: x}\nsinks:\n  s: {topic: y}", "5: sinks.s: it needs an input"),
        (
            "name: a\nsources:\n  o: {topic: x}\ntests:\n  t: {expected: {o: 5}}",
            "5: tests.t.expected.o: it should be a list",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        loaded(tmp_path, "pipeline.yaml", text)
    assert message in str(caught.value)


def test_the_json_schema_accepts_what_is_read_and_nothing_else() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    # An editor sees times as text.
    document = yaml.load(dedent(YAML), yaml.BaseLoader)
    for path in (["trigger", "interval_s"], ["sinks", "lake", "compact_every_s"]):
        _set(document, path, 1.5)
    for path in (["sources", "orders", "records_per_batch_max"], ["sinks", "screen", "console"]):
        _set(document, path, 5)
    validator.validate(document)
    for path in (["sorces"], ["sources", "orders", "topik"], ["steps", "counted", "expects"], ["sinks", "out", "keey"]):
        changed = yaml.load(dedent(YAML), yaml.BaseLoader)
        _set(changed, path, "x")
        assert not validator.is_valid(changed), path


def _set(document: object, path: list[str], value: object) -> None:
    for name in path[:-1]:
        document = document[name]  # type: ignore[index]
    document[path[-1]] = value  # type: ignore[index]


def parameters(function: object) -> set[str]:
    return {*inspect.signature(function).parameters} - {"self"}  # type: ignore[arg-type]


def test_the_table_of_fields_has_the_parameters_of_the_python_form() -> None:
    assert parameters(Pipeline.__init__) == {each.name for each in fields.PIPELINE}
    assert parameters(Pipeline.step) | parameters(Pipeline.sql) - {"name"} >= {
        each.name for each in fields.STEP if each.name != "function"
    }
    for each in fields.FORMATS:
        assert parameters(each.python) == set(each.field_names), each.name
    by_name: dict[str, set[str]] = {}
    for each in (*fields.SOURCES, *fields.SINKS):
        by_name.setdefault(each.name, set()).update(each.field_names)
    for each in (*fields.SOURCES, *fields.SINKS):
        assert parameters(each.python) == by_name[each.name], each.name
