"""The cost of checking compressed batches before they are stored: `python -m bench.micro.opening`.

Processor time of `check_batch` per batch, by codec, with `flowstone.validation` set to `header` and `records`. All
batches differ: one repeated batch would be decoded at twice the speed. The result is the minimum of several alternating
rounds, so that other load has little effect.
"""

from __future__ import annotations

import argparse
import time
from random import Random

from flowstone.config import TopicConfig
from flowstone.log.partition.validation import check_batch
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import Record, build_batch

BATCHES = 300
ROUNDS = 7
VALUE_BYTES = 100
NOW_MS = 1_700_000_000_000
CONFIGS = {name: TopicConfig(flowstone_validation=name) for name in ("header", "records")}


def batches(codec: Codec, record_count: int) -> list[memoryview]:
    randomness = Random(codec)
    words = [randomness.randbytes(4).hex() for _ in range(500)]

    def value() -> bytes:
        return " ".join(randomness.choices(words, k=VALUE_BYTES // 8)).encode()[:VALUE_BYTES]

    def batch() -> bytes:
        return build_batch([Record(at, NOW_MS, b"key", value()) for at in range(record_count)], codec=codec)

    return [memoryview(bytearray(batch())) for _ in range(BATCHES)]


def microseconds(produced: list[memoryview], config: TopicConfig) -> float:
    started_s = time.thread_time()
    for batch in produced:
        check_batch(batch, config, NOW_MS)
    return (time.thread_time() - started_s) / len(produced) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=150, help="records per batch (150 make 16 KB)")
    chosen = parser.parse_args()
    print("codec    bytes   header  records   (µs per batch)")
    for codec in Codec:
        produced = batches(codec, chosen.records)
        rounds = [[microseconds(produced, config) for config in CONFIGS.values()] for _ in range(ROUNDS)]
        header, records = (min(each) for each in zip(*rounds, strict=True))
        print(f"{codec.name.lower():6} {len(produced[0]):7} {header:8.1f} {records:8.1f}")


if __name__ == "__main__":
    main()
