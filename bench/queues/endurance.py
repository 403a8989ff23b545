"""`python -m bench.queues.endurance`: whether memory and the state topic stay bounded under many acknowledgements.

Kafka's share consumers read one partition of Flowstone and accept every record, ten million by default. After each
million the broker's memory and the bytes of the state topic on disk are printed. The state topic may have three
segments (the active one, the one before, and what is written until the next check), and memory may not grow by more
than `RSS_GROWTH_MB_MAX` after the first two million. The exit status is 1 if it is otherwise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench.modes import FLOWSTONE, NOT_FLUSHED
from bench.queues.__main__ import ONE_REPLICA, ROUND_SECONDS_MAX, Groups
from bench.queues.load import ShareLoad, compile_load
from bench.servers import Flowstone

RECORDS, STEP, SETTLED_AFTER = 10_000_000, 1_000_000, 2_000_000
PART = 200_000  # records that are produced and then consumed
CONSUMERS = 8
SEGMENT_BYTES, SEGMENTS_MAX = 1 << 20, 3
RSS_GROWTH_MB_MAX = 32.0
SETTINGS = {
    **NOT_FLUSHED.settings[FLOWSTONE],
    **ONE_REPLICA,
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.segment.bytes": str(SEGMENT_BYTES),
    "share.coordinator.state.topic.prune.interval.ms": "5000",
    # So that state is written often: a small window makes fetches and acknowledgements small.
    "group.share.partition.max.record.locks": "100",
}


def state_bytes(data: Path) -> int:
    return sum(file.stat().st_size for file in data.glob("__share_group_state-*/*.log"))


def endure(records: int, ordering: str) -> list[str]:
    """Have records consumed, and print what the broker needs; return what was not within its limit."""
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-queues-") as classes, Flowstone(SETTINGS) as broker:
        compile_load(Path(classes))
        groups = Groups(Path(classes))
        settled_mb = 0.0
        try:
            consumers = groups.of(broker, ShareLoad(CONSUMERS, ordering=ordering))
            for done in range(PART, records + 1, PART):
                consumers.consume(PART, ROUND_SECONDS_MAX)
                if done % STEP:
                    continue
                size, rss_mb = state_bytes(broker.data), broker.rss_mb()
                print(f"{done:12,} records: {rss_mb:7.1f} MB of memory, {size:12,} bytes of state", flush=True)
                if size > SEGMENTS_MAX * SEGMENT_BYTES:
                    problems.append(f"after {done:,} records the state topic has {size:,} bytes")
                if done <= SETTLED_AFTER:
                    settled_mb = rss_mb
                elif rss_mb > settled_mb + RSS_GROWTH_MB_MAX:
                    problems.append(f"after {done:,} records memory has grown from {settled_mb:.1f} to {rss_mb:.1f} MB")
        finally:
            groups.leave()
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.queues.endurance", description="Share groups over time.")
    parser.add_argument("--records", type=int, default=RECORDS, help="records that are accepted (default %(default)s)")
    parser.add_argument("--ordering", choices=("none", "key"), default="none", help="share.ordering (default none)")
    chosen = parser.parse_args()
    problems = endure(chosen.records, chosen.ordering)
    for each in problems:
        print(f"not bounded: {each}")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
