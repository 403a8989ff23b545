"""Consumers that stall or read old data from the disk must not slow a producer down."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.wire_client import batch_of, fetch_request, frame

MIB = 1 << 20
READER = Path(__file__).with_name("reader.py")
OLD_BATCHES = 96
ROUNDS = 7
# Noise of a shared machine: below this a tail is as good as any, and ratios of such tails mean nothing.
TAIL_NOISE_S = 0.005
SLOWDOWN_MAX = 2.0

pytestmark = pytest.mark.measures_time


def p99_s(durations):
    return statistics.quantiles(durations, n=100)[98]


def produce_while(client, batch, is_going_on):
    """How long each of the produces took that were made in the meantime."""
    durations = []
    while is_going_on():
        started = time.perf_counter()
        assert client.produce("new", batch, acks=1).error_code == 0
        durations.append(time.perf_counter() - started)
    return durations


def evict(directory):
    """Has the kernel forget the files' pages, so that the next read comes from the disk."""
    for path in directory.glob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def start_reader(broker, requests):
    host, port = broker.address
    return subprocess.Popen([sys.executable, str(READER), host, str(port), str(requests)], stdout=subprocess.PIPE)


def test_a_consumer_of_data_that_is_only_on_disk_slows_a_producer_no_more_than_one_of_cached_data(
    start_broker, tmp_path
):
    """Two processes more share the cores in either case: what is compared is the disk alone."""
    broker = start_broker()
    requests = tmp_path / "requests"
    requests.write_bytes(b"".join(frame(11, fetch_request("old", offset)) for offset in range(OLD_BATCHES)))
    tails: dict[str, list[float]] = {"cached": [], "evicted": []}
    with broker.connect() as client:
        assert client.create_topic("old") == 0
        assert client.create_topic("new") == 0
        old = batch_of(os.urandom(MIB - 1000))
        for _ in range(OLD_BATCHES):
            assert client.produce("old", old).error_code == 0
        batch = batch_of(b"x" * 100)
        for _ in range(ROUNDS):
            for kind, found in tails.items():
                if kind == "evicted":
                    evict(broker.data / "old-0")
                with start_reader(broker, requests) as reader:
                    found.append(p99_s(produce_while(client, batch, lambda reader=reader: reader.poll() is None)))
                    assert reader.stdout is not None
                    assert int(reader.stdout.read()) > OLD_BATCHES * (MIB - 2000)
    cached_s, evicted_s = statistics.median(tails["cached"]), statistics.median(tails["evicted"])
    print(
        f"produce p99, median of {ROUNDS} rounds, while {OLD_BATCHES} MiB are read: {cached_s * 1000:.2f} ms from the "
        f"page cache, {evicted_s * 1000:.2f} ms from the disk"
    )
    assert evicted_s <= max(SLOWDOWN_MAX * cached_s, TAIL_NOISE_S)


def test_a_consumer_that_stops_reading_does_not_slow_a_producer_or_another_consumer(broker, bystander):
    with broker.connect() as client:
        assert client.create_topic("stalled") == 0
        for _ in range(8):
            assert client.produce("stalled", batch_of(os.urandom(MIB - 1000))).error_code == 0
    with bystander(broker) as alone:
        time.sleep(0.5)
    stalled = [broker.connect() for _ in range(10)]
    for client in stalled:
        client.send(frame(11, fetch_request("stalled", 0, max_bytes=8 * MIB)) * 20)
    with bystander(broker) as beside:
        time.sleep(0.5)
    for client in stalled:
        client.close()
    without_s, with_s = p99_s(alone.served_s), p99_s(beside.served_s)
    print(f"round trip p99: {without_s * 1000:.2f} ms alone, {with_s * 1000:.2f} ms beside ten stalled consumers")
    assert with_s <= max(SLOWDOWN_MAX * without_s, 10 * TAIL_NOISE_S)
