"""Directories of Parquet files, appended to exactly once.

Tasks write into a directory of their own below STAGING, whose name tools skip. To commit, the driver takes the
directory's lock, and replaces the state of its app_id in one rename: the micro-batch's number and the files that are to
be moved. Then it moves them to their names. A driver that finds files which were not moved moves them first, so that a
micro-batch is in the directory once and complete, at the latest when the next one is written.

Readers see the files of one micro-batch appear one after the other; those of Delta and Iceberg all at once. The lock
and the renames need a file system of this machine, or one that is mounted and has both.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.tables import columns, files
from flowstone.pipeline.tables.batches import REPEATED, MicroBatch, Written
from flowstone.pipeline.tables.storage import Location, location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from flowstone.pipeline.model import TableSink

STATE = "_flowstone"  # below the directory: the state of each app_id, the schema, the lock
STAGING = "_staging"
# A file that is staged does not end like a Parquet file, for tools that take all such below a directory.
STAGED = ".staged"
# Staged files of attempts that failed are deleted when they are this old: no micro-batch takes that long.
STAGED_AGE_MAX_S = 86_400.0


@dataclass(frozen=True)
class ParquetSink:
    """The directory of a sink. Its methods may be called by several processes at once."""

    target: TableSink
    root: Path

    @classmethod
    def of(cls, target: TableSink) -> ParquetSink:
        where = location(target.path)
        if not where.is_local:
            raise PipelineError(
                f"{target.path}: a Parquet sink needs a local or mounted directory, because files are moved into place "
                "by rename; Delta tables can be in object stores"
            )
        return cls(target, Path(where.uri))

    def check(self, schema: StructType) -> None:
        if self.target.options:
            raise PipelineError(
                f"{self.target.path}: Parquet sinks have no options; found {', '.join(self.target.options)}"
            )
        if self.target.keys:
            raise PipelineError(f"{self.target.path}: a Parquet directory cannot be updated by keys; use a Delta table")
        stored = self.schema()
        if stored is not None:
            columns.fit(schema, stored.schema, self.target.path)
            self._check_partitioning(stored)

    def _check_partitioning(self, stored: _Layout) -> None:
        if tuple(self.target.partition_by) != stored.partition_by:
            raise PipelineError(
                f"{self.target.path}: partition_by is {', '.join(self.target.partition_by) or 'empty'}, and the "
                f"directory is partitioned by {', '.join(stored.partition_by) or 'nothing'}: write to another directory"
            )

    def schema(self) -> _Layout | None:
        """Return the columns of the files and what they are partitioned by, or None if there are no files yet."""
        from pyspark.sql.types import StructType

        try:
            stored = json.loads((self.root / STATE / "schema.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            if any(not _is_hidden(path.relative_to(self.root)) for path in self.root.rglob("*.parquet")):
                raise PipelineError(
                    f"{self.target.path}: the directory has Parquet files that no pipeline wrote; choose an empty one"
                ) from None
            return None
        return _Layout(StructType.fromJson(stored["schema"]), tuple(stored["partition_by"]))

    def append(self, rows: DataFrame, batch: MicroBatch | None) -> Written:
        self.check(rows.schema)
        if batch is not None and self._has(batch):
            with self._locked():
                self._finish_moves()
            return REPEATED
        stored = self.schema()
        fit = columns.fit(rows.schema, rows.schema if stored is None else stored.schema, self.target.path)
        attempt = self.root / STAGING / uuid.uuid4().hex
        attempt.mkdir(parents=True)
        where = Location(str(attempt))
        written = files.write_files(
            columns.stored(rows, fit, self.target.partition_by), where, self.target.partition_by, STAGED
        )
        files.check_seen(written, where)
        with self._locked():
            self._finish_moves()
            is_repeated = batch is not None and self._has(batch)
            if not is_repeated:
                self._store_schema(rows.schema)
                self._commit(written, attempt, batch)
                self._finish_moves()
        # Not after an exception: the files may be committed and not yet moved.
        shutil.rmtree(attempt, ignore_errors=True)
        self._delete_old_attempts()
        return REPEATED if is_repeated else Written(sum(each.rows for each in written), len(written), False)

    # The state

    def _has(self, batch: MicroBatch) -> bool:
        return int(self._state(batch.app_id).get("number", -1)) >= batch.number

    def _state(self, app_id: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self._state_file(app_id).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found

    def _state_file(self, app_id: str) -> Path:
        return self.root / STATE / f"app-{hashlib.sha256(app_id.encode()).hexdigest()[:32]}.json"

    def _commit(self, written: list[files.DataFile], attempt: Path, batch: MicroBatch | None) -> None:
        """Store that the staged files are part of the directory. What follows can be repeated until it is done."""
        moves = {}
        for each in written:
            staged = (attempt / each.path).relative_to(self.root)
            moves[str(staged)] = each.path.removesuffix(STAGED)
            _sync(self.root / staged)
        app_id = "" if batch is None else batch.app_id
        document: dict[str, Any] = {"app_id": app_id, "moves": moves}
        if batch is not None:
            document |= {"number": batch.number, "ends": {**self._state(app_id).get("ends", {}), **batch.ends}}
        _replace(self._state_file(app_id), document)

    def _finish_moves(self) -> None:
        """Move the files of committed micro-batches to their names. The caller has the lock."""
        for path in (self.root / STATE).glob("app-*.json"):
            document = json.loads(path.read_text(encoding="utf-8"))
            if not document["moves"]:
                continue
            for staged, name in document["moves"].items():
                to = self.root / name
                to.parent.mkdir(parents=True, exist_ok=True)
                if not to.exists():
                    os.replace(self.root / staged, to)
            for directory in {(self.root / name).parent for name in document["moves"].values()}:
                _sync(directory)
            _replace(path, {**document, "moves": {}})

    def _store_schema(self, rows: StructType) -> None:
        """Add the columns that the directory does not have yet, of rows that may have been checked a while ago."""
        from pyspark.sql.types import StructType

        stored = self.schema()
        fit = columns.fit(rows, rows if stored is None else stored.schema, self.target.path)
        if stored is not None:
            self._check_partitioning(stored)
            if not fit.added:
                return
        merged = StructType([*(stored.schema if stored else rows).fields, *fit.added])
        document = {"schema": columns.nullable(merged).jsonValue(), "partition_by": list(self.target.partition_by)}
        _replace(self.root / STATE / "schema.json", document)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        (self.root / STATE).mkdir(parents=True, exist_ok=True)
        with (self.root / STATE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _delete_old_attempts(self) -> None:
        with suppress(OSError):
            for path in (self.root / STAGING).iterdir():
                if time.time() - path.stat().st_mtime > STAGED_AGE_MAX_S:
                    shutil.rmtree(path, ignore_errors=True)

    def ends_of(self, app_id: str) -> dict[str, int]:
        return dict(self._state(app_id).get("ends", {}))


@dataclass(frozen=True)
class _Layout:
    schema: StructType
    partition_by: tuple[str, ...]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


def _replace(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a file as a whole, on disk when this returns."""
    new = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    with new.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(spark: SparkSession, path: str, options: Mapping[str, str]) -> DataFrame:
    """Return the rows of a directory, whoever wrote it; a pipeline's directory has the columns that it stored."""
    from pyspark.sql.types import StructType

    where = location(path)
    reader = spark.read.options(**options)
    schema = Path(where.uri) / STATE / "schema.json"
    if where.is_local and schema.exists():
        stored = StructType.fromJson(json.loads(schema.read_text(encoding="utf-8"))["schema"])
        return reader.schema(stored).parquet(where.uri).select(*[f"`{name}`" for name in stored.names])
    if where.is_local and not Path(where.uri).is_dir():
        raise PipelineError(f"{path}: there is no such directory")
    return reader.parquet(where.uri)
