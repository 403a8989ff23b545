"""Loops over every record of a batch: native where the library is built, else the same in Python.

Owns the choice between `native` and `twin`, made once at import; callers see functions and never which one runs, except
through `KERNEL`, for people. It knows record payloads: nothing of headers, files or sockets.
"""

from __future__ import annotations

from flowstone.kernel.twin import RecordsCheck, RecordsStatus

try:
    from flowstone.kernel.native import check_records, find_timestamp
    from flowstone.kernel.refused_records_native import find_refused
    from flowstone.kernel.stored_records_native import check_stored

    KERNEL = "native"
except ImportError:
    from flowstone.kernel.refused_records_twin import find_refused
    from flowstone.kernel.stored_records_twin import check_stored
    from flowstone.kernel.twin import check_records, find_timestamp

    KERNEL = "python"

__all__ = ["KERNEL", "RecordsCheck", "RecordsStatus", "check_records", "check_stored", "find_refused", "find_timestamp"]
