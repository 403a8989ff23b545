"""A clean stop under load: within its bound, nothing lost, and the next start has nothing to check."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from flowstone.log.lifecycle.directory_identity import CLEAN_SHUTDOWN_MARKER
from tests.support.broker_process import BrokerProcess

from .checker import Fault
from .crash_points import HAS_TRACER, CrashPoint
from .damage import log_files
from .filled_broker import FilledBroker
from .raw_client import RawClient
from .rounds import Rounds, describe

SHUTDOWN_TIMEOUT_MS = 5000
STOPS = 3


def test_sigterm_under_load_stops_within_the_bound_and_loses_nothing(tmp_path: Path) -> None:
    took_s: list[float] = []
    marked: list[bool] = []

    def stop(broker: BrokerProcess) -> None:
        started = time.monotonic()
        assert broker.terminate() == 0, broker.output
        took_s.append(time.monotonic() - started)
        marked.append((tmp_path / "data" / CLEAN_SHUTDOWN_MARKER).exists())

    with ExitStack() as stack:
        rounds = Rounds(tmp_path / "data", stack, settings={"shutdown.timeout.ms": str(SHUTDOWN_TIMEOUT_MS)})
        for number in range(STOPS + 1):
            point = CrashPoint("a clean stop", acknowledged=200 if number < STOPS else 0)
            anomalies = rounds.live_and_die(Fault.KILL, point, stop)
            assert not anomalies, describe(anomalies, rounds.output)
        assert " ERROR " not in rounds.output, rounds.output
    assert max(took_s) < SHUTDOWN_TIMEOUT_MS / 1000
    assert all(marked)


@pytest.mark.skipif(not HAS_TRACER, reason="needs strace, to see what is read")
def test_a_start_after_a_clean_stop_scans_no_log(filled: FilledBroker, tmp_path: Path) -> None:
    assert filled.start().wait_ready().terminate() == 0
    trace = tmp_path / "trace"
    files = [path for partition in filled.partitions for path in log_files(filled.data, partition)]
    only_these = [flag for path in files for flag in ("-P", str(path))]
    tracer = [
        "strace",
        "-f",
        "-qqq",
        "-o",
        str(trace),
        *only_these,
        "-e",
        "trace=pread64,preadv2,read",
        "-e",
        "signal=none",
    ]
    broker = filled.start(tracer=tracer).wait_ready()
    assert broker.terminate() == 0
    read_bytes = sum(int(line.rpartition("= ")[2].split()[0]) for line in trace.read_text().splitlines())
    size_bytes = sum(path.stat().st_size for path in files)
    # Of the two active segments, what lies behind their last index entries.
    assert read_bytes < size_bytes / 20, f"{read_bytes} of {size_bytes} bytes were read"


def test_the_clean_shutdown_marker_is_gone_once_the_broker_serves(filled: FilledBroker) -> None:
    assert filled.start().wait_ready().terminate() == 0
    assert (filled.data / CLEAN_SHUTDOWN_MARKER).exists()
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert not (filled.data / CLEAN_SHUTDOWN_MARKER).exists()
        assert not filled.check(client), broker.output
