"""The Python form of a pipeline: declarations that connect plain functions from DataFrames to DataFrames.

    pipeline = Pipeline("shop", dead_letters="shop-letters")
    pipeline.source("orders", topic("orders", value=json("id string, customer string, total double")))

    @pipeline.step(expect=[expect("positive", "total > 0", otherwise="divert")])
    def checked(orders: DataFrame) -> DataFrame:
        return orders.where("customer IS NOT NULL")

    pipeline.sink("orders-checked", checked, topic("orders-checked", key="customer"))

A step's parameters name its inputs. The decorator returns the function itself, so that it can be imported and tested.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from flowstone.pipeline.errors import PipelineError, Place
from flowstone.pipeline.model import (
    Action,
    Case,
    ConsoleSink,
    Delivery,
    Expectation,
    FileSource,
    Format,
    FormatKind,
    PipelineModel,
    Row,
    Sink,
    Source,
    Step,
    TableSink,
    TableSource,
    TopicSink,
    TopicSource,
    Trigger,
    TriggerKind,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

StepFunction = Callable[..., "DataFrame"]
F = TypeVar("F", bound=StepFunction)


def raw() -> Format:
    return Format(FormatKind.RAW)


def json(schema: str = "") -> Format:
    return Format(FormatKind.JSON, schema)


@dataclass(frozen=True)
class Topic:
    """A topic as a source or as a sink."""

    names: tuple[str, ...]
    value: Format
    key: str = ""
    starting: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def source(self) -> TopicSource:
        if self.key:
            raise PipelineError("key names a column of a sink; a source has the record's key in the column _record.key")
        return TopicSource(self.names, self.value, starting=self.starting or "earliest", options=self.options)

    def sink(self) -> TopicSink:
        if self.starting:
            raise PipelineError("starting is for a topic that is read, not for one that is written")
        return TopicSink(self.names[0], self.value, self.key, self.options)


@dataclass(frozen=True)
class Table:
    """A table as a source or as a sink."""

    kind: str
    path: str
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    compact_every_s: float = 0.0
    delete_when: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def source(self) -> TableSource:
        if self.keys or self.partition_by or self.compact_every_s or self.delete_when:
            raise PipelineError(f"{self.path}: a table that is read has a path and options only")
        return TableSource(self.kind, self.path, self.options)

    def sink(self) -> TableSink:
        columns = (self.keys, self.partition_by)
        return TableSink(self.kind, self.path, *columns, self.compact_every_s, self.delete_when, self.options)


def topic(*names: str, value: Format | None = None, key: str = "", starting: str = "", **options: str) -> Topic:
    return Topic(names, value or json(), key, starting, options)


def delta(
    path: str,
    *,
    keys: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    compact_every_s: float = 0.0,
    delete_when: str = "",
    **options: str,
) -> Table:
    """Declare a Delta table; `options` are those of its storage and, for a source, `version`."""
    return Table("delta", path, tuple(keys), tuple(partition_by), compact_every_s, delete_when, options)


def iceberg(
    name: str,
    *,
    keys: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    compact_every_s: float = 0.0,
    delete_when: str = "",
    **options: str,
) -> Table:
    """Declare an Iceberg table, `namespace.table`; `options` are those of its catalog."""
    return Table("iceberg", name, tuple(keys), tuple(partition_by), compact_every_s, delete_when, options)


def parquet(path: str, *, partition_by: Sequence[str] = (), **options: str) -> Table:
    """Declare a directory of Parquet files; a source's `options` are Spark's."""
    return Table("parquet", path, partition_by=tuple(partition_by), options=options)


def console(rows_max: int = 20) -> ConsoleSink:
    return ConsoleSink(rows_max)


def expect(name: str, condition: str, *, otherwise: str = "keep") -> Expectation:
    return Expectation(name, condition, Action(otherwise), _caller())


def interval(seconds: float) -> Trigger:
    return Trigger(TriggerKind.INTERVAL, seconds)


class Pipeline:
    def __init__(
        self,
        name: str,
        *,
        bootstrap: str = "127.0.0.1:9092",
        dead_letters: str = "",
        delivery: str = Delivery.EXACTLY_ONCE,
        trigger: Trigger | None = None,
        master: str = "",
        spark: Mapping[str, str] | None = None,
        checkpoints: str = "",
    ) -> None:
        self._name, self._bootstrap, self._dead_letters = name, bootstrap, dead_letters
        self._delivery, self._trigger, self._master = Delivery(delivery), trigger or Trigger(), master
        self._spark, self._checkpoints = dict(spark or {}), checkpoints
        self._sources: list[Source] = []
        self._steps: list[Step] = []
        self._sinks: list[Sink] = []
        self._cases: list[Case] = []

    def source(self, name: str, origin: Topic | Table | FileSource) -> None:
        read = origin if isinstance(origin, FileSource) else origin.source()
        self._sources.append(Source(name, read, _caller()))

    @overload
    def step(self, function: F) -> F: ...
    @overload
    def step(
        self, *, name: str = "", inputs: Sequence[str] = (), expect: Iterable[Expectation] = ()
    ) -> Callable[[F], F]: ...
    def step(
        self,
        function: Any = None,
        *,
        name: str = "",
        inputs: Sequence[str] = (),
        expect: Iterable[Expectation] = (),
    ) -> Any:
        """Declare the decorated function as a step; its name and parameters are the step's name and inputs."""

        def declare(declared: F) -> F:
            named = tuple(inputs) or tuple(inspect.signature(declared).parameters)
            step_name = name or declared.__name__
            text = inspect.getsource(declared)
            self._steps.append(Step(step_name, named, text, declared, tuple(expect), _place_of(declared)))
            return declared

        return declare if function is None else declare(function)

    def sink(self, name: str, input: str | StepFunction, target: Topic | Table | ConsoleSink) -> None:
        node = input if isinstance(input, str) else input.__name__
        written = target if isinstance(target, ConsoleSink) else target.sink()
        self._sinks.append(Sink(name, node, written, _caller()))

    def case(self, name: str, *, given: Mapping[str, Sequence[Row]], expected: Mapping[str, Sequence[Row]]) -> None:
        rows_in = {source: tuple(rows) for source, rows in given.items()}
        rows_out = {node: tuple(rows) for node, rows in expected.items()}
        self._cases.append(Case(name, rows_in, rows_out, _caller()))

    def model(self, directory: Path) -> PipelineModel:
        return PipelineModel(
            self._name,
            directory,
            tuple(self._sources),
            tuple(self._steps),
            tuple(self._sinks),
            self._bootstrap,
            self._dead_letters,
            self._delivery,
            self._trigger,
            self._master,
            self._spark,
            self._checkpoints,
            tuple(self._cases),
        )


def _caller() -> Place:
    """Return the place outside this module from which a declaration was made."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)


def _place_of(function: StepFunction) -> Place:
    return Place(inspect.getsourcefile(function) or "", inspect.getsourcelines(function)[1])
