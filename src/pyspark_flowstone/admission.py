"""Limits on the size of a micro-batch.

Limits in offsets are exact. A limit in bytes is approximate: it is based on the next records of each partition, because
the broker can report the number of records but not their size.
"""

from __future__ import annotations

from flowstone.client import Cluster
from flowstone.wire.record_batch import parse_header
from pyspark_flowstone.offsets import OffsetRange, Offsets, limit_bytes, limit_offsets, ranges_between
from pyspark_flowstone.options import SourceOptions


def admit(cluster: Cluster, options: SourceOptions, start: Offsets, ends: Offsets, *, may_wait: bool) -> Offsets:
    """Return the end of a micro-batch; `start` if the minimum is not reached and the query may still wait."""
    ranges = ranges_between(start, ends)
    available = sum(each.offset_count for each in ranges)
    if may_wait and ranges and available < (options.offsets_per_trigger_min or 0):
        return start
    end = ends
    if options.offsets_per_trigger_max is not None:
        end = limit_offsets(start, end, options.offsets_per_trigger_max)
    if options.bytes_per_trigger_max is not None:
        record_bytes = {each.partition: _record_bytes(cluster, each, options) for each in ranges}
        end = limit_bytes(start, end, options.bytes_per_trigger_max, record_bytes)
    return end


def _record_bytes(cluster: Cluster, wanted: OffsetRange, options: SourceOptions) -> float:
    """Return the mean bytes per offset in the log, estimated from the first batches of a range."""
    for fetched in cluster.fetch(
        wanted.partition, wanted.start, wanted.start + 1, read_committed=options.read_committed
    ):
        first, at = parse_header(fetched.records).base_offset, 0
        last = first
        while at < len(fetched.records):
            header = parse_header(fetched.records, at)
            last, at = header.last_offset, at + header.size_bytes
        return at / (last + 1 - first)
    return 0.0  # compaction has removed all records of the range
