"""The columns of a record, named and typed as Spark's Kafka connector has them, so that its users find their own.

Spark compares the schema of what a source yields with its own, down to the name of a list's element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"

# Kafka's numbers, as in the column `timestampType`.
CREATE_TIME = 0
LOG_APPEND_TIME = 1

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE = pa.list_(pa.field("element", HEADER_TYPE))

_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    HEADERS: HEADERS_TYPE,
}


def schema(columns: Sequence[str] = COLUMNS) -> Any:
    """The `pyarrow.Schema` of these columns, in this order; ValueError names one that does not exist."""
    for name in columns:
        if name not in _TYPES:
            raise ValueError(f"there is no column {name!r}; the columns of a record are {', '.join(_TYPES)}")
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])
