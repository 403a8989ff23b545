"""Values that callers and table formats exchange: the identity of a micro-batch, and the result of writing its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A column by which an upsert finds the last of several rows with the same keys. Tables do not store it.
ORDER = "_order"


@dataclass(frozen=True)
class MicroBatch:
    """The transaction id of a micro-batch, and where it ends in each partition.

    `app_id` names the pipeline, the sink and Spark's query. `number` only rises for one app_id.
    """

    app_id: str
    number: int
    ends: Mapping[str, int]  # "topic-partition" -> the offset after its last record


@dataclass(frozen=True)
class Written:
    """The result of a write. `is_repeated`: the table had this micro-batch already, and nothing was written."""

    rows: int
    files: int
    is_repeated: bool


@dataclass(frozen=True)
class Compacted:
    """The result of a compaction: data files before and after it, and files deleted that no reader can need."""

    files_before: int
    files_after: int
    files_deleted: int


REPEATED = Written(0, 0, True)
