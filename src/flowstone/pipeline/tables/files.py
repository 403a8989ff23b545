"""Data files: Spark's tasks write Parquet with Arrow, and the driver learns what they wrote.

The rows go from Spark to a task's Python as Arrow record batches and from there into Arrow's Parquet writer: no Python
runs for a row, and nothing but the names of the files reaches the driver. Each attempt of a task writes to files with
names of their own, and Spark returns the result of one attempt per task, so that files of others stay without mention.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.tables.storage import Location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
ESCAPED_BYTES = re.compile("(?:%[89A-F][0-9A-F])+")
ROW_GROUP_ROWS_MIN = 128 * 1024
ROW_GROUP_ROWS_MAX = 1024 * 1024
# Files that a task may have open; those beyond are closed, and a further one begun when rows come for them.
OPEN_FILES_MAX = 200
# Values of the partition columns in one record batch of a task.
PARTITIONS_MAX = 10_000
# Files of which the names and statistics are returned to the driver.
FILES_MAX = 100_000
STATISTICS_TEXT_MAX = 64
REPORT = "path string, rows bigint, size bigint, statistics string"


@dataclass(frozen=True)
class DataFile:
    """One file that a task wrote. `path` is below the table's directory, `statistics` JSON as Delta has it."""

    path: str
    rows: int
    size: int
    statistics: str

    def partition(self) -> dict[str, str | None]:
        """Return the values of the partition columns, which the path has."""
        pairs = (part.partition("=") for part in self.path.split("/")[:-1] if "=" in part)
        return {name: None if value == NULL_PARTITION else unquote(value) for name, _is, value in pairs}


def write_files(
    rows: DataFrame, directory: Location, partition_by: Sequence[str] = (), suffix: str = ""
) -> list[DataFile]:
    """Write the rows to new files below the directory and return them; empty tasks write none.

    `partition_by` names columns of text, whose values become directories and are not in the files.
    """
    from pyspark_flowstone.versions import map_arrow

    reports = map_arrow(
        rows, _FileWriter(directory, tuple(partition_by), suffix, _arrow_schema(rows)), REPORT
    ).collect()
    if len(reports) > FILES_MAX:
        raise PipelineError(
            f"one micro-batch makes {len(reports)} files, and {FILES_MAX} are allowed: partition the table by a column "
            "with fewer values, or repartition the rows by it"
        )
    return [DataFile(*each) for each in reports]


def _arrow_schema(rows: DataFrame) -> pa.Schema:
    """Return the schema of the files: timestamps in UTC whatever the session's time zone is, everything nullable."""
    from flowstone.pipeline.tables.columns import nullable
    from pyspark_flowstone.versions import arrow_schema

    return arrow_schema(nullable(rows.schema))


@dataclass(frozen=True)
class _FileWriter:
    """The function that a task runs: it writes its rows to files and reports the files."""

    directory: Location
    partition_by: tuple[str, ...]
    suffix: str
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        full = (batch for batch in batches if batch.num_rows)
        first = next(full, None)
        if first is None:
            return
        reports = self._write(pa.RecordBatchReader.from_batches(self.schema, self._cast(first, full)))
        columns = [list(values) for values in zip(*reports, strict=True)]
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, kind) for values, kind in zip(columns, _report_types(), strict=True)],
            ["path", "rows", "size", "statistics"],
        )

    def _cast(self, first: pa.RecordBatch, others: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield first.cast(self.schema)
        for each in others:
            yield each.cast(self.schema)

    def _write(self, reader: pa.RecordBatchReader) -> list[tuple[str, int, int, str]]:
        written = write_dataset(reader, self.directory, self.partition_by, self.suffix)
        return [(each.path, each.rows, each.size, each.statistics) for each in written]


def write_dataset(
    reader: pa.RecordBatchReader,
    directory: Location,
    partition_by: Sequence[str] = (),
    suffix: str = "",
    file_rows_max: int = 0,
) -> list[DataFile]:
    """Write record batches to new files below the directory, in this process; `file_rows_max` 0 is without limit."""
    import pyarrow as pa
    from pyarrow import dataset

    system, base = directory.open()
    written: list[DataFile] = []
    moves: list[tuple[str, str]] = []

    def visit(file: Any) -> None:
        path = file.path.removeprefix(base).lstrip("/")
        if readable(path) != path:
            moves.append((path, readable(path)))
        written.append(DataFile(readable(path), file.metadata.num_rows, file.size, statistics_of(file.metadata)))

    kind = dataset.ParquetFileFormat()
    keys = pa.schema([reader.schema.field(name) for name in partition_by])
    dataset.write_dataset(
        reader,
        base,
        format=kind,
        file_options=kind.make_write_options(compression="snappy"),
        basename_template=f"part-{uuid.uuid4()}-{{i}}.parquet{suffix}",
        partitioning=dataset.partitioning(keys, flavor="hive") if partition_by else None,
        filesystem=system,
        file_visitor=visit,
        # The names of an attempt are its own; other files of the directory are none of its business.
        existing_data_behavior="overwrite_or_ignore",
        min_rows_per_group=ROW_GROUP_ROWS_MIN,
        max_rows_per_group=ROW_GROUP_ROWS_MAX,
        max_rows_per_file=file_rows_max,
        max_open_files=OPEN_FILES_MAX,
        max_partitions=PARTITIONS_MAX,
        use_threads=False,
    )
    for path, name in moves:
        system.create_dir(f"{base}/{name.rpartition('/')[0]}", recursive=True)
        system.move(f"{base}/{path}", f"{base}/{name}")
    return written


def readable(path: str) -> str:
    """Return the path with letters beyond ASCII as they are, where Arrow escapes their bytes.

    Spark, as Hive, takes each escape for one letter.
    """
    return ESCAPED_BYTES.sub(lambda found: bytes.fromhex(found[0].replace("%", "")).decode(), path)


def _report_types() -> tuple[pa.DataType, ...]:
    import pyarrow as pa

    return pa.string(), pa.int64(), pa.int64(), pa.string()


def statistics_of(metadata: Any) -> str:
    """Return the statistics of a Parquet file as Delta's JSON: rows, nulls, least and greatest values.

    Readers skip files by them, so they are left out where they would be inexact: for floating-point numbers, whose NaN
    Parquet leaves out, for decimals, which JSON may round, and for long text.
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(metadata.num_columns):
        groups = [metadata.row_group(number).column(index) for number in range(metadata.num_row_groups)]
        path = groups[0].path_in_schema if groups else ""
        # A nested column has a path of several parts; a name with a dot is left out with them.
        if "." in path or not groups or not all(each.is_stats_set for each in groups):
            continue
        found = [each.statistics for each in groups]
        if all(each.has_null_count for each in found):
            nulls[path] = sum(each.null_count for each in found)
        low, high = _bounds([each for each in found if each.has_min_max])
        if low is not None and high is not None and all(each.has_min_max or not each.num_values for each in found):
            least[path], greatest[path] = low, high
    document = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(document, separators=(",", ":"))


def _bounds(groups: Sequence[Any]) -> tuple[Any, Any]:
    if not groups:
        return None, None
    return _as_json(min(each.min for each in groups)), _as_json(max(each.max for each in groups))


def _as_json(value: Any) -> Any:
    """Return a least or greatest value as it is in Delta's statistics, or None if it would not be exact there."""
    import datetime

    if isinstance(value, str):
        return value if len(value) <= STATISTICS_TEXT_MAX else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{text}Z" if value.tzinfo else text
    if isinstance(value, datetime.date):
        return value.isoformat()
    return None


def check_seen(files: Sequence[DataFile], directory: Location) -> None:
    """Raise PipelineError if the driver does not see files that the tasks wrote."""
    from pyarrow import fs

    if not files:
        return
    system, base = directory.open()
    for found in system.get_file_info([f"{base}/{each.path}" for each in files]):
        if found.type != fs.FileType.File:
            raise PipelineError(
                f"{found.path} was written by a task, and the driver does not see it: a table has to be in a directory "
                "that all machines of the cluster share, or in an object store"
            )


def delete(files: Sequence[DataFile], directory: Location) -> None:
    """Delete files that no table refers to. A failure is ignored: the files are found by a later clean-up."""
    system, base = directory.open()
    for each in files:
        try:
            system.delete_file(f"{base}/{each.path}")
        except OSError:
            continue
