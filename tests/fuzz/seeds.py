"""What the fuzzer begins with: batches that the broker's own code builds, each behind the numbers its target takes."""

from __future__ import annotations

from struct import pack

from flowstone.wire.compression import Codec, compress
from flowstone.wire.record_batch import HEADER_BYTES, Record, build_batch

HEADERS = (("trace", b"1"), ("empty", b""), ("null", None))
RECORDS = [
    [Record(0, 1_700_000_000_000, b"key", b"value")],
    [Record(at, 1_700_000_000_000 + at, b"k%d" % (at % 5), b"v" * at, HEADERS[: at % 4]) for at in range(40)],
    [Record(at, 1_700_000_000_000 - at * 10**9, None if at % 2 else b"", None) for at in range(17)],
    [Record(at, at, b"long" * 40, b"x" * 300) for at in range(3)],
]
EVERYTHING = 0xFF
# The columns of the target are named by letters, in the order of their kinds.
JSON = b"""{"a":"x\\u00e4\\ud83d\\ude00\\n","b":true,"c":1,"d":-2,"e":3,"f":4,"g":0.1234567890123456789,"h":1.25,
"i":"2024-02-29","j":"2026-11-01T10:00:00.123456+01:00","other":[{"x":[]},null,"\xc3\xa4"]}"""


def seeds(target: str) -> list[bytes]:
    """Return the inputs that the fuzzing of a target begins with."""
    if target == "batches":
        return [_rows(count) for count in (1, 3, 8)]
    if target == "frames":
        return [compress(codec, b"content" * count) for codec in (Codec.LZ4, Codec.ZSTD) for count in (0, 1, 50_000)]
    if target == "json_rows":
        return [bytes([flags]) + pack(">H", len(JSON)) + JSON + JSON for flags in range(8)]
    if target == "compaction":
        return [_numbers_of(target, 0) + log for log in _logs()]
    payloads = [(build_batch(records)[HEADER_BYTES:], len(records)) for records in RECORDS]
    return [_numbers_of(target, count) + payload for payload, count in payloads]


def _numbers_of(target: str, count: int) -> bytes:
    match target:
        case "check_records":
            return pack(">iB", count, 0)
        case "find_timestamp":
            return pack(">iiq", count, 1, 5)
        case "refused_records":
            return pack(">BBiqqq", 8, 1, count, -5, 5, -1)
        case "stored_records":
            return pack(">ii", count, count - 1)
        case "key_hashes":
            return pack(">i", count)
        case "chosen_records":
            return pack(">ibb", count, 0, 20)
        case "columns":
            return pack(">hIHqBI", count, 100, count, 1_700_000_000_000, 0, 101) + bytes(
                [EVERYTHING, 15, 30] + [200] * 4
            )
        case "key_map":
            return pack(">BIIIHQ", 20, count, 100, count, 0, 1 << 40)
        case "compaction":
            flags = 1 | 2 | 8  # map everything, leave transactions to the caller, put checksums right
            return pack(">BBqqHHB", 20, flags, 10**12, 10**12, 0, 60_000, 100)
    raise ValueError(target)


def _logs() -> list[bytes]:
    """Logs of several batches: plain, compressed, transactional."""
    plain = b"".join(_at(records, 50 * number) for number, records in enumerate(RECORDS))
    compressed = _at(RECORDS[0], 0) + _at(RECORDS[1], 1, codec=Codec.LZ4)
    transactional = _at(RECORDS[0], 0, is_transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)
    marker = build_batch([Record(1, 5, b"\0\0\0\1", b"\0\0\0\0\0\0")], base_offset=1, is_control=True, producer_id=7)
    return [plain, plain + plain, compressed, transactional + marker]


def _at(records: list[Record], base_offset: int, **more: object) -> bytes:
    moved = [record._replace(offset=base_offset + record.offset) for record in records]
    return build_batch(moved, base_offset=base_offset, **more)  # type: ignore[arg-type]


def _rows(count: int) -> bytes:
    """Rows with a key and a value of two bytes each, and a header each."""
    binary = bytes([4, *(2 * row for row in range(count + 1)), *([EVERYTHING] * ((count + 7) // 8)), 2 * count])
    numbers = bytes([1, *([1] * count)])
    nothing = bytes([0])
    headers = bytes([count, *range(count + 1)])
    text = bytes([0, *range(count + 1), count])
    head = pack(">BBBIBH", 4, count, 200, 1000, 0, 50)
    return head + binary + binary + numbers + nothing + numbers + headers + text + text
