"""Expiry of group offsets in a broker whose clock is wrong."""

from __future__ import annotations

import time
from pathlib import Path

from flowstone.ports.clock import SystemClock
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client

TOPIC = "t"
DAY_MS = 24 * 3600 * 1000
SETTINGS = {"offsets_retention_check_interval_ms": "50", "offsets_topic_num_partitions": "1"}
SOON_S = 10.0


class AheadClock(SystemClock):
    def time_ms(self) -> int:
        return super().time_ms() + 30 * DAY_MS


def commit(client: Client, group_id: str, retention_time_ms: int = -1) -> None:
    partition = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
    topics = [m.OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
    request = m.OffsetCommitRequest(group_id=group_id, retention_time_ms=retention_time_ms, topics=topics)
    assert client.ask(4, request).topics[0].partitions[0].error_code == 0


def has_offsets(client: Client, group_id: str) -> bool:
    return bool(client.ask(7, m.OffsetFetchRequest(group_id=group_id, topics=None)).topics)


def test_a_clock_that_starts_days_ahead_expires_no_offsets(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path), **SETTINGS) as app, app.client() as client:
        assert client.create_topic(TOPIC) == 0
        client.ask(0, m.FindCoordinatorRequest(key="kept"))
        commit(client, "kept")
    with RunningApp(str(tmp_path), clock=AheadClock(), **SETTINGS) as app, app.client() as client:
        commit(client, "short", retention_time_ms=-30 * DAY_MS)
        until_s = time.monotonic() + SOON_S
        while has_offsets(client, "short"):  # gone once the offsets of all groups were checked
            assert time.monotonic() < until_s
        assert has_offsets(client, "kept")
