"""What is logged of records that a shard passes over when it loads: a line per kind, however many there are of it.

A newer broker may have written types of records, or versions of their values, that this one does not know. They stay in
the log, where compaction keeps them, so that a newer broker finds them again.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

# Kinds that are remembered, and so reported once: a log of any bytes must not fill the memory or the log file.
KINDS_MAX = 100


class UnknownRecord(Exception):
    """A record of a kind that this broker does not know; its message names the kind."""


class SkippedRecords:
    def __init__(self) -> None:
        self._reported: set[str] = set()

    def skipped(self, partition: str, kind: str) -> None:
        """Warn that records of this kind are passed over, unless that was said before."""
        if kind in self._reported or len(self._reported) >= KINDS_MAX:
            return
        self._reported.add(kind)
        logger.warning(
            "%s has %s, which this version does not know: they are not loaded, and kept in the log. "
            "Others of this kind are not reported",
            partition,
            kind,
        )
