"""Steps applied to DataFrames, and what their expectations do to the rows."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.errors import PipelineError, Place
from flowstone.pipeline.model import Action, Expectation, Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# An array with the names of the expectations that a row does not meet, in rows that become dead letters.
UNMET = "_unmet"


@dataclass(frozen=True)
class StepRows:
    """The rows that a step returns, before (`given`, `all_rows`) and after (`rows`) its expectations."""

    step: Step
    given: DataFrame
    rows: DataFrame
    all_rows: DataFrame | None  # with a column of `unmet_columns` for each expectation; None: there is none
    diverted: DataFrame | None  # with UNMET; None: no expectation diverts


def apply_step(spark: SparkSession, step: Step, frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of a step for the rows of its inputs. Raises PipelineError if Spark cannot analyse the step."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import DataFrame

    inputs: dict[str, Any] = {name: frames[name] for name in step.inputs}
    try:
        if step.function is None:
            result = spark.sql(step.text, **inputs) if "{" in step.text else _sql(spark, step.text, inputs)
        else:
            result = step.function(*inputs.values())
    except (AnalysisException, ParseException) as error:
        raise PipelineError(f"step {step.name}: {_first_lines(error)}", step.declared_at) from error
    except Exception as error:
        if step.function is None:
            raise
        place = _place_in(step, error)
        raise PipelineError(f"step {step.name}: {type(error).__name__}: {_first_lines(error)}", place) from error
    if not isinstance(result, DataFrame):
        raise PipelineError(
            f"step {step.name}: the function returned {type(result).__name__} instead of a DataFrame", step.declared_at
        )
    return result


def _place_in(step: Step, error: Exception) -> Place | None:
    """Return the line of the step's file in which its function failed."""
    place = step.declared_at
    frames = traceback.extract_tb(error.__traceback__)
    lines = [each.lineno for each in frames if place is not None and each.filename == place.file]
    return Place(place.file, lines[-1] or place.line) if place is not None and lines else place


def _sql(spark: SparkSession, text: str, inputs: Mapping[str, DataFrame]) -> DataFrame:
    for name, frame in inputs.items():
        frame.createOrReplaceTempView(name)
    try:
        return spark.sql(text)
    finally:
        for name in inputs:
            spark.catalog.dropTempView(name)


def check_rows(step: Step, rows: DataFrame) -> StepRows:
    """Return the rows of a step, sorted by its expectations."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import Column
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if not step.expectations:
        return StepRows(step, rows, rows, None, None)
    flags = unmet_columns(step)
    try:
        unmet = {flag: ~_is_met(each) for flag, each in zip(flags, step.expectations, strict=True)}
        marked = rows.withColumns(unmet)
        marked.schema  # noqa: B018 - has Spark analyse the conditions
    except (AnalysisException, ParseException) as error:
        place = step.expectations[0].declared_at or step.declared_at
        raise PipelineError(f"an expectation of step {step.name}: {_first_lines(error)}", place) from error
    # Not the conditions again: one that is random must have one result for a row.
    leaving = _flags_of(step, Action.DROP, Action.DIVERT)
    kept = marked.where(~reduce(Column.__or__, map(F.col, leaving))) if leaving else marked
    diverting, diverted = _flags_of(step, Action.DIVERT), None
    if diverting:
        names = [F.when(F.col(flag), F.lit(each.name)) for flag, each in zip(flags, step.expectations, strict=True)]
        found = marked.where(reduce(Column.__or__, map(F.col, diverting)))
        diverted = found.withColumn(UNMET, F.array_compact(F.array(*names))).drop(*flags)
    return StepRows(step, rows, kept.drop(*flags), marked, diverted)


def unmet_columns(step: Step) -> list[str]:
    """Return the names of the columns that tell whether a row does not meet each expectation."""
    return [f"{UNMET}_{index}" for index in range(len(step.expectations))]


def _flags_of(step: Step, *actions: Action) -> list[str]:
    return [flag for flag, each in zip(unmet_columns(step), step.expectations, strict=True) if each.action in actions]


def enforce(step: Step, rows: DataFrame) -> DataFrame:
    """Return the rows that meet the expectations, for a stream: nothing is counted, and FAIL fails the query."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    for each in step.expectations:
        if each.action in (Action.DROP, Action.DIVERT):
            rows = rows.where(_is_met(each))
        elif each.action == Action.FAIL:
            message = F.raise_error(F.lit(unmet_message(step, each)))
            rows = rows.where(F.when(_is_met(each), F.lit(True)).otherwise(message.cast("boolean")))
    return rows


def unmet_message(step: Step, expectation: Expectation) -> str:
    return f"step {step.name}: rows do not meet the expectation {expectation.name} ({expectation.condition})"


def _is_met(expectation: Expectation) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return F.coalesce(F.expr(expectation.condition), F.lit(False))


def _first_lines(error: Exception) -> str:
    """Return Spark's message without the plan that follows it."""
    message = str(error).partition("\n\nJVM stacktrace")[0].partition(";\n'")[0]
    return message.partition(";\n")[0].strip()
