"""Rows of a Parquet file as records, with pyarrow, which is an optional dependency.

A row becomes a JSON object, with values as `plain_value` has them.
"""

from __future__ import annotations

from typing import Any

from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import encode
from flowstone.cli.common.json_values import plain_value
from flowstone.cli.records.record_sources import Records, Shape

ROWS_PER_BATCH = 1000


class ParquetRows:
    """The rows of one file, read in batches. Raises CommandError if it cannot be read or pyarrow is missing."""

    def __init__(self, path: str) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise CommandError("Parquet files need pyarrow: run `pip install 'flowstone[arrow]'`") from None
        try:
            self._file = parquet.ParquetFile(path)
        except pyarrow.ArrowInvalid as error:
            raise CommandError(f"{path} is not a Parquet file: {error}") from None
        self._path, self._unreadable = path, pyarrow.ArrowException
        self.count: int = self._file.metadata.num_rows
        self.position = 0

    def read(self, shape: Shape) -> Records:
        try:
            for batch in self._file.iter_batches(ROWS_PER_BATCH):
                for row in _without_nanoseconds(batch).to_pylist():
                    self.position += 1
                    # Parquet's times without a zone are not local times: its own tools take them for UTC.
                    plain = {name: plain_value(value, assume_utc=True) for name, value in row.items()}
                    yield shape.record(plain, encode(plain).encode(), f"row {self.position} of {self._path}")
        except self._unreadable as error:
            raise CommandError(f"{self._path} cannot be read after row {self.position}: {error}") from None

    def close(self) -> None:
        self._file.close()


def _without_nanoseconds(batch: Any) -> Any:
    """Return the batch with times truncated to microseconds, the resolution of Python's own times."""
    import pyarrow

    fields = [
        field.with_type(pyarrow.timestamp("us", field.type.tz)) if field.type == _nanoseconds(field.type) else field
        for field in batch.schema
    ]
    return batch.cast(pyarrow.schema(fields), safe=False)


def _nanoseconds(kind: Any) -> Any:
    import pyarrow

    return pyarrow.timestamp("ns", kind.tz) if pyarrow.types.is_timestamp(kind) else None
