"""Log messages about records that a shard skips when it loads: one line per kind, however many records are of it.

A newer broker may have written types of records, or versions of their values, that this one does not know. They stay in
the log, where compaction keeps them, so that a newer broker finds them again.
"""

from __future__ import annotations

import logging
from struct import Struct

logger = logging.getLogger(__name__)

# Kinds that are stored, and so reported once: a damaged log must not fill the memory or the log file.
KINDS_MAX = 100

# Keys and values of all coordinators begin with a version; that of the key is the type of the record.
_VERSION = Struct(">h")

_Kind = tuple[int | None, int | None]  # the versions of key and value


class SkippedRecords:
    def __init__(self) -> None:
        self._reported: set[_Kind] = set()

    def skipped(self, partition: str, key: bytes, value: bytes | None) -> None:
        """Warn that records of this kind are skipped, unless a warning was logged before."""
        kind = _version(key), _version(value)
        if kind in self._reported or len(self._reported) >= KINDS_MAX:
            return
        self._reported.add(kind)
        logger.warning(
            "%s has records with key version %s and value version %s, which a newer broker must have written: they are "
            "not loaded, and stay in the log. Others of this kind are not reported",
            partition,
            *kind,
        )


def _version(data: bytes | None) -> int | None:
    if data is None or len(data) < _VERSION.size:
        return None
    (version,) = _VERSION.unpack_from(data)
    return int(version)
