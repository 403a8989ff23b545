from __future__ import annotations

import pytest

from flowstone.wire.batch_slices import cut_batch, pack_records, raw_records
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import (
    CorruptBatch,
    Record,
    build_batch,
    checksum_matches,
    decode_records,
    encode_header,
    parse_header,
    rewrite,
)

RECORDS = [Record(10 + i, 1000 + (7 * i) % 5, b"k%d" % i, b"v" * i, (("h", b"%d" % i),)) for i in range(6)]
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("end_offset", range(11, 16))
def test_a_cut_batch_has_the_records_before_its_end(codec: Codec, end_offset: int) -> None:
    batch = build_batch(RECORDS, base_offset=10, codec=codec, producer_id=7, producer_epoch=1, base_sequence=3)
    cut = cut_batch(batch, end_offset)
    header = parse_header(cut)
    assert decode_records(cut) == RECORDS[: end_offset - 10]
    assert checksum_matches(cut, 0, header)
    assert header.next_offset == end_offset
    assert header.max_timestamp == max(record.timestamp for record in RECORDS[: end_offset - 10])
    assert (header.producer_id, header.base_sequence, header.codec) == (7, 3, codec)


def test_a_cut_batch_keeps_its_append_time() -> None:
    stamped = rewrite(build_batch(RECORDS, base_offset=10), log_append_time=9999)
    assert {record.timestamp for record in decode_records(cut_batch(stamped, 12))} == {9999}


def test_a_cut_batch_ends_at_the_end_also_where_its_last_records_are_missing() -> None:
    holes = [RECORDS[0], RECORDS[5]]
    cut = cut_batch(build_batch(holes, base_offset=10), 14)
    assert parse_header(cut).next_offset == 14
    assert decode_records(cut) == holes[:1]


@pytest.mark.parametrize("codec", CODECS)
def test_records_packed_again_are_the_same_but_for_their_offsets(codec: Codec) -> None:
    batch = build_batch([RECORDS[1], RECORDS[4]], base_offset=10, codec=codec)
    packed = pack_records(raw_records(batch), codec)
    wanted = [RECORDS[1]._replace(offset=0), RECORDS[4]._replace(offset=1)]
    assert decode_records(packed) == wanted
    assert parse_header(packed).last_offset_delta == 1


def test_records_under_append_time_are_packed_with_the_time_that_readers_were_told() -> None:
    stamped = rewrite(build_batch(RECORDS, base_offset=10), log_append_time=9999)
    packed = pack_records(raw_records(stamped), Codec.NONE)
    assert {record.timestamp for record in decode_records(packed)} == {9999}
    assert not parse_header(packed).uses_log_append_time


@pytest.mark.parametrize("payload", [b"", b"\x80", b"\x64\x00\x00", b"\x01\x00\x00\x00"])
def test_a_payload_that_is_no_records_is_corrupt(payload: bytes) -> None:
    header = parse_header(build_batch(RECORDS, base_offset=10))
    with pytest.raises(CorruptBatch):
        raw_records(encode_header(header, payload) + payload)
