"""Upserts: the last row per key of a micro-batch, and the files from which the driver merges these rows into a table.

Of rows with the same keys the last by ORDER counts; without such a column it is the last in Spark's order of the rows.
Rows for which the condition `delete_when` is true delete what has their keys. Spark finds the last rows and its tasks
write them to files below STAGING. The driver reads these as a stream while it merges, and deletes them.

NULL in a key is an error, because no row would ever be found by it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.tables import files
from flowstone.pipeline.tables.batches import ORDER
from flowstone.pipeline.tables.storage import Location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from flowstone.pipeline.model import TableSink

# Below the table's directory. Names with an underscore are skipped by readers and by Delta's vacuum.
STAGING = "_staging"
STAGED_AGE_MAX_S = 86_400.0
# Tells rows that delete from others.
DELETED = "_deleted"
_RANK = "_rank"
# The driver holds the rows of a merge in memory, about 300 bytes each beside their own size.
ROWS_MAX = 5_000_000
BYTES_MAX = 1 << 30  # compressed


@dataclass(frozen=True)
class Changes:
    """The rows of one micro-batch, one for each value of the keys, with DELETED as their last column."""

    where: Location
    files: Sequence[files.DataFile]
    columns: Sequence[str]  # without DELETED

    @property
    def row_count(self) -> int:
        return sum(each.rows for each in self.files)

    def read(self) -> pa.RecordBatchReader:
        """Return the rows as a stream from the beginning. There must be files."""
        from pyarrow import dataset

        system, base = self.where.open()
        paths = [f"{base}/{each.path}" for each in self.files]
        return dataset.dataset(paths, format="parquet", filesystem=system).scanner().to_reader()

    def paths(self) -> list[str]:
        return [f"{self.where.uri}/{each.path}" for each in self.files]


def with_deletions(rows: DataFrame, target: TableSink) -> DataFrame:
    """Return the rows with DELETED. Raises PipelineError if `delete_when` is no condition on their columns."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    condition = F.expr(target.delete_when) if target.delete_when else F.lit(False)
    try:
        return rows.withColumn(DELETED, F.coalesce(condition.cast("boolean"), F.lit(False)))
    except (AnalysisException, ParseException) as error:
        raise PipelineError(
            f"{target.path}: delete_when is {target.delete_when!r}, which is no condition on the rows: {error}"
        ) from error


def check_condition(schema: StructType, target: TableSink) -> None:
    """Raise PipelineError if `delete_when` is no condition on the columns; it is Spark that knows."""
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is not None:
        with_deletions(spark.createDataFrame([], schema), target)


def last_rows(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the last row of each value of the keys, without ORDER."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if ORDER not in rows.columns:
        rows = rows.withColumn(ORDER, F.monotonically_increasing_id())
    latest = Window.partitionBy(*[F.col(f"`{key}`") for key in keys]).orderBy(F.col(ORDER).desc())
    return rows.withColumn(_RANK, F.row_number().over(latest)).where(f"{_RANK} = 1").drop(_RANK, ORDER)


@contextmanager
def staged(rows: DataFrame, target: TableSink, where: Location) -> Iterator[Changes]:
    """Write the rows to files for a merge; the files are deleted at the end, also after an error."""
    here = Location(f"{where.uri}/{STAGING}/{uuid.uuid4().hex}")
    try:
        written = files.write_files(rows, here)
        files.check_seen(written, here)
        changes = Changes(here, written, [each for each in rows.columns if each != DELETED])
        _check_size(changes, target)
        _check_keys(changes, target)
        yield changes
    finally:
        delete_directory(here)


def _check_size(changes: Changes, target: TableSink) -> None:
    size = sum(each.size for each in changes.files)
    if changes.row_count > ROWS_MAX or size > BYTES_MAX:
        raise PipelineError(
            f"{target.path}: a micro-batch changes {changes.row_count} keys ({size >> 20} MiB), and a merge, which "
            f"the driver does in memory, takes {ROWS_MAX} keys and {BYTES_MAX >> 20} MiB: set "
            "maxOffsetsPerTrigger (in YAML: records_per_batch_max) of the source so that micro-batches are smaller"
        )


def _check_keys(changes: Changes, target: TableSink) -> None:
    nulls: Counter[str] = Counter()
    for each in changes.files:
        nulls.update(json.loads(each.statistics)["nullCount"])
    without = {key: nulls[key] for key in target.keys if nulls[key]}
    if without:
        found = ", ".join(f"{key} in {count} rows" for key, count in without.items())
        raise PipelineError(
            f"{target.path}: a key is NULL: {found}. Drop or divert such rows with an expectation, "
            f'expect("keyed", "{next(iter(without))} IS NOT NULL", otherwise="divert")'
        )


def delete_directory(where: Location) -> None:
    system, path = where.open()
    with suppress(OSError):
        system.delete_dir(path)


def delete_old(where: Location) -> int:
    """Delete what writers that were killed left below STAGING; return how many directories it was."""
    from pyarrow import fs

    system, base = where.open()
    oldest = datetime.fromtimestamp(time.time() - STAGED_AGE_MAX_S, UTC)
    found = system.get_file_info(fs.FileSelector(f"{base}/{STAGING}", allow_not_found=True))
    old = [each for each in found if each.mtime is not None and each.mtime < oldest]
    for each in old:
        with suppress(OSError):
            system.delete_dir(each.path)
    return len(old)
