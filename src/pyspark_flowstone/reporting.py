"""Reporting of errors to the user of a Spark query, as one sentence instead of a traceback.

Spark runs a data source in separate Python processes and passes only the text of an exception to the driver:
`handle_worker_exception` of PySpark writes the traceback, and the JVM adds its own prefix. The JVM chooses the class
that the user catches: `AnalysisException` from `load()`, `save()` and the planning of a batch query,
`StreamingQueryException` from a streaming query, `PythonException` from a task.

`reported` therefore decorates every method that Spark calls. It raises an expected error (an invalid option, a missing
topic, a broker that does not answer, lost records) as `QueryError` and makes PySpark omit the traceback. Any other
exception is a bug in this package and keeps its traceback. `foreach_batch.direct` calls such methods in the driver's
own process, whose other errors must keep theirs too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from pyspark import SparkContext
from pyspark.errors import PySparkException

from flowstone.errors import FlowstoneError
from pyspark_flowstone.values import OptionError

# PySpark's own flag (set by spark.sql.execution.pyspark.udf.hideTraceback.enabled), read when an exception is
# written to the JVM. A Python process of Spark's that has written one ends, so nothing else in it is affected.
HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"

EXPECTED = (OptionError, FlowstoneError)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class QueryError(PySparkException):
    """An error whose message is meant for the user of a query.

    Without a traceback Python prints an exception as `module.Class: text`. The two names below turn that into
    `flowstone: text`. They also make instances impossible to pickle, which Spark does not attempt.
    """

    __module__ = "builtins"  # printed without its name
    __qualname__ = "flowstone"


def reported(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method that Spark calls, so that expected errors are raised as `QueryError`."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with _reporting():
            return method(*args, **kwargs)

    return call


def reported_items(items: Iterator[T]) -> Iterator[T]:
    """Yield the items; raise expected errors of their iterator as `QueryError`."""
    with _reporting():
        yield from items


@contextmanager
def _reporting() -> Iterator[None]:
    try:
        yield
    except EXPECTED as error:
        if SparkContext._active_spark_context is None:  # not the driver, which goes on
            os.environ[HIDE_TRACEBACK] = "1"
        raise QueryError(str(error)) from error
