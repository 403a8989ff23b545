"""Batches of the log that share partitions have read lately, so that one delivered in parts is read and checked once.

A batch belongs to one share partition in one leader epoch, in which the log is not truncated. Compaction may replace
it, which changes its size. The bytes that are kept have one bound for the broker, the least recently used are evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from flowstone.coordinator.share.records import Delay, ShareKey
from flowstone.kernel import copy_chosen
from flowstone.types import Bytes
from flowstone.wire.record_batch import HEADER_BYTES, checksum_matches, encode_header, parse_header

# Bytes of batches that are kept, of all share partitions of the broker.
KEPT_BYTES_MAX = 16 << 20
# Batches of a share partition whose delays are known, and the delayed records in them.
BATCHES_KNOWN_MAX, DELAYS_KNOWN_MAX = 64, 10_000


class BatchKey(NamedTuple):
    share_key: ShareKey
    leader_epoch: int
    base_offset: int
    size_bytes: int


class KeptBatches:
    """The bytes of batches, whose checksums were right."""

    def __init__(self) -> None:
        self._kept: OrderedDict[BatchKey, bytes] = OrderedDict()
        self._size_bytes = 0

    def get(self, key: BatchKey, read: Callable[[], Bytes]) -> bytes | None:
        """Return the batch, reading it if it is not kept; None if its checksum is wrong."""
        data = self._kept.get(key)
        if data is not None:
            self._kept.move_to_end(key)
            return data
        data = bytes(read())
        if not checksum_matches(data, 0, parse_header(data)):
            return None
        if len(data) <= KEPT_BYTES_MAX:
            self._kept[key] = data
            self._size_bytes += len(data)
            while self._size_bytes > KEPT_BYTES_MAX:
                self._size_bytes -= len(self._kept.popitem(last=False)[1])
        return data


class RecentBatches:
    """Batches of one share partition that were read lately, and the delays of their records.

    It is valid for one leader epoch: a new leader begins with an empty one.
    """

    def __init__(self, share_key: ShareKey, leader_epoch: int, kept: KeptBatches) -> None:
        self._place, self._kept = (share_key, leader_epoch), kept
        self._delays: dict[tuple[int, int], tuple[Delay, ...]] = {}
        self._delay_count = 0

    def delays(self, base_offset: int, size_bytes: int, find: Callable[[], tuple[Delay, ...]]) -> tuple[Delay, ...]:
        """Return the delays of a batch's records, which `find` reads if they are not known."""
        known = self._delays.get((base_offset, size_bytes))
        if known is None:
            known = self._delays[base_offset, size_bytes] = find()
            self._delay_count += len(known)
            while len(self._delays) > BATCHES_KNOWN_MAX or self._delay_count > DELAYS_KNOWN_MAX:
                self._delay_count -= len(self._delays.pop(next(iter(self._delays))))
        return known

    def only(
        self, base_offset: int, size_bytes: int, spans: Sequence[tuple[int, int]], read: Callable[[], Bytes]
    ) -> bytes | None:
        """Return the batch with only the records of the spans of offsets, which are in order and disjoint.

        Returns None if the whole batch has to be sent, because it is compressed or damaged.
        """
        data = self._kept.get(BatchKey(*self._place, base_offset, size_bytes), read)
        return None if data is None else only_records(data, spans)


def only_records(batch: bytes, spans: Sequence[tuple[int, int]]) -> bytes | None:
    """Return a batch, whose checksum is right, with only the records of the spans; None if it is compressed."""
    header = parse_header(batch)
    if header.codec:
        return None
    base, size = header.base_offset, header.size_bytes - HEADER_BYTES
    deltas = [(max(first - base, 0), last - base) for first, last in spans]
    chosen = copy_chosen(batch, HEADER_BYTES, size, header.record_count, deltas)
    if chosen is None or not chosen.record_count:
        return None
    header = header._replace(record_count=chosen.record_count, last_offset_delta=chosen.last_delta)
    return encode_header(header, chosen.payload) + chosen.payload
