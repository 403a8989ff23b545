"""Conversion of rows to the records of batches: native code if the library has the calls, otherwise Python.

This module is separate from the package's own functions because a broker never builds batches from rows: only writers
of Arrow data import it.
"""

from __future__ import annotations

from flowstone.kernel.row_columns import BadRow, BinaryInput, Built, HeadersInput, NumberInput, Rows, RowStatus, Slots

try:
    from flowstone.kernel.batches_native import RecordBuilder, spread_rows
except ImportError:
    from flowstone.kernel.batches_twin import RecordBuilder, spread_rows  # type: ignore[assignment]

__all__ = [
    "BadRow",
    "BinaryInput",
    "Built",
    "HeadersInput",
    "NumberInput",
    "RecordBuilder",
    "RowStatus",
    "Rows",
    "Slots",
    "spread_rows",
]
