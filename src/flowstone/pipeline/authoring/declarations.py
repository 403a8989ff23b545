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
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from flowstone.pipeline.authoring.parts import Table, Topic, caller, choice
from flowstone.pipeline.errors import PipelineError, Place
from flowstone.pipeline.model import (
    Case,
    ConsoleSink,
    Delivery,
    Expectation,
    FileSource,
    PipelineModel,
    Row,
    Sink,
    Source,
    Step,
    Trigger,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

StepFunction = Callable[..., "DataFrame"]
F = TypeVar("F", bound=StepFunction)

_TABLE_IN_SQL = re.compile(r"\b(?:from|join)\s+`?(\w+)`?", re.IGNORECASE)


@dataclass(frozen=True)
class SqlStep:
    """A step in SQL. Its inputs are the sources and steps after FROM and JOIN, unless they are named."""

    name: str
    sql: str
    sql_file: str
    inputs: tuple[str, ...]
    expectations: tuple[Expectation, ...]
    declared_at: Place | None

    def step(self, directory: Path, nodes: Iterable[str]) -> Step:
        """Return the step in a pipeline with these sources and steps. Raises PipelineError without a text."""
        if bool(self.sql.strip()) == bool(self.sql_file):
            raise PipelineError(f"step {self.name}: it needs either a text of SQL or a file", self.declared_at)
        text = self.sql if not self.sql_file else self._read(directory / self.sql_file)
        found = [each for each in _TABLE_IN_SQL.findall(text) if each in set(nodes) - {self.name}]
        inputs = self.inputs or tuple(dict.fromkeys(found))
        if not inputs:
            raise PipelineError(
                f"step {self.name}: its SQL reads no source or step of the pipeline; name its inputs", self.declared_at
            )
        return Step(self.name, inputs, text, None, self.expectations, self.declared_at)

    def _read(self, file: Path) -> str:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PipelineError(f"step {self.name}: {file} cannot be read: {error}", self.declared_at) from error


class Pipeline:
    """A pipeline under construction. `docs/pipeline-reference.md` describes each parameter."""

    def __init__(
        self,
        name: str,
        *,
        bootstrap: str = "127.0.0.1:9092",
        config: str = "",
        dead_letters: str = "",
        delivery: str = Delivery.EXACTLY_ONCE,
        trigger: Trigger | None = None,
        master: str = "",
        spark: Mapping[str, str] | None = None,
        checkpoints: str = "",
    ) -> None:
        self._name, self._bootstrap, self._dead_letters = name, bootstrap, dead_letters
        self._delivery, self._trigger, self._master = (
            choice(Delivery, delivery, "delivery"),
            trigger or Trigger(),
            master,
        )
        self._spark, self._checkpoints, self._config = dict(spark or {}), checkpoints, config
        self._sources: list[Source] = []
        self._steps: list[Step] = []
        self._sinks: list[Sink] = []
        self._cases: list[Case] = []
        self._sql_steps: list[SqlStep] = []
        self._step_names: dict[Any, str] = {}  # by function

    def source(self, name: str, origin: Topic | Table | FileSource) -> None:
        """Declare a source: a topic, a table for lookups, or files."""
        if not isinstance(origin, Topic | Table | FileSource):
            raise PipelineError(f"source {name}: {origin!r} is not topic(...), delta(...), files(...) or the like")
        read = origin if isinstance(origin, FileSource) else origin.source()
        self._sources.append(Source(name, read, caller()))

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
            self._step_names[declared] = step_name
            self._steps.append(Step(step_name, named, text, declared, tuple(expect), _place_of(declared)))
            return declared

        return declare if function is None else declare(function)

    def sql(
        self,
        name: str,
        sql: str = "",
        *,
        sql_file: str = "",
        inputs: Sequence[str] = (),
        expect: Iterable[Expectation] = (),
    ) -> str:
        """Declare a step in SQL, from a text or a file, and return its name. Its inputs are tables in it."""
        self._sql_steps.append(SqlStep(name, sql, sql_file, tuple(inputs), tuple(expect), caller()))
        return name

    def sink(self, name: str, input: str | StepFunction, target: Topic | Table | ConsoleSink) -> None:
        """Declare a sink: a topic, a table or the console, and the source or step that it writes."""
        if not isinstance(target, Topic | Table | ConsoleSink):
            raise PipelineError(f"sink {name}: {target!r} is not topic(...), delta(...), console() or the like")
        node = input if isinstance(input, str) else self._step_names.get(input, getattr(input, "__name__", "?"))
        written = target if isinstance(target, ConsoleSink) else target.sink()
        self._sinks.append(Sink(name, node, written, caller()))

    def case(self, name: str, *, given: Mapping[str, Sequence[Row]], expected: Mapping[str, Sequence[Row]]) -> None:
        """Declare a test: rows of sources, and the rows of nodes, or of `letters`, that come of them."""
        rows_in = {source: tuple(rows) for source, rows in given.items()}
        rows_out = {node: tuple(rows) for node, rows in expected.items()}
        self._cases.append(Case(name, rows_in, rows_out, caller()))

    def model(self, directory: Path) -> PipelineModel:
        """Return what was declared. Raises PipelineError if a file of SQL cannot be read."""
        names = {each.name for some in (self._sources, self._steps, self._sql_steps) for each in some}
        return PipelineModel(
            self._name,
            directory,
            tuple(self._sources),
            (*self._steps, *(each.step(directory, names) for each in self._sql_steps)),
            tuple(self._sinks),
            self._bootstrap,
            self._dead_letters,
            self._delivery,
            self._trigger,
            self._master,
            self._spark,
            self._checkpoints,
            tuple(self._cases),
            self._config,
        )


def _place_of(function: StepFunction) -> Place:
    return Place(inspect.getsourcefile(function) or "", inspect.getsourcelines(function)[1])
