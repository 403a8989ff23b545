"""A disk that says no: a failed flush ends the whole log directory, and for good (S6); a failed read, one partition.

strace lets the chosen system call fail on the chosen file, and counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from flowstone.errors import ErrorCode
from flowstone.log.lifecycle.directory_identity import CLEAN_SHUTDOWN_MARKER

from .checker import ACKS_ALL
from .crash_points import HAS_TRACER
from .damage import batches, log_files
from .filled_broker import FilledBroker
from .raw_client import RawClient, Refused

pytestmark = pytest.mark.skipif(not HAS_TRACER, reason="needs strace, to let system calls fail")
EXIT_FAILURE = 1
BATCHES_MAX = 100
UNFLUSHED_MAX_S = 30.0  # with acks=1 any number may come before the third flush


def failing(path: Path, system_call: str, when: str, trace: Path) -> Sequence[str]:
    """strace that lets the call fail on that file, and writes down each of them."""
    return [
        *("strace", "-f", "-qqq", "-o", str(trace), "-P", str(path)),
        *("-e", f"trace={system_call}", "-e", f"inject={system_call}:error=EIO:when={when}"),
    ]


def stop_cleanly(filled: FilledBroker) -> None:
    assert filled.start().wait_ready().terminate() == 0


def _fill_until_refused(filled: FilledBroker, client: RawClient, acks: int) -> None:
    """Produce until the broker refuses a batch: with acks=all at most BATCHES_MAX, else for UNFLUSHED_MAX_S."""
    ends_s = time.monotonic() + (0 if acks == ACKS_ALL else UNFLUSHED_MAX_S)
    filled.fill(client, BATCHES_MAX, acks, "unlucky")
    while time.monotonic() < ends_s:
        filled.fill(client, BATCHES_MAX, acks, "unlucky")


@pytest.mark.parametrize("acks", [1, ACKS_ALL])
def test_after_a_failed_flush_nothing_is_acknowledged_or_tried_again_and_the_broker_ends_saying_so(
    filled: FilledBroker, tmp_path: Path, acks: int
) -> None:
    stop_cleanly(filled)
    active, trace = log_files(filled.data, filled.partitions[0])[-1], tmp_path / "trace"
    # The flush thread's third flush of that file; if it were tried again, it would succeed.
    tracer = failing(active, "fdatasync", "3", trace)
    broker = filled.start({"num.flush.threads": "1"}, tracer=tracer).wait_ready()
    with RawClient(broker.bootstrap) as client, pytest.raises((Refused, ConnectionError)) as refused:
        _fill_until_refused(filled, client, acks)
    if isinstance(refused.value, Refused):
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.wait_exit() == EXIT_FAILURE, broker.output
    assert "the data directory has failed" in broker.output
    calls = trace.read_text().splitlines()
    assert "EIO" in calls[-1], "the file was flushed again"
    assert not (filled.data / CLEAN_SHUTDOWN_MARKER).exists()
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert not filled.check(client), broker.output


@pytest.mark.parametrize("system_call", ["preadv2", "pread64"], ids=["in the page cache", "on the disk"])
def test_a_failed_read_takes_that_partition_offline_and_no_other(
    filled: FilledBroker, tmp_path: Path, system_call: str
) -> None:
    stop_cleanly(filled)
    hit, other = filled.partitions
    sealed = log_files(filled.data, hit)[0]
    offset = batches(sealed)[10].header.base_offset
    if system_call == "pread64":
        _drop_from_page_cache(sealed)
    with filled.start(tracer=failing(sealed, system_call, "1+", tmp_path / "trace")) as broker:
        with RawClient(broker.bootstrap) as client:
            for wanted in (offset, 0):
                with pytest.raises(Refused) as refused:
                    client.fetch(hit, wanted)
                assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            filled.partitions = [other]
            filled.fill(client, 5, producer="others go on")
        assert f"partition {hit} is offline" in broker.output
        assert broker.terminate() == 0
    filled.partitions = [hit, other]
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert not filled.check(client), broker.output


def test_a_failed_write_takes_that_partition_offline_and_keeps_what_was_there(
    filled: FilledBroker, tmp_path: Path
) -> None:
    stop_cleanly(filled)
    hit, other = filled.partitions
    active = log_files(filled.data, hit)[-1]
    with filled.start(tracer=failing(active, "pwritev2", "2+", tmp_path / "trace")) as broker:
        with RawClient(broker.bootstrap) as client:
            filled.partitions = [hit]
            with pytest.raises(Refused) as refused:
                filled.fill(client, BATCHES_MAX, producer="unlucky")
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            filled.partitions = [other]
            filled.fill(client, 5, producer="others go on")
        assert f"partition {hit} is offline" in broker.output
    filled.partitions = [hit, other]
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert not filled.check(client), broker.output


def _drop_from_page_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
