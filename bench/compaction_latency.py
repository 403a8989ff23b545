"""The effect of compaction on a producer's latency: synchronous acks=all produce requests, with and without it.

    python -m bench.compaction_latency

A compacted topic is filled while compaction is disabled. The latency of the producer, which uses another topic, is
measured first without compaction, then until compaction has finished. Compaction's own rate is shown too: a low latency
must not be the result of slow compaction. The old segments are removed a minute later, as by default; with
`--delete-at-once`, during the measurement.
"""

from __future__ import annotations

import argparse
import os
import time
from array import array

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bench import topics
from bench.compaction import NEVER_MS, Case, fill
from bench.connection import Connection
from bench.latency import Appender
from bench.load import percentile_ms
from bench.servers import Flowstone

TABLE, BESIDE = "table", "beside"
SEGMENT_BYTES = 64 << 20
ACKS_ALL = -1
DELETE_DELAY_MS = 60_000


def timed(appender: Appender, seconds: float, server: Flowstone | None) -> array[float]:
    """Return the latencies for that many seconds, or until the server has compacted the table."""
    latencies = array("d")
    clock, deadline = time.monotonic, time.monotonic() + seconds
    while clock() < deadline and (server is None or len(latencies) % 100 or not is_compacted(server)):
        started = clock()
        appender.send()
        appender.receive()
        latencies.append(clock() - started)
    return latencies


def is_compacted(server: Flowstone) -> bool:
    checkpoint = server.data / "cleaner-offset-checkpoint"
    return checkpoint.exists() and f"{TABLE} 0 " in checkpoint.read_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of the measurement without compaction")
    parser.add_argument("--delete-at-once", action="store_true", help="remove old segments during the measurement")
    options = parser.parse_args()
    log_bytes = options.mb << 20
    delay_ms = 0 if options.delete_at_once else DELETE_DELAY_MS
    with Flowstone({"log.cleaner.backoff.ms": "200", "log.segment.delete.delay.ms": str(delay_ms)}) as server:
        admin = AdminClient({"bootstrap.servers": server.address})
        config = {
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": str(NEVER_MS),
            "segment.bytes": str(SEGMENT_BYTES),
            "flush.messages": "1000000",
        }
        for made in admin.create_topics([NewTopic(TABLE, 1, config=config)]).values():
            made.result()
        fill(server.address, TABLE, Case(100, "none", log_bytes, log_bytes // 600))
        os.sync()  # otherwise the system does this during the measurement
        with Connection(server.address) as connection:
            topics.create(connection, BESIDE, 1)
            appender = Appender(connection, BESIDE, ACKS_ALL)
            timed(appender, 1.0, None)
            without = timed(appender, options.seconds, None)
            entry = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, TABLE, incremental_configs=[entry])
            for altered in admin.incremental_alter_configs([resource]).values():
                altered.result()
            started = time.monotonic()
            beside = timed(appender, 300.0, server)
            took_s = time.monotonic() - started
        print("| produce, acks=all | p50 ms | p99 ms |\n|---|---|---|")
        for name, latencies in (("without", without), ("while it compacts", beside)):
            print(f"| {name} | {percentile_ms(latencies, 0.50):.2f} | {percentile_ms(latencies, 0.99):.2f} |")
        ratio = percentile_ms(beside, 0.99) / percentile_ms(without, 0.99)
        print(
            f"\np99 ratio {ratio:.2f}; {options.mb} MiB compacted in {took_s:.1f} s, {len(beside)} produces meanwhile"
        )


if __name__ == "__main__":
    main()
