"""What a broker says of groups and their lag: on its pages, in its metrics, in its log."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowstone.broker.http.pages import groups as group_page
from flowstone.broker.lag import group_survey
from flowstone.broker.lag.group_status import GroupStatus, group_document, read_group_document
from flowstone.broker.metrics import group_metrics
from flowstone.config import MIB
from flowstone.embedded import Broker
from flowstone.ports.simulated_files import SimulatedFile, SimulatedFiles
from flowstone.wire.compression import Codec
from flowstone.wire.messages import DeleteTopicsRequest
from flowstone.wire.record_batch import Record, build_batch
from tests.support.group_commits import commit
from tests.support.running_app import RunningApp, get
from tests.support.wire_client import Client, batch_of

TOPIC = "events"
HOUR_MS = 3_600_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path), http_listener="127.0.0.1:0", offsets_topic_num_partitions="2") as running:
        yield running


@pytest.fixture
def client(broker: RunningApp) -> Iterator[Client]:
    with broker.client() as client:
        yield client


def survey(broker: RunningApp, group_id: str = "g") -> GroupStatus:
    found = broker.run(broker.app.survey.group(group_id))
    assert found is not None
    return found


def now_ms() -> int:
    return int(time.time() * 1000)


def batch_at(*timestamps_ms: int, **options: Any) -> bytes:
    records = [Record(index, timestamp, None, b"v") for index, timestamp in enumerate(timestamps_ms)]
    return build_batch(records, **options)


# Lag


def test_lag_is_what_lies_between_the_committed_offset_and_the_high_watermark(
    broker: RunningApp, client: Client
) -> None:
    client.create_topic(TOPIC, 2)
    client.produce(TOPIC, batch_of(b"a", b"b", b"c"))
    commit(client, "g", TOPIC, 1, 0)
    group = survey(broker)
    assert [(each.partition, each.lag) for each in group.partitions] == [(0, 2), (1, 0)]
    assert (group.lag, group.state, group.members) == (2, "Empty", ())


def test_a_group_that_has_read_everything_is_not_behind(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    client.produce(TOPIC, batch_of(b"a"))
    commit(client, "g", TOPIC, 1)
    (partition,) = survey(broker).partitions
    assert (partition.lag, partition.lag_seconds, partition.headroom_seconds) == (0, 0, None)


def test_a_committed_offset_beyond_the_end_is_no_negative_lag(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    commit(client, "g", TOPIC, 100)
    assert survey(broker).lag == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_lag_in_seconds_is_the_age_of_the_next_unread_record_also_within_a_batch(
    broker: RunningApp, client: Client, codec: Codec
) -> None:
    client.create_topic(TOPIC)
    begun_ms = now_ms()
    client.produce(TOPIC, batch_at(*(begun_ms - age_s * 1000 for age_s in (500, 400, 300, 200)), codec=codec))
    for committed, age_s in ((0, 500), (2, 300), (3, 200)):
        commit(client, "g", TOPIC, committed)
        found_s = survey(broker).lag_seconds
        assert found_s is not None
        assert age_s <= found_s <= age_s + (now_ms() - begun_ms) / 1000


def test_with_the_broker_s_own_times_the_age_is_since_the_append(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC, message_timestamp_type="LogAppendTime")
    client.produce(TOPIC, batch_at(now_ms() - HOUR_MS))
    commit(client, "g", TOPIC, 0)
    found_s = survey(broker).lag_seconds
    assert found_s is not None
    assert found_s < 60


def test_records_without_a_time_have_no_age(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    client.produce(TOPIC, batch_at(-1))
    commit(client, "g", TOPIC, 0)
    assert (survey(broker).lag, survey(broker).lag_seconds) == (1, None)


def test_what_is_not_in_the_page_cache_is_read_by_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimulatedFiles()
    warmed: set[tuple[str, int, int]] = set()

    def read(file: SimulatedFile, position: int, count: int) -> bytes:
        warmed.add((file.path, position, count))
        return read_at_once(file, position, count)

    def read_cached(file: SimulatedFile, position: int, count: int) -> bytes | None:
        return read_at_once(file, position, count) if (file.path, position, count) in warmed else None

    with RunningApp("/data", files=files) as broker, broker.client() as client:
        client.create_topic(TOPIC)
        client.produce(TOPIC, batch_at(now_ms() - 60_000))
        client.produce(TOPIC, batch_of(b"a"))
        commit(client, "g", TOPIC, 0)
        read_at_once = SimulatedFile.read
        monkeypatch.setattr(SimulatedFile, "read", read)
        monkeypatch.setattr(SimulatedFile, "read_cached", read_cached)
        reads_before = broker.app.services.workers.read_count
        assert survey(broker).lag_seconds == pytest.approx(60, abs=10)
        reads_after = broker.app.services.workers.read_count
        assert reads_after > reads_before
        survey(broker)
        assert broker.app.services.workers.read_count == reads_after, "what was read is remembered"


def test_a_topic_that_is_deleted_is_not_told_of(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    commit(client, "g", TOPIC, 0)
    client.ask(1, DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=1000))
    assert survey(broker).partitions == ()


def test_who_asks_during_a_look_gets_the_next_one_with_all_others(
    broker: RunningApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they have done before they asked may have come too late for the one under way."""
    begun: list[asyncio.Event] = []

    async def look() -> list[GroupStatus]:
        begun.append(asyncio.Event())
        await begun[-1].wait()
        return []

    async def run() -> None:
        asking = [asyncio.ensure_future(broker.app.survey.all_groups())]
        await asyncio.sleep(0.01)
        asking += [asyncio.ensure_future(broker.app.survey.all_groups()) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert len(begun) == 1
        begun[0].set()
        await asking[0]
        await asyncio.sleep(0.01)
        assert len(begun) == 2
        assert not any(each.done() for each in asking[1:])
        begun[1].set()
        await asyncio.gather(*asking)

    monkeypatch.setattr(broker.app.survey, "_survey", look)
    broker.run(run())


def test_a_group_that_is_not_there_is_none(broker: RunningApp) -> None:
    assert broker.run(broker.app.survey.group("nobody")) is None


# Headroom


def test_headroom_is_until_retention_deletes_the_next_unread_record(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC, retention_ms=str(HOUR_MS))
    client.produce(TOPIC, batch_at(now_ms() - 600_000))
    commit(client, "g", TOPIC, 0)
    assert survey(broker).headroom_seconds == pytest.approx(3000, abs=10)


def test_where_nothing_deletes_records_there_is_no_headroom(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC, retention_ms="-1")
    client.produce(TOPIC, batch_of(b"a"))
    commit(client, "g", TOPIC, 0)
    assert survey(broker).headroom_seconds is None


def test_headroom_by_size_follows_the_append_rate() -> None:
    with Broker() as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        configs = {"retention.ms": "-1", "retention.bytes": str(3 * MIB), "segment.bytes": str(MIB)}
        broker.create_topic(TOPIC, configs=configs)
        batch = batch_of(b"x" * (MIB // 4))
        with Client((host, int(port))) as client:
            commit(client, "g", TOPIC, 0)
            client.produce(TOPIC, batch)
            assert broker.groups()["g"].headroom_seconds is None  # no rate is known yet
            for _ in range(8):
                client.produce(TOPIC, batch)
            broker.clock.advance(seconds=20)
            found_s = broker.groups()["g"].headroom_seconds
        # 2 MiB in 20 s. The first segment has three batches; three MiB and they must be there for it to go.
        expected_s = (3 * MIB + 3 * len(batch) - 9 * len(batch)) / (8 * len(batch) / 20)
        assert found_s == pytest.approx(expected_s, rel=0.1)


def test_records_that_retention_took_first_are_counted_as_lost() -> None:
    with Broker() as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        broker.create_topic(TOPIC, configs={"retention.ms": str(HOUR_MS)})
        with Client((host, int(port))) as client:
            client.produce(TOPIC, batch_of(b"a", b"b", b"c"))
            commit(client, "g", TOPIC, 1)
            broker.clock.advance(hours=2)
        (partition,) = broker.groups()["g"].partitions
        assert (partition.lost, partition.headroom_seconds, partition.is_headroom_low) == (2, 0, True)
        assert (partition.lag, partition.lag_seconds) == (2, None)


def test_segments_of_an_earlier_life_are_told_of_too(tmp_path: Path) -> None:
    with Broker(data=str(tmp_path)) as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        broker.create_topic(TOPIC, configs={"retention.ms": str(HOUR_MS), "segment.bytes": str(MIB)})
        with Client((host, int(port))) as client:
            for age_ms in (600_000, 500_000, 0):
                records = [Record(0, now_ms() - age_ms, None, b"x" * (MIB // 2))]
                client.produce(TOPIC, build_batch(records))
            commit(client, "g", TOPIC, 0)
        broker.restart()
        group = broker.groups()["g"]
        assert (group.lag, group.lag_seconds) == (3, pytest.approx(600, abs=10))
        assert group.headroom_seconds == pytest.approx(3600 - 600, abs=10)


# The page


def test_the_page_has_all_groups_by_name(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    client.produce(TOPIC, batch_of(b"a", b"b"))
    for name in ("b", "a"):
        commit(client, name, TOPIC, 1)
    status, body = broker.get("/groups")
    page = json.loads(body)
    assert (status, page["left_out"]) == (200, 0)
    assert [(group["group"], group["lag"]) for group in page["groups"]] == [("a", 1), ("b", 1)]
    assert {"lag", "lag_seconds", "headroom_seconds"} <= page["groups"][0]["partitions"][0].keys()


def test_the_page_of_one_group_has_that_one(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    for name in ("with space & more", "other"):
        commit(client, name, TOPIC, 0)
    page = json.loads(broker.get("/groups?group=with%20space%20%26%20more")[1])
    assert [group["group"] for group in page["groups"]] == ["with space & more"]
    assert json.loads(broker.get("/groups?group=nobody")[1])["groups"] == []


def test_what_the_page_says_reads_back_as_it_was(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    commit(client, "g", TOPIC, 0)
    group = survey(broker)
    assert read_group_document(json.loads(json.dumps(group_document(group)))) == group


def test_a_page_that_would_be_too_long_says_how_much_it_left_out(
    broker: RunningApp, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_page, "GROUPS_MAX", 2)
    client.create_topic(TOPIC)
    for name in ("a", "b", "c"):
        commit(client, name, TOPIC, 0)
    page = json.loads(broker.get("/groups")[1])
    assert ([group["group"] for group in page["groups"]], page["left_out"]) == (["a", "b"], 1)


# Metrics


def test_metrics_show_the_groups_as_of_the_last_look(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    client.produce(TOPIC, batch_of(b"a", b"b"))
    commit(client, 'quo"te', TOPIC, 1)
    broker.run(broker.app.survey.look())
    text = broker.get("/metrics")[1]
    assert 'flowstone_groups{state="Empty"} 1\n' in text
    assert 'flowstone_group_lag_records{group="quo\\"te",topic="events",partition="0"} 1\n' in text


def test_labels_of_groups_are_bounded(broker: RunningApp, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_metrics, "GROUP_LABELS_MAX", 2)
    monkeypatch.setattr(group_metrics, "PARTITION_LABELS_MAX", 1)
    client.create_topic(TOPIC)
    for name in ("a", "b", "c", "n" * (group_metrics.GROUP_NAME_LABEL_MAX + 1)):
        commit(client, name, TOPIC, 0)
    broker.run(broker.app.survey.look())
    text = broker.get("/metrics")[1]
    assert 'flowstone_groups{state="Empty"} 4\n' in text
    assert text.count("flowstone_group_members{") == 2
    assert text.count("flowstone_group_lag_records{") == 1
    assert "nnn" not in text


def test_groups_are_looked_at_by_themselves() -> None:
    with Broker(http=True) as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        broker.create_topic(TOPIC)
        with Client((host, int(port))) as client:
            commit(client, "g", TOPIC, 0)
        broker.clock.advance(seconds=group_survey.SAMPLE_INTERVAL_S)
        assert broker.http is not None
        address, deadline = broker.http.removeprefix("http://"), time.monotonic() + 10
        while 'flowstone_group_members{group="g"} 0' not in get(address, "/metrics")[1]:
            assert time.monotonic() < deadline


# The log


def test_a_group_short_of_headroom_is_warned_of_once_and_spoken_of_again_when_it_is_not(
    broker: RunningApp, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowstone.broker.lag.headroom_alarm")
    client.create_topic(TOPIC, retention_ms=str(HOUR_MS))
    client.produce(TOPIC, batch_at(now_ms() - HOUR_MS + 60_000))
    commit(client, "g", TOPIC, 0)
    for _ in range(2):
        broker.run(broker.app.survey.look())
    (warning,) = caplog.messages
    assert warning.startswith("group g is too far behind in events-0: retention deletes its next unread record in ")
    assert 'flowstone_group_headroom_low_partitions{group="g"} 1\n' in broker.get("/metrics")[1]
    commit(client, "g", TOPIC, 1)
    broker.run(broker.app.survey.look())
    assert caplog.messages[1:] == ["group g is no longer too far behind"]


def test_the_part_of_the_headroom_that_an_active_segment_adds_is_told() -> None:
    week_s = 7 * 24 * 3600
    with Broker() as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        broker.create_topic(TOPIC, configs={"retention.ms": str(week_s * 1000), "segment.ms": str(week_s * 1000)})
        with Client((host, int(port))) as client:
            commit(client, "g", TOPIC, 0)
            client.produce(TOPIC, batch_of(b"first"))
            assert broker.groups()["g"].partitions[0].growing_seconds == 0  # no rate is known yet
            client.produce(TOPIC, batch_of(b"x" * 1000))
            broker.clock.advance(seconds=20)
            (lag,) = broker.groups()["g"].partitions
    assert lag.growing_seconds == pytest.approx(week_s, abs=60)
    assert lag.headroom_seconds == pytest.approx(2 * week_s, abs=60)
