"""Pipelines: sources, steps and sinks, declared in Python or YAML, run by Spark.

This module has the declarations for `pipeline.py`. Spark is imported only when a pipeline is used.
"""

from __future__ import annotations

from flowstone.pipeline.authoring.declarations import Pipeline
from flowstone.pipeline.authoring.parts import (
    avro,
    console,
    csv,
    delta,
    expect,
    files,
    iceberg,
    interval,
    json,
    once,
    parquet,
    protobuf,
    raw,
    text,
    topic,
)
from flowstone.pipeline.errors import PipelineError

__all__ = [
    "Pipeline",
    "PipelineError",
    "avro",
    "console",
    "csv",
    "delta",
    "expect",
    "files",
    "iceberg",
    "interval",
    "json",
    "once",
    "parquet",
    "protobuf",
    "raw",
    "text",
    "topic",
]
