"""Names and types of a record's columns, the same as in Spark's Kafka connector.

Spark compares the schema of a source's data with its own, including the name of a list's element.
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
    """Return the `pyarrow.Schema` of these columns, in this order. Raises ValueError if a column does not exist."""
    for name in columns:
        if name not in _TYPES:
            raise ValueError(f"there is no column {name!r}; the columns of a record are {', '.join(_TYPES)}")
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])
