"""`compact`: compacts the tables that a pipeline writes. Needs no Spark, and may run beside the pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from flowstone.pipeline import tables
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import PipelineModel, Sink, TableSink

# A directory of Parquet files has no commit that could replace some of its files at once.
KINDS = ("delta", "iceberg")


def compact(model: PipelineModel, name: str = "") -> Iterator[tuple[Sink, tables.Compacted]]:
    """Compact the table of one sink, or those of all sinks that have one that can be."""
    for sink in _chosen(model, name):
        assert isinstance(sink.target, TableSink)
        yield sink, tables.compact(sink.target)


def _chosen(model: PipelineModel, name: str) -> list[Sink]:
    written = [each for each in model.sinks if isinstance(each.target, TableSink)]
    if not name:
        found = [each for each in written if isinstance(each.target, TableSink) and each.target.kind in KINDS]
        if not found:
            raise PipelineError(f"{model.name} has no sink that writes a Delta or an Iceberg table")
        return found
    named = [each for each in written if each.name == name]
    if not named:
        names = ", ".join(each.name for each in written) or "none"
        raise PipelineError(f"{name} is no sink of {model.name} that writes a table; those that do: {names}")
    return named
