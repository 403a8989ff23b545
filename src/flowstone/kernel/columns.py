"""Records into columns: native where the library has the call, else the same in Python.

Apart from the package's own functions, because a broker never decodes: only readers into Arrow load this.
"""

from __future__ import annotations

from flowstone.kernel.column_buffers import Allocate, Batch, BinaryBuffers, Buffer, Capacities, Columns, Full

try:
    from flowstone.kernel.columns_native import decode_columns
except ImportError:
    from flowstone.kernel.columns_twin import decode_columns

__all__ = ["Allocate", "Batch", "BinaryBuffers", "Buffer", "Capacities", "Columns", "Full", "decode_columns"]
