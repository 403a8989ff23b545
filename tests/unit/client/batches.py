"""Batches as the client sends and receives them."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flowstone.client import Fetched
from flowstone.wire.record_batch import Record, build_batch, checksum_matches, decode_records, parse_header


def batch_of(*values: bytes) -> bytearray:
    now_ms = int(time.time() * 1000)
    return bytearray(build_batch([Record(at, now_ms, None, value) for at, value in enumerate(values)]))


def records_of(fetched: Iterable[Fetched]) -> list[Record]:
    records = []
    for each in fetched:
        at = 0
        while at < len(each.records):
            header = parse_header(each.records, at)
            assert checksum_matches(each.records, at, header)
            records += decode_records(each.records, at)
            at += header.size_bytes
        assert at == len(each.records)
    return records


def offsets_of(fetched: Iterable[Fetched]) -> list[int]:
    return [record.offset for record in records_of(fetched)]
