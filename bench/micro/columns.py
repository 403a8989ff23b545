"""Speed of conversion between records and Arrow columns on one core: `python -m bench.micro.columns`.

Rates are records per second of this thread's CPU time, the best of several rounds, which is independent of other load.
The kernel's own line excludes what `Decoder` adds: headers, CRC32C, memory for the columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain

import pyarrow as pa

from flowstone.arrow.decode import Decoder
from flowstone.arrow.encode import Encoder
from flowstone.arrow.schema import COLUMNS
from flowstone.kernel.columns import Batch, Columns, Full, decode_columns
from flowstone.types import TopicPartition
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import HEADER_BYTES, Record, build_batch, parse_header, prefix

VALUE_BYTES = (100, 1000)
TOTAL_BYTES = 100_000_000
ROUNDS = 7
LARGE_BATCH_BYTES = 1_000_000
SMALL_BATCH_BYTES = 16_000  # the Java producer's default
ROWS_PER_ARROW_BATCH = 10_000  # Spark's default for a writer
PARTITION = TopicPartition("orders", 0)
OFFSET_MAX = (1 << 63) - 1

Case = tuple[str, Callable[[], int]]


def main() -> None:
    print(f"{'M records/s on one core':<44}" + "".join(f"{f'{size} B':>9}" for size in VALUE_BYTES))
    for cases in zip(*(_cases(size) for size in VALUE_BYTES), strict=True):
        print(f"{cases[0][0]:<44}" + "".join(f"{rate(run) / 1e6:>9.1f}" for _, run in cases))


def rate(run: Callable[[], int]) -> float:
    """Return the records per second of CPU time in the best round."""
    best = 0.0
    for _ in range(ROUNDS):
        start = time.thread_time()
        count = run()
        best = max(best, count / (time.thread_time() - start))
    return best


def _cases(value_bytes: int) -> Iterator[Case]:
    yield "decode, kernel alone", kernel(value_bytes)
    large, small = _topic(value_bytes, LARGE_BATCH_BYTES), _topic(value_bytes, SMALL_BATCH_BYTES)
    yield "decode, Spark's columns, batches of 1 MB", lambda: _decode(large, COLUMNS)
    yield "decode, Spark's columns, batches of 16 KB", lambda: _decode(small, COLUMNS)
    yield "decode, value alone, batches of 1 MB", lambda: _decode(large, ("value",))
    compressed = _topic(value_bytes, LARGE_BATCH_BYTES, Codec.LZ4)
    yield "decode, Spark's columns, lz4", lambda: _decode(compressed, COLUMNS)
    for partitions in (1, 12):
        for has_keys in (False, True):
            name = f"encode, {'keys' if has_keys else 'no keys'}, partitions: {partitions}"
            yield name, _encode(value_bytes, partitions, has_keys=has_keys)


def _records(value_bytes: int, batch_bytes: int) -> list[Record]:
    return [Record(i, 1_700_000_000_000 + i, None, bytes(value_bytes)) for i in range(batch_bytes // value_bytes)]


def _topic(value_bytes: int, batch_bytes: int, codec: Codec = Codec.NONE) -> memoryview:
    records = _records(value_bytes, batch_bytes)
    batch = build_batch(records, codec=codec)
    length = parse_header(batch).batch_length
    count = TOTAL_BYTES // batch_bytes
    return memoryview(b"".join(prefix(i * len(records), length, 0) + batch[16:] for i in range(count)))


def kernel(value_bytes: int) -> Callable[[], int]:
    records = _records(value_bytes, LARGE_BATCH_BYTES)
    payload = pa.py_buffer(build_batch(records)[HEADER_BYTES:])
    wanted = ("key", "value", "offset", "timestamp")
    columns = Columns(wanted, len(records), dict.fromkeys(Full, 2 * LARGE_BATCH_BYTES), pa.allocate_buffer)
    batch = Batch(payload.size, len(records), 0, len(records) - 1, 0, 0, 0, OFFSET_MAX)
    repeats = TOTAL_BYTES // LARGE_BATCH_BYTES

    def run() -> int:
        for _ in range(repeats):
            columns.call.row_count = 0
            for column in columns.binaries.values():
                column.state.size_bytes = 0
            columns.begin(batch)
            decode_columns(payload, 0, columns)
        assert columns.call.row_count == len(records)
        return repeats * len(records)

    return run


def _decode(fetched: memoryview, columns: tuple[str, ...]) -> int:
    decoder = Decoder(PARTITION, columns, 0, OFFSET_MAX)
    count = 0
    for batch in chain(decoder.feed(fetched), decoder.finish()):
        count += batch.num_rows
    return count


def _encode(value_bytes: int, partitions: int, *, has_keys: bool) -> Callable[[], int]:
    columns = {"value": pa.array([bytes(value_bytes)] * ROWS_PER_ARROW_BATCH)}
    if has_keys:
        columns["key"] = pa.array([f"key-{i}" for i in range(ROWS_PER_ARROW_BATCH)])
    rows = pa.RecordBatch.from_pydict(columns)
    repeats = TOTAL_BYTES // (value_bytes * ROWS_PER_ARROW_BATCH)

    def run() -> int:
        encoder = Encoder(now_ms=0)
        count = 0
        for _ in range(repeats):
            count += sum(batch.record_count for batch in encoder.encode(rows, {"orders": partitions}, "orders"))
        return count

    return run


if __name__ == "__main__":
    main()
