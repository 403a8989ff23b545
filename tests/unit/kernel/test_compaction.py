"""The loops of compaction, asked of both forms; then the two held equal over generated and damaged batches."""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
from types import ModuleType

import pytest
from fastcrc.crc32 import iscsi as crc32c

from flowstone.kernel import compaction_twin as twin
from flowstone.kernel.compaction_contract import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    SLOT_BYTES,
    TRANSACTIONAL_FLAG,
    BatchFields,
    Damage,
    Stop,
)
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    Record,
    build_batch,
    checksum_matches,
    decode_records,
    encode_header,
    parse_header,
    stamp,
)

try:
    from flowstone.kernel import compaction_native as native
except ImportError:
    FORMS: list[ModuleType] = [twin]
else:
    FORMS = [twin, native]

every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__.rpartition("_")[2])
needs_native = pytest.mark.skipif(len(FORMS) == 1, reason="the native kernel is not built")

SEED = bytes(range(16))
EVERYTHING = 1 << 62
OFFSET_LIMIT = 1 << 31  # of a segment that begins at 0
NOW_MS, HORIZON_MS = 5_000, 9_000


def batch(base_offset: int, *records: tuple[bytes | None, bytes | None], **more: object) -> bytes:
    return build_batch(
        [Record(base_offset + at, 100 + at, key, value) for at, (key, value) in enumerate(records)],
        base_offset=base_offset,
        **more,  # type: ignore[arg-type]
    )


def map_all(offset_map, log: bytes, *, to_offset: int = EVERYTHING, stop_attributes: int = 0):
    return offset_map.map_batches(
        log, 0, 0, EVERYTHING, from_offset=0, to_offset=to_offset, stop_attributes=stop_attributes
    )


def mapped(form: ModuleType, log: bytes, to_offset: int = EVERYTHING, keys: int = 100):
    offset_map = form.OffsetMap(memoryview(bytearray(SLOT_BYTES * (keys * 100 // 80 + 1))), SEED)
    map_all(offset_map, log, to_offset=to_offset, stop_attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG)
    return offset_map


def compacted(
    form: ModuleType, log: bytes, offset_map, *, keeps_last: bool = False, kept: tuple[int, ...] = ()
) -> bytes:
    record_filter = form.RecordFilter(
        offset_map, now_ms=NOW_MS, delete_horizon_ms=HORIZON_MS, kept_offsets=kept, output_bytes=4 * len(log)
    )
    walk = record_filter.filter_batches(
        log, 0, 0, EVERYTHING, keeps_last=keeps_last, stop_attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG
    )
    assert (walk.stop, walk.position) == (Stop.MORE, len(log))
    return bytes(record_filter.take())


def headers(log: bytes):
    position, found = 0, []
    while position < len(log):
        header = parse_header(log, position)
        assert checksum_matches(log, position, header)
        found.append((position, header))
        position += header.size_bytes
    return found


def records(log: bytes) -> list[Record]:
    return [record for position, _ in headers(log) for record in decode_records(log, position)]


@every_form
def test_the_last_record_of_every_key_stays_where_it_was(form: ModuleType) -> None:
    log = batch(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2")) + batch(3, (b"c", b"1"), (b"b", b"2"))

    left = compacted(form, log, mapped(form, log))

    assert records(left) == [Record(2, 102, b"a", b"2"), Record(3, 100, b"c", b"1"), Record(4, 101, b"b", b"2")]
    assert [(header.base_offset, header.last_offset) for _, header in headers(left)] == [(0, 2), (3, 4)]


@every_form
def test_a_batch_that_loses_nothing_keeps_its_bytes(form: ModuleType) -> None:
    log = batch(
        7, (b"a", b"1"), (b"b", b""), partition_leader_epoch=3, producer_id=5, producer_epoch=1, base_sequence=9
    )

    assert compacted(form, log, mapped(form, log)) == log


@every_form
def test_a_batch_without_records_goes(form: ModuleType) -> None:
    log = batch(0, (b"a", b"1")) + batch(1, (b"a", b"2"))

    assert compacted(form, log, mapped(form, log)) == batch(1, (b"a", b"2"))


@every_form
def test_the_last_batch_and_those_named_stay_without_records(form: ModuleType) -> None:
    log = batch(0, (b"a", b"1"), producer_id=5, producer_epoch=1, base_sequence=9) + batch(
        1, (b"a", b"2"), (b"b", b"1")
    )
    log += batch(3, (b"a", b"3")) + batch(4, (None, b""))

    left = headers(compacted(form, log, mapped(form, log), keeps_last=True, kept=(0, 77)))

    assert [(header.base_offset, header.record_count) for _, header in left] == [(0, 0), (1, 1), (3, 1), (4, 0)]
    empty = left[0][1]
    assert (empty.size_bytes, empty.producer_id, empty.last_sequence, empty.max_timestamp) == (HEADER_BYTES, 5, 9, 100)
    assert empty.base_timestamp == -1


@every_form
def test_a_record_without_a_key_goes(form: ModuleType) -> None:
    log = batch(0, (None, b"1"), (b"a", b"1"))

    assert records(compacted(form, log, mapped(form, log))) == [Record(1, 101, b"a", b"1")]


@every_form
def test_what_was_not_mapped_stays(form: ModuleType) -> None:
    log = batch(0, (b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (None, b"4")) + batch(4, (b"a", b"5"), codec=Codec.LZ4)

    left = compacted(form, log, mapped(form, log, to_offset=2))

    assert [record.offset for record in records(left)] == [1, 2, 3, 4]


@every_form
def test_a_full_map_ends_before_the_record_it_has_no_space_for(form: ModuleType) -> None:
    log = batch(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"))

    offset_map = mapped(form, log, keys=2)

    assert (offset_map.mapped_end, len(offset_map), offset_map.capacity) == (3, 2, 2)


@every_form
def test_a_tombstone_gets_a_delete_horizon_and_keeps_its_timestamp(form: ModuleType) -> None:
    log = batch(0, (b"a", b"1"), (b"a", None), (b"b", b"1"))

    left = compacted(form, log, mapped(form, log))

    ((_, header),) = headers(left)
    assert header.attributes & DELETE_HORIZON_FLAG
    assert header.base_timestamp == HORIZON_MS
    assert records(left) == [Record(1, 101, b"a", None), Record(2, 102, b"b", b"1")]
    assert header.max_timestamp == 102


@every_form
def test_a_tombstone_goes_when_its_horizon_has_passed(form: ModuleType) -> None:
    log = batch(0, (b"a", None), (b"b", b"1"))
    marked = compacted(form, log, mapped(form, log))

    def later(now_ms: int) -> list[int]:
        record_filter = form.RecordFilter(
            mapped(form, marked), now_ms=now_ms, delete_horizon_ms=99_000, kept_offsets=(), output_bytes=1000
        )
        record_filter.filter_batches(marked, 0, 0, EVERYTHING, keeps_last=False, stop_attributes=0)
        return [record.offset for record in records(bytes(record_filter.take()))]

    assert later(HORIZON_MS - 1) == [0, 1]
    assert later(HORIZON_MS) == [1]


@every_form
def test_a_tombstone_beyond_the_map_has_no_horizon_yet(form: ModuleType) -> None:
    log = batch(0, (b"a", None), (b"a", None))

    assert compacted(form, log, mapped(form, log, to_offset=1)) == log


@every_form
def test_the_newest_timestamp_is_that_of_the_records_left_unless_the_broker_gave_it(form: ModuleType) -> None:
    log = batch(0, (b"a", b"1"), (b"b", b"1")) + batch(2, (b"b", b"2"))
    header = stamp(parse_header(log), 777)
    size = header.size_bytes
    stamped = encode_header(header, log[HEADER_BYTES:size]) + log[HEADER_BYTES:size] + log[size:]

    assert headers(compacted(form, log, mapped(form, log)))[0][1].max_timestamp == 100
    assert headers(compacted(form, stamped, mapped(form, stamped)))[0][1].max_timestamp == 777


@every_form
@pytest.mark.parametrize(
    ("log", "stop"),
    [
        (batch(0, (b"a", b"1"), codec=Codec.ZSTD), Stop.COMPRESSED),
        (batch(0, (b"a", b"1"), is_transactional=True), Stop.TRANSACTIONAL),
        (batch(0, (b"a", b"1"), is_control=True), Stop.TRANSACTIONAL),
    ],
)
def test_a_walk_stops_at_what_is_for_the_caller(form: ModuleType, log: bytes, stop: Stop) -> None:
    plain = batch(0, (b"a", b"1"))
    log = plain + encode_header(parse_header(log)._replace(base_offset=1), log[HEADER_BYTES:]) + log[HEADER_BYTES:]
    offset_map = form.OffsetMap(memoryview(bytearray(1000)), SEED)
    flags = TRANSACTIONAL_FLAG | CONTROL_FLAG

    walk = map_all(offset_map, log, stop_attributes=flags)
    offset_map.mapped_end = 2
    record_filter = form.RecordFilter(
        offset_map, now_ms=0, delete_horizon_ms=0, kept_offsets=(), output_bytes=4 * len(log)
    )

    assert (walk.stop, walk.position, walk.next_offset) == (stop, len(plain), 1)
    again = record_filter.filter_batches(log, 0, 0, EVERYTHING, keeps_last=False, stop_attributes=flags)
    assert (again.stop, again.position, again.next_offset) == (stop, len(plain), 1)


@every_form
def test_a_batch_that_is_not_all_there_says_how_much_it_takes(form: ModuleType) -> None:
    log = batch(0, (b"a", b"1"))
    offset_map = form.OffsetMap(memoryview(bytearray(1000)), SEED)

    for size, needed in ((0, HEADER_BYTES), (HEADER_BYTES - 1, HEADER_BYTES), (HEADER_BYTES, len(log))):
        walk = map_all(offset_map, log[:size])
        assert (walk.stop, walk.needed_bytes) == (Stop.MORE, needed)


@every_form
def test_a_filter_without_space_leaves_the_batch_for_the_next_call(form: ModuleType) -> None:
    log = batch(0, (b"a", b"1")) + batch(1, (b"b", b"1"))
    record_filter = form.RecordFilter(
        mapped(form, log), now_ms=0, delete_horizon_ms=0, kept_offsets=(), output_bytes=3 * len(log) // 2 + 10
    )

    first = record_filter.filter_batches(log, 0, 0, EVERYTHING, keeps_last=False, stop_attributes=0)
    taken = bytes(record_filter.take())
    second = record_filter.filter_batches(
        log, first.position, first.next_offset, EVERYTHING, keeps_last=False, stop_attributes=0
    )

    assert (first.stop, second.stop) == (Stop.OUTPUT_FULL, Stop.MORE)
    assert taken + bytes(record_filter.take()) == log


@every_form
@pytest.mark.parametrize(
    ("position", "damage"),
    [(0, Damage.BAD_HEADER), (16, Damage.BAD_HEADER), (40, Damage.BAD_CHECKSUM), (62, Damage.BAD_CHECKSUM)],
)
def test_damage_is_never_copied(form: ModuleType, position: int, damage: Damage) -> None:
    good = batch(0, (b"a", b"1"))
    bad = bytearray(batch(1, (b"b", b"1")))
    bad[position] ^= 0x80
    offset_map = mapped(form, good)
    offset_map.mapped_end = 2
    record_filter = form.RecordFilter(offset_map, now_ms=0, delete_horizon_ms=0, kept_offsets=(), output_bytes=1000)

    walk = record_filter.filter_batches(good + bad, 0, 0, EVERYTHING, keeps_last=False, stop_attributes=0)

    assert (walk.stop, walk.damage, walk.position) == (Stop.DAMAGED, damage, len(good))
    assert record_filter.take() == good


@every_form
@pytest.mark.parametrize(("next_offset", "end_offset"), [(6, 9), (0, 5)])
def test_batches_outside_the_offsets_they_should_have_are_damage(
    form: ModuleType, next_offset: int, end_offset: int
) -> None:
    offset_map = form.OffsetMap(memoryview(bytearray(1000)), SEED)

    walk = offset_map.map_batches(
        batch(5, (b"a", b"1")), 0, next_offset, end_offset, from_offset=0, to_offset=9, stop_attributes=0
    )

    assert (walk.stop, walk.damage) == (Stop.DAMAGED, Damage.OUT_OF_ORDER)


@every_form
def test_a_marker_keeps_its_record_and_gets_a_delete_horizon(form: ModuleType) -> None:
    log = batch(3, (b"\0\0\0\1", b"\0\0\0\0\0\0"), is_control=True)
    offset_map = form.OffsetMap(memoryview(bytearray(1000)), SEED)
    record_filter = form.RecordFilter(
        offset_map, now_ms=0, delete_horizon_ms=HORIZON_MS, kept_offsets=(), output_bytes=1000
    )

    kept = record_filter.filter_records(log[HEADER_BYTES:], BatchFields(3, 3, 100, 1, CONTROL_FLAG), is_marker=True)

    assert (kept.kept_count, kept.has_new_horizon, kept.max_timestamp) == (1, True, 100)
    header = parse_header(log)._replace(base_timestamp=HORIZON_MS)
    again = encode_header(header, kept.payload) + bytes(kept.payload)
    assert decode_records(again) == decode_records(log)


@needs_native
def test_keys_are_hashed_as_siphash_says() -> None:
    """The first vectors of its authors' reference: key 00 01 … 0f, input 00 01 … of rising length."""
    expected = [
        "a3817f04ba25a8e66df67214c7550293",
        "da87c1d86b99af44347659119b22fc45",
        "8177228da4a45dc7fca38bdef60affe4",
    ]
    hashed = ctypes.create_string_buffer(16)
    for length, vector in enumerate(expected):
        native.library.flowstone_hash_key(SEED, bytes(range(length)), ctypes.c_int64(length), hashed)
        assert hashed.raw.hex() == vector


def random_log(rng: random.Random) -> bytes:
    log, offset = b"", rng.randrange(3)
    for _ in range(rng.randrange(1, 12)):
        made = []
        for _ in range(rng.randrange(1, 6)):
            key = None if rng.random() < 0.05 else b"k%d" % rng.randrange(8)
            value = None if rng.random() < 0.2 else bytes(rng.randrange(70))
            headers = (("h", b"x"),) * rng.choice((0, 0, 0, 2))
            made.append(Record(offset, rng.choice((0, 10, 10**12, -1)) + rng.randrange(100), key, value, headers))
            offset += rng.choice((1, 1, 1, 2))
        built = build_batch(made, base_offset=made[0].offset, producer_id=rng.choice((-1, 4)))
        if rng.random() < 0.3:
            header = parse_header(built)
            attributes = header.attributes | rng.choice((DELETE_HORIZON_FLAG, 0x08))
            built = encode_header(header._replace(attributes=attributes), built[HEADER_BYTES:]) + built[HEADER_BYTES:]
        log += built
    return log


def outcome(form: ModuleType, log: bytes, rng: random.Random) -> list[object]:
    """Everything both passes and the index say of a log."""
    offset_map = form.OffsetMap(memoryview(bytearray(SLOT_BYTES * rng.randrange(2, 12))), SEED)
    walk = offset_map.map_batches(
        log,
        0,
        0,
        OFFSET_LIMIT,
        from_offset=rng.randrange(5),
        to_offset=rng.choice((10, 20, EVERYTHING)),
        stop_attributes=rng.choice((0, 0x30)),
    )
    if walk.stop is Stop.DAMAGED:
        return [walk]  # what was mapped before is worth nothing
    said: list[object] = [walk, offset_map.mapped_end, len(offset_map)]
    record_filter = form.RecordFilter(
        offset_map,
        now_ms=rng.choice((0, 10**12)),
        delete_horizon_ms=rng.choice((5, 10**12)),
        kept_offsets=sorted(rng.sample(range(40), 3)),
        output_bytes=4 * len(log),
    )
    said.append(
        record_filter.filter_batches(log, 0, 0, OFFSET_LIMIT, keeps_last=rng.random() < 0.5, stop_attributes=0x30)
    )
    left = bytes(record_filter.take())
    index = form.IndexBuilder(0, rng.choice((0, 100, 4096)))
    index.add(left)
    index.close()
    return [*said, left, index.offset_entries, index.time_entries]


@needs_native
def test_both_forms_say_the_same_of_random_logs() -> None:
    for seed in range(400):
        log = random_log(random.Random(seed))
        assert outcome(native, log, random.Random(seed)) == outcome(twin, log, random.Random(seed)), seed


@needs_native
def test_both_forms_say_the_same_of_damaged_logs() -> None:
    """Half of the damage is under a right checksum: only whoever wrote the batch could have done that."""
    for seed in range(400):
        rng = random.Random(seed)
        log = bytearray(random_log(rng))
        position, header = rng.choice(headers(bytes(log)))
        log[position + rng.randrange(header.size_bytes)] ^= 1 << rng.randrange(8)
        if rng.random() < 0.5:
            crc = crc32c(bytes(log[position + 21 : position + header.size_bytes]))
            log[position + 17 : position + 21] = crc.to_bytes(4, "big")
        assert outcome(native, bytes(log), random.Random(seed)) == outcome(twin, bytes(log), random.Random(seed)), seed


def with_trailing_byte(count: int) -> bytes:
    """A batch of so many records, with a byte behind the last."""
    whole = batch(0, *((b"k%d" % number, b"v") for number in range(max(1, count))))
    payload = (whole[HEADER_BYTES:] if count else b"") + b"\0"
    header = parse_header(whole)._replace(record_count=count, batch_length=HEADER_BYTES - LOG_OVERHEAD + len(payload))
    return encode_header(header, payload) + payload


@every_form
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 32])
def test_bytes_behind_the_last_record_are_damage_even_where_the_map_is_full(form: ModuleType, count: int) -> None:
    """Records are read in windows of sixteen: the map takes no key of the last window."""
    capacity = 1 + max(0, count - 1) // 16 * 16
    offset_map = form.OffsetMap(memoryview(bytearray(SLOT_BYTES * -(-capacity * 100 // 80))), SEED)
    assert offset_map.capacity == capacity
    assert map_all(offset_map, batch(0, (b"another key", b""))).stop is Stop.MORE

    walk = map_all(offset_map, with_trailing_byte(count))

    assert (walk.stop, walk.damage) == (Stop.DAMAGED, Damage.BAD_RECORD)


@every_form
@pytest.mark.parametrize("last_offset", [2**31, 2**32 + 5])
def test_an_index_refuses_what_its_entries_cannot_name(form: ModuleType, last_offset: int) -> None:
    index = form.IndexBuilder(0, 0)
    index.add(batch(0, (b"a", b"1")) + batch(2**31 - 1, (b"a", b"1")))

    with pytest.raises(ValueError, match="2147483648 or more"):
        index.add(batch(last_offset, (b"a", b"1")))


@every_form
def test_an_index_refuses_batches_before_the_beginning_of_its_segment(form: ModuleType) -> None:
    with pytest.raises(ValueError, match="at position 0 is damaged"):
        form.IndexBuilder(10, 0).add(batch(9, (b"a", b"1")))


@every_form
@pytest.mark.parametrize("size", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1])
def test_an_index_refuses_what_is_no_whole_batch(form: ModuleType, size: int) -> None:
    whole = batch(0, (b"a", b"1"))

    with pytest.raises(ValueError, match=f"at position {len(whole)} is damaged"):
        form.IndexBuilder(0, 0).add(whole + batch(1, (b"a", b"1"))[:size])


@every_form
@pytest.mark.parametrize("position", [-1, 1000])
def test_a_position_outside_the_buffer_is_refused(form: ModuleType, position: int) -> None:
    log = batch(0, (b"a", b"1"))
    offset_map = mapped(form, log)
    record_filter = form.RecordFilter(offset_map, now_ms=0, delete_horizon_ms=0, kept_offsets=(), output_bytes=1000)

    with pytest.raises(ValueError, match=f"position {position} of {len(log)}"):
        offset_map.map_batches(log, position, 0, 9, from_offset=0, to_offset=9, stop_attributes=0)
    with pytest.raises(ValueError, match=f"position {position} of {len(log)}"):
        record_filter.filter_batches(log, position, 0, 9, keeps_last=False, stop_attributes=0)


@every_form
def test_a_map_without_space_for_a_key_is_refused(form: ModuleType) -> None:
    with pytest.raises(ValueError, match="cannot hold a key"):
        form.OffsetMap(memoryview(bytearray(SLOT_BYTES)), SEED)
    with pytest.raises(ValueError, match="15 bytes, not 16"):
        form.OffsetMap(memoryview(bytearray(1000)), SEED[1:])


@every_form
def test_an_output_takes_no_more_than_it_has_space_for(form: ModuleType) -> None:
    record_filter = form.RecordFilter(
        mapped(form, b""), now_ms=0, delete_horizon_ms=0, kept_offsets=(), output_bytes=10
    )
    record_filter.put(bytes(9))

    with pytest.raises(ValueError, match="2 bytes for an output that has 1 left"):
        record_filter.put(bytes(2))
    with pytest.raises(ValueError, match="9 bytes of output were not taken"):
        record_filter.reserve(100)


def test_what_a_caller_gets_wrong_is_refused_under_python_o_too() -> None:
    program = """
from flowstone.kernel.compaction import OffsetMap
for act in (
    lambda: OffsetMap(memoryview(bytearray(24)), bytes(16)),
    lambda: OffsetMap(memoryview(bytearray(99)), bytes(16)).map_batches(
        b"", 1, 0, 9, from_offset=0, to_offset=9, stop_attributes=0
    ),
):
    try:
        act()
    except ValueError:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "refused\nrefused\n"
