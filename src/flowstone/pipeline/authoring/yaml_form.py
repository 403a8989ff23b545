"""The YAML form of a pipeline: `pipeline.yaml` with the same declarations as the Python form.

    name: shop
    sources:
      orders: {topic: orders, value: {format: json, schema: "id string, customer string, total double"}}
    steps:
      checked:
        sql: SELECT * FROM orders WHERE customer IS NOT NULL
        expect: {positive: {condition: total > 0, otherwise: divert}}
    sinks:
      orders-checked: {input: checked, topic: orders-checked, key: customer}

`fields` has the table of all fields. Every part is made by the function that the Python form calls.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flowstone.pipeline.authoring import fields, parts
from flowstone.pipeline.authoring.declarations import SqlStep
from flowstone.pipeline.authoring.fields import Declaration, Type
from flowstone.pipeline.authoring.validation import nearest
from flowstone.pipeline.authoring.yaml_nodes import Document, Value
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import (
    Action,
    Case,
    ConsoleSink,
    Delivery,
    Expectation,
    FileSource,
    Format,
    PipelineModel,
    Sink,
    Source,
    Step,
    Trigger,
    TriggerKind,
)

SECTIONS = ("sources", "steps", "sinks", "tests")
TRIGGERS = ("continuous", "once")


def read_yaml(file: Path) -> PipelineModel:
    """Return the model of a file. Raises PipelineError, with the line, for the first mistake."""
    return _Reader(file).model()


class _Reader:
    def __init__(self, file: Path) -> None:
        self._directory, self._document = file.parent, Document(file)
        names = [each.name for each in fields.PIPELINE]
        self._top = self._document.fields(self._document.root, [*names, *SECTIONS])

    def model(self) -> PipelineModel:
        document, top = self._document, self._top
        values = {
            each.name: document.read(each, top[each.name])
            for each in fields.PIPELINE
            if each.name in top and each.type is not Type.TRIGGER
        }
        if "name" not in values:
            raise document.root.error("the pipeline needs a name")
        sources = tuple(self._source(name, each) for name, each in self._section("sources"))
        nodes = {name for section in ("sources", "steps") for name, _ in self._section(section)}
        return PipelineModel(
            directory=self._directory,
            sources=sources,
            steps=tuple(self._step(name, each, nodes) for name, each in self._section("steps")),
            sinks=tuple(self._sink(name, each) for name, each in self._section("sinks")),
            trigger=self._trigger(top["trigger"]) if "trigger" in top else Trigger(),
            cases=tuple(self._case(name, each) for name, each in self._section("tests")),
            **{**values, "delivery": Delivery(values.get("delivery", Delivery.EXACTLY_ONCE))},
        )

    def _section(self, name: str) -> Iterator[tuple[str, Value]]:
        if name in self._top:
            yield from self._document.entries(self._top[name]).items()

    def _trigger(self, value: Value) -> Trigger:
        if self._document.is_scalar(value):
            text = self._document.text(value)
            if text not in TRIGGERS:
                raise value.error(f"it is {text!r}, and can be {', '.join(TRIGGERS)} or {{interval_s: 10}}")
            return Trigger(TriggerKind(text))
        entries = self._document.fields(value, ["interval_s"])
        if not entries:
            raise value.error("it needs interval_s, a number of seconds")
        return parts.interval(self._document.number(entries["interval_s"]))

    def _source(self, name: str, value: Value) -> Source:
        made = self._declared(value, fields.SOURCES, ())
        try:
            return Source(name, made if isinstance(made, FileSource) else made.source(), value.place)
        except PipelineError as error:
            raise value.error(str(error)) from error

    def _sink(self, name: str, value: Value) -> Sink:
        made = self._declared(value, fields.SINKS, (fields.SINK_INPUT.name,))
        entries = self._document.entries(value)
        if fields.SINK_INPUT.name not in entries:
            raise value.error("it needs an input, the source or step whose rows it writes")
        node = self._document.text(entries[fields.SINK_INPUT.name])
        try:
            return Sink(name, node, made if isinstance(made, ConsoleSink) else made.sink(), value.place)
        except PipelineError as error:
            raise value.error(str(error)) from error

    def _declared(self, value: Value, kinds: Sequence[Declaration], more: tuple[str, ...]) -> Any:
        """Return what the Python function of the value's kind makes of its fields."""
        entries = self._document.entries(value)
        declaration = self._kind(value, entries, kinds, more)
        self._document.fields(value, [*declaration.field_names, *more])
        return self._made(declaration, entries, value)

    def _kind(
        self, value: Value, entries: dict[str, Value], kinds: Sequence[Declaration], more: tuple[str, ...]
    ) -> Declaration:
        found = [each for each in kinds if each.name in entries]
        if not found and "pattern" in entries and fields.TOPIC_SOURCE in kinds:
            return fields.TOPIC_SOURCE
        if len(found) != 1:
            names = [each.name for each in kinds]
            known = {*more, *(name for each in kinds for name in each.field_names)}
            for name, each in entries.items():
                if name not in known:
                    raise each._replace(what=value.what).error(f"{name}: there is no such field{nearest(name, names)}")
            raise value.error(f"it needs exactly one of {', '.join(names)}")
        return found[0]

    def _made(self, declaration: Declaration, entries: dict[str, Value], value: Value) -> Any:
        main, *others = declaration.fields
        arguments = []
        if main.name in entries:
            read = self._document.read(main, entries[main.name])
            arguments = list(read) if isinstance(read, tuple) else [read]
        options: dict[str, Any] = {}
        for each in others:
            if each.name not in entries:
                continue
            if each.type is Type.FORMAT:
                options[each.name] = self._format(entries[each.name])
            elif each.name == "options":
                options |= self._document.read(each, entries[each.name])
            else:
                options[each.name] = self._document.read(each, entries[each.name])
        try:
            return declaration.python(*arguments, **options)
        except TypeError as error:  # an option that is named like a field
            raise value.error(str(error)) from error

    def _format(self, value: Value) -> Format:
        kinds = {each.name: each for each in fields.FORMATS}
        entries = {} if self._document.is_scalar(value) else self._document.entries(value)
        named = value if self._document.is_scalar(value) else entries.get("format")
        if named is None:
            raise value.error(f"it needs a format: {', '.join(kinds)}")
        name = self._document.text(named)
        if name not in kinds:
            raise named.error(f"there is no format {name}{nearest(name, kinds)}")
        declaration = kinds[name]
        if entries:
            self._document.fields(value, ["format", *declaration.field_names])
        read = {
            each.name: self._document.read(each, entries[each.name])
            for each in declaration.fields
            if each.name in entries
        }
        options = read.pop("options", {})
        made = declaration.python(**read, **options)
        assert isinstance(made, Format)
        return made

    def _step(self, name: str, value: Value, nodes: set[str]) -> Step:
        entries = self._document.fields(value, [each.name for each in fields.STEP])
        read = {
            each.name: self._document.read(each, entries[each.name])
            for each in fields.STEP
            if each.name in entries and each.type is not Type.EXPECTATIONS
        }
        bodies = [each for each in ("sql", "sql_file", "function") if each in read]
        if len(bodies) != 1:
            raise value.error("it needs exactly one of sql, sql_file and function")
        expectations = tuple(self._expectations(entries["expect"])) if "expect" in entries else ()
        inputs = read.get("inputs", ())
        if "function" in read:
            return self._function(name, read["function"], inputs, expectations, entries["function"], value)
        sql, sql_file = read.get("sql", ""), read.get("sql_file", "")
        return SqlStep(name, sql, sql_file, inputs, expectations, value.place).step(self._directory, nodes)

    def _function(
        self,
        name: str,
        path: str,
        inputs: tuple[str, ...],
        expectations: tuple[Expectation, ...],
        value: Value,
        step: Value,
    ) -> Step:
        module_name, colon, function_name = path.partition(":")
        if not colon:
            raise value.error(f"{path!r} is not module:function")
        try:
            function = getattr(importlib.import_module(module_name), function_name)
        except Exception as error:  # whatever the module raises
            raise value.error(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
        if not inspect.isfunction(function):
            raise value.error(f"{path} is not a function")
        named = inputs or tuple(inspect.signature(function).parameters)
        return Step(name, named, inspect.getsource(function), function, expectations, step.place)

    def _expectations(self, value: Value) -> Iterator[Expectation]:
        for name, each in self._document.entries(value).items():
            if self._document.is_scalar(each):
                yield Expectation(name, self._document.text(each), Action.KEEP, each.place)
                continue
            entries = self._document.fields(each, [field.name for field in fields.EXPECTATION])
            read = {
                field.name: self._document.read(field, entries[field.name])
                for field in fields.EXPECTATION
                if field.name in entries
            }
            if "condition" not in read:
                raise each.error("it needs a condition")
            yield Expectation(name, read["condition"], Action(read.get("otherwise", Action.KEEP)), each.place)

    def _case(self, name: str, value: Value) -> Case:
        entries = self._document.fields(value, [each.name for each in fields.TEST])
        rows = {each: self._document.rows(entries[each]) for each in entries}
        return Case(name, rows.get("given", {}), rows.get("expected", {}), value.place)
