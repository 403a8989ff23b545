"""The floor of free disk space below which clients' records are refused (`log.dir.free.min.bytes`).

Handlers check the floor before they append; `broker.disks.disk_space` measures free space and sets the refusals.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from flowstone.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from flowstone.log.partition.partition_log import PartitionLog


class DiskFloor:
    """The log directories that accept no new records, and the error message for each.

    Bytes that clients append are counted over all directories together, which costs one addition per batch. When the
    sum reaches `measure_at_bytes`, a directory could have reached its floor, and free space is measured again.
    """

    def __init__(self) -> None:
        self.refusals: dict[str, str] = {}
        self.appended_bytes = 0
        self.measure_at_bytes = sys.maxsize
        self.measure: Callable[[], None] = lambda: None

    def admit(self, log: PartitionLog, size_bytes: int) -> None:
        """Count `size_bytes` that are about to be appended to `log`.

        Raises ApiError if the log's directory accepts no records from clients.
        """
        self.appended_bytes += size_bytes
        if self.appended_bytes > self.measure_at_bytes:
            self.measure()
        if self.refusals:
            message = self.refusals.get(posixpath.dirname(log.path))
            if message is not None:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)
