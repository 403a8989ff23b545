"""Decoding of records into columns: native code if the library has the call, otherwise Python.

This module is separate from the package's own functions because a broker never decodes records into columns: only Arrow
readers import it.
"""

from __future__ import annotations

from flowstone.kernel.column_buffers import Allocate, Batch, BinaryBuffers, Buffer, Capacities, Columns, Full

try:
    from flowstone.kernel.columns_native import decode_columns
except ImportError:
    from flowstone.kernel.columns_twin import decode_columns

__all__ = ["Allocate", "Batch", "BinaryBuffers", "Buffer", "Capacities", "Columns", "Full", "decode_columns"]
