"""Writing the rows of a micro-batch from the driver's own process: the batch sink without Spark's processes around it.

For each `df.write.save()` to a data source in Python, Spark starts three Python processes: one that looks at the
source, one that makes the writer and one that commits, together about a third of a second. A driver that is a Python
program needs none of them. It makes the writer itself, has the tasks run it as a function on Arrow batches, and commits
what they report. Options, columns, checks and delivery are those of the sink, whose writers are used as they are.

A task that fails may be run again by Spark, as with the sink: the exactly-once writer refuses a second attempt. Spark
takes one result of each task, so the reports are those of the attempts that count.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_flowstone.connections import own_cluster
from pyspark_flowstone.exactly_once_sink import batch_writer
from pyspark_flowstone.reporting import QueryError
from pyspark_flowstone.sink import RowWriter
from pyspark_flowstone.sink_options import parse_sink_options
from pyspark_flowstone.versions import map_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

REPORT = "report"


@dataclass(frozen=True)
class _Task:
    """A function that Spark runs in each task: it writes the task's rows and returns the writer's report as a row."""

    writer: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        report = pickle.dumps(pickle.loads(self.writer).write(batches))
        yield pa.RecordBatch.from_pydict({REPORT: pa.array([report], pa.binary())})


def write(rows: DataFrame, given: Mapping[str, str]) -> None:
    """Write the rows as `rows.write.format("flowstone").options(**given).mode("append").save()` does.

    Raises OptionError, or a QueryError or Spark's error of a task after an abort of everything.
    """
    with own_cluster(parse_sink_options(given).bootstrap):
        writer = batch_writer(given, rows.schema, overwrite=False)
        assert isinstance(writer, RowWriter)
        try:
            task = _Task(pickle.dumps(writer))  # begins a transaction; Spark would wrap its errors in one of pickling
            found = map_arrow(rows, task, f"{REPORT} binary").collect()
        except BaseException:
            with suppress(QueryError):  # the next run aborts it, or its timeout does
                writer.abort([])
            raise
        writer.commit([pickle.loads(bytes(each[REPORT])) for each in found])
