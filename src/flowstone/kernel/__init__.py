"""The loops over the records of a batch: native code if the library is built, otherwise the same in Python.

This package chooses between `native` and `twin` once, at import. Callers use its functions without knowing which one
runs; `KERNEL` names it for messages to users. The package knows record payloads, but no batch headers, files or
sockets.
"""

from __future__ import annotations

from flowstone.kernel.twin import RecordsCheck, RecordsStatus

try:
    from flowstone.kernel.native import check_records, find_timestamp
    from flowstone.kernel.refused_records_native import find_refused
    from flowstone.kernel.stored_records_native import check_stored, copy_chosen, hash_keys

    KERNEL = "native"
except ImportError:
    from flowstone.kernel.refused_records_twin import find_refused
    from flowstone.kernel.stored_records_twin import check_stored, copy_chosen, hash_keys
    from flowstone.kernel.twin import check_records, find_timestamp

    KERNEL = "python"

__all__ = [
    "KERNEL",
    "RecordsCheck",
    "RecordsStatus",
    "check_records",
    "check_stored",
    "copy_chosen",
    "find_refused",
    "find_timestamp",
    "hash_keys",
]
