"""Checkpoint directories: each carries the identity of its pipeline and query, and is refused by any other.

They may be on any file system that Spark reaches, so they are read and written through it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDENTITY_FILE = "flowstone.json"


def take(spark: SparkSession, path: str, pipeline: str, query: str, id: str, *, has_run: bool) -> None:
    """Mark the directory as the query's checkpoint. Raises PipelineError if it belongs to another query, or is missing.

    `has_run` says that micro-batches were finished with it: without it they would be run again as new ones.
    """
    wanted = {"pipeline": pipeline, "query": query, "id": id}
    try:
        found = _read(spark, f"{path}/{IDENTITY_FILE}")
        if found is None and not has_run and not _exists(spark, f"{path}/metadata"):
            _write(spark, f"{path}/{IDENTITY_FILE}", json.dumps(wanted))
            return
    except Exception as error:  # whatever the file system raises
        raise PipelineError(
            f"the checkpoint of query {query} at {path} cannot be used: {_reason(error)}; check the setting checkpoints"
        ) from error
    if found is None:
        raise PipelineError(
            f"the checkpoint of query {query} is no longer at {path}, and without it records would be written again: "
            "restore it, or give the query a new one with `flowstone pipeline reset`"
        )
    try:
        owner = json.loads(found)
    except ValueError:
        owner = None
    if owner != wanted:
        other = f"query {owner.get('query')} of pipeline {owner.get('pipeline')}" if isinstance(owner, dict) else "?"
        raise PipelineError(
            f"the checkpoint at {path} is the one of {other}, not of query {query} of pipeline {pipeline}: put the "
            "right one there, or give the query a new one with `flowstone pipeline reset`"
        )


def read_text(spark: Any, path: str) -> str:
    """Return a file's text, through Spark's file systems."""
    file, system = _open(spark, path)
    stream = system.open(file)
    try:
        return str(spark.sparkContext._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def last_commit(spark: Any, path: str) -> int | None:
    """Return the number of the last micro-batch that a checkpoint has as finished, or None if there is none."""
    if not _exists(spark, f"{path}/commits"):
        return None
    file, system = _open(spark, f"{path}/commits")
    names = [each.getPath().getName() for each in system.listStatus(file)]
    return max((int(each) for each in names if each.isdecimal()), default=None)


def _read(spark: Any, path: str) -> str | None:
    return read_text(spark, path) if _exists(spark, path) else None


def _exists(spark: Any, path: str) -> bool:
    file, system = _open(spark, path)
    return bool(system.exists(file))


def _write(spark: Any, path: str, text: str) -> None:
    file, system = _open(spark, path)
    stream = system.create(file, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def _open(spark: Any, path: str) -> tuple[Any, Any]:
    context = spark.sparkContext
    file = context._jvm.org.apache.hadoop.fs.Path(path)
    return file, file.getFileSystem(context._jsc.hadoopConfiguration())


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Exception" in line and not line.startswith("py4j")]
    return (named or lines or [type(error).__name__])[-1 if not named else 0]
