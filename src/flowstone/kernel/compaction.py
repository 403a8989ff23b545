"""The loops of log compaction: native code if the library has the calls, otherwise Python.

This module is separate from the package's own functions because only the compaction process imports it.
"""

from __future__ import annotations

from flowstone.kernel.compaction_contract import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    LOAD_PERCENT_MAX,
    OUTPUT_PER_INPUT_MAX,
    SEED_BYTES,
    SLOT_BYTES,
    TRANSACTIONAL_FLAG,
    BadRecord,
    BatchFields,
    Damage,
    FilteredRecords,
    Stop,
    Walk,
)

try:
    from flowstone.kernel.compaction_native import IndexBuilder, OffsetMap, RecordFilter
except ImportError:
    from flowstone.kernel.compaction_twin import (  # type: ignore[assignment]
        IndexBuilder,
        OffsetMap,
        RecordFilter,
    )

__all__ = [
    "CONTROL_FLAG",
    "DELETE_HORIZON_FLAG",
    "LOAD_PERCENT_MAX",
    "OUTPUT_PER_INPUT_MAX",
    "SEED_BYTES",
    "SLOT_BYTES",
    "TRANSACTIONAL_FLAG",
    "BadRecord",
    "BatchFields",
    "Damage",
    "FilteredRecords",
    "IndexBuilder",
    "OffsetMap",
    "RecordFilter",
    "Stop",
    "Walk",
]
