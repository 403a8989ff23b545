"""Decides whether the records of a stored batch can be read, which a correct checksum does not prove."""

from __future__ import annotations

from flowstone.errors import ApiError
from flowstone.kernel import check_stored
from flowstone.types import Bytes
from flowstone.wire.compression import PayloadTooLarge
from flowstone.wire.record_batch import BatchHeader, read_payload


def why_unreadable(view: Bytes, position: int, header: BatchHeader) -> str | None:
    """Return why the records of the whole batch at `position` cannot be read, as a clause; None if they can be.

    A batch without records, as repairs and compaction leave, is never opened by a reader. A batch that takes more
    memory than we allow when decompressed counts as readable: other programs may have the memory.
    """
    if not header.record_count:
        return None
    try:
        payload = read_payload(view, position, header)
    except PayloadTooLarge:
        return None
    except ApiError as error:
        return f"no consumer can read the batch: {error.message}"
    status, index = check_stored(payload, 0, len(payload), header.record_count, header.last_offset_delta)
    if not status:
        return None
    what = status.name.lower().replace("_", " ")
    return f"no consumer can read the batch: record {index} of {header.record_count}: {what}"
