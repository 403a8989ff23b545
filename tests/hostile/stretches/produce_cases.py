"""The most expensive Produce requests: as many batches, topics and records as one may have, good and refused ones."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from flowstone.wire import messages as m
from flowstone.wire.compression import Codec
from flowstone.wire.primitives import PRODUCE_ELEMENTS_MAX
from flowstone.wire.record_batch import Record, build_batch
from tests.hostile.worst_case import WIDE, Case, topic_id

# A compacted topic, which takes only records with keys.
KEYED = "keyed"
WIDE_PARTITIONS = 1000
QUICK, FULL = 2_000, PRODUCE_ELEMENTS_MAX - 1
# Of a batch whose decompressed size lets the loop open it.
OPENED_BYTES = 200_000
# Records of one byte in a batch of a mebibyte.
RECORDS_MAX = 120_000


def produce_cases() -> Iterator[Case]:
    small = _batch(1)
    for acks in (-1, 1, 0):
        yield Case(
            f"Produce of many batches, acks={acks}", 12, lambda n, acks=acks: _many(n, small, acks=acks), QUICK, FULL
        )
    yield Case("Produce by topic id", 13, lambda n: _many(n, small), QUICK, FULL)
    yield Case("Produce of many topics", 9, lambda n: _produce([(WIDE, [(0, small)])] * (n // 2)), QUICK, FULL)
    yield Case(
        "Produce to unknown topics",
        9,
        lambda n: _produce([(f"n{index}", [(0, small)]) for index in range(n // 2)]),
        QUICK,
        FULL,
    )
    yield Case(
        "Produce of compressed batches", 9, lambda n: _many(n, _batch(1, OPENED_BYTES, codec=Codec.GZIP)), 200, FULL
    )
    yield Case("Produce of many records", 9, lambda n: _many(1, _batch(n)), 20_000, RECORDS_MAX)
    yield Case("Produce of many compressed records", 9, lambda n: _many(1, _batch(n, codec=Codec.LZ4)), 20_000, 500_000)
    yield Case("Produce of refused records", 9, lambda n: _many(1, _batch(n), topic=KEYED), 20_000, RECORDS_MAX)
    for records in (1, 50):
        refused = _batch(records)
        yield Case(
            f"Produce of refused batches of {records}", 9, lambda n, b=refused: _many(n, b, topic=KEYED), QUICK, FULL
        )


def _batch(records: int, value_bytes: int = 0, codec: Codec = Codec.NONE) -> bytes:
    now_ms, value = int(time.time() * 1000), bytes(value_bytes)
    return build_batch([Record(offset, now_ms, None, value) for offset in range(records)], codec=codec)


def _many(count: int, batch: bytes, *, topic: str = WIDE, acks: int = -1) -> m.ProduceRequest:
    partitions = WIDE_PARTITIONS if topic == WIDE else 1
    return _produce([(topic, ((index % partitions, batch) for index in range(count)))], acks)


def _produce(topics: Iterable[tuple[str, Iterable[tuple[int, bytes]]]], acks: int = -1) -> m.ProduceRequest:
    return m.ProduceRequest(
        acks=acks,
        timeout_ms=60_000,
        topic_data=[
            m.ProduceRequestTopic(
                name=name,
                topic_id=topic_id(name),
                partition_data=[m.ProduceRequestPartition(index=index, records=batch) for index, batch in batches],
            )
            for name, batches in topics
        ],
    )
