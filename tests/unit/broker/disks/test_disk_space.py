"""A disk that fills up: a warning in time, no new records below the floor, all else goes on, and back by itself."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowstone.app import App
from flowstone.broker.disks import disk_space
from flowstone.broker.disks.disk_forecast import LogGrowth
from flowstone.broker.disks.disk_space import FLOOR_BYTES_MAX
from flowstone.config import GIB, MIB
from flowstone.errors import ConfigError, ErrorCode
from flowstone.ports.system_files import SystemFiles
from flowstone.wire.messages import DeleteTopicsRequest, DeleteTopicsRequestTopic, DescribeLogDirsRequest
from tests.support.group_commits import commit
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client, batch_of


class Disk(SystemFiles):
    """The machine's own, that says how much space it has as it is told to."""

    usable_bytes, total_bytes = 90 * GIB, 100 * GIB
    error: OSError | None = None

    def free_bytes(self, path: str) -> tuple[int, int]:
        if self.error is not None:
            raise self.error
        return self.usable_bytes, self.total_bytes


class Broker(RunningApp):
    disk: Disk

    def look(self) -> None:
        """As the timer does."""
        self.call(lambda: [self._look(space) for space in self.spaces])

    def _look(self, space: Any) -> None:
        self.app._disks._note(space, *space.directory.free_bytes())

    @property
    def spaces(self) -> Any:
        return self.app._disks.directories

    def fill_to(self, usable_bytes: int) -> None:
        self.disk.usable_bytes = usable_bytes
        self.look()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    disk = Disk()
    with Broker(str(tmp_path), files=disk, http_listener="127.0.0.1:0") as broker:
        broker.disk = disk
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with broker.client() as client:
        client.create_topic("events", 2)
        client.produce("events", batch_of(b"first"))
        yield client


def produced(client: Client, topic: str = "events") -> tuple[ErrorCode, str | None]:
    answer = client.produce(topic, batch_of(b"more"))
    return ErrorCode(answer.error_code), answer.error_message


def test_below_the_floor_new_records_are_refused_with_the_reason(broker: Broker, client: Client) -> None:
    broker.fill_to(FLOOR_BYTES_MAX - 1)
    code, message = produced(client)
    assert code is ErrorCode.KAFKA_STORAGE_ERROR
    assert f"has {FLOOR_BYTES_MAX - 1} bytes left; below {FLOOR_BYTES_MAX}" in (message or "")


def test_below_the_floor_all_else_goes_on(broker: Broker, client: Client) -> None:
    broker.fill_to(0)
    assert client.end_offset("events") == 1
    commit(client, "readers", "events", 1)
    client.create_topic("another")
    wanted = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="events")], timeout_ms=1000)
    assert client.ask(6, wanted).responses[0].error_code == ErrorCode.NONE


def test_records_are_taken_again_by_itself_once_there_is_space(broker: Broker, client: Client) -> None:
    broker.fill_to(0)
    broker.fill_to(FLOOR_BYTES_MAX + 1)
    assert produced(client)[0] is ErrorCode.KAFKA_STORAGE_ERROR  # not back and forth
    broker.fill_to(2 * FLOOR_BYTES_MAX)
    assert produced(client)[0] is ErrorCode.NONE


def test_the_disk_is_looked_at_without_anybody_asking(broker: Broker, client: Client) -> None:
    broker.fill_to(FLOOR_BYTES_MAX + 1)  # so near to the floor it is looked at ten times a second
    broker.disk.usable_bytes = 0
    while produced(client)[0] is ErrorCode.NONE:
        pass
    broker.disk.usable_bytes = 90 * GIB
    while produced(client)[0] is not ErrorCode.NONE:
        pass


def test_producers_that_are_faster_than_the_looks_do_not_get_past_the_floor(broker: Broker, client: Client) -> None:
    broker.fill_to(FLOOR_BYTES_MAX + 1)
    broker.disk.usable_bytes = FLOOR_BYTES_MAX - 1
    assert produced(client)[0] is ErrorCode.KAFKA_STORAGE_ERROR


def test_the_floor_of_a_small_disk_is_a_hundredth_of_it(broker: Broker, client: Client) -> None:
    broker.disk.total_bytes = 100 * MIB
    broker.fill_to(2 * MIB)
    assert produced(client)[0] is ErrorCode.NONE
    broker.fill_to(MIB - 1)
    assert produced(client)[0] is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(("floor", "code"), [("0", ErrorCode.NONE), (str(GIB), ErrorCode.KAFKA_STORAGE_ERROR)])
def test_the_floor_can_be_set(tmp_path: Path, floor: str, code: ErrorCode) -> None:
    disk = Disk()
    disk.usable_bytes = GIB - 1
    with Broker(str(tmp_path), files=disk, log_dir_free_min_bytes=floor) as broker, broker.client() as client:
        client.create_topic("events")
        assert produced(client)[0] is code


def test_one_full_directory_does_not_hold_up_another(tmp_path: Path) -> None:
    with (
        Broker(f"{tmp_path}/a,{tmp_path}/b", files=Disk()) as broker,
        broker.client() as client,
    ):
        client.create_topic("events", 2)
        broker.call(lambda: broker.app._disks._note(broker.spaces[0], 0, GIB))
        codes = [client.produce("events", batch_of(b"v"), partition=number).error_code for number in range(2)]
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]


def test_it_is_told_when_records_are_refused_and_taken_again(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    for usable_bytes in (0, 1, 90 * GIB, 90 * GIB):
        broker.fill_to(usable_bytes)
    told = [(each.levelno, each.message) for each in caplog.records if "disk_space" in each.name]
    assert [level for level, _ in told] == [logging.ERROR, logging.WARNING]
    assert "accepts no new records: delete topics, or lower retention.ms" in told[0][1]
    assert "accepts new records" in told[1][1]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if "disk_space" in each.name and each.levelno >= logging.WARNING]


def test_logs_that_will_fill_the_disk_soon_are_warned_of_once(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    (space,) = broker.spaces

    def grow() -> None:
        space.growth = LogGrowth()
        for minute in range(61):
            space.growth.note(minute * 60.0, minute * GIB // 2, 90 * GIB - minute * GIB // 2)
        broker.app._disks._note(space, 60 * GIB, 100 * GIB)
        broker.app._disks._note(space, 60 * GIB, 100 * GIB)

    broker.call(grow)
    (told,) = warnings_in(caplog)
    assert (
        "will accept no more records in 119 minutes if its logs continue to grow: by 30.0 GiB in the last 60 minutes"
        in told
    )
    page = broker.get("/metrics")[1]
    labels = f'{{directory="{broker.app.config.log_dirs}"}}'
    assert f"flowstone_log_directory_low{labels} 1\n" in page
    assert f"flowstone_log_directory_seconds_left{labels} 7140" in page
    (directory,) = json.loads(broker.get("/disks")[1])["directories"]
    assert (directory["seconds_left"], directory["grown_bytes"], directory["history_seconds"]) == (7140, 30 * GIB, 3600)


def test_a_forecast_that_varies_is_warned_of_once(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (space,) = broker.spaces

    def free(*gibibytes: int) -> None:
        space.growth = LogGrowth()  # of 30 GiB an hour: 180 GiB are taken in the six hours of the threshold
        for minute in range(61):
            space.growth.note(minute * 60.0, minute * GIB // 2, 900 * GIB)
        for each in gibibytes:
            broker.app._disks._note(space, each * GIB, 1000 * GIB)

    broker.call(lambda: free(170, 190, 170, 190, 300, 170, 300, 300, 170))
    assert len(warnings_in(caplog)) == 1
    assert space.is_filling
    monkeypatch.setattr(disk_space, "FORECAST_RELIEF_S", 0.0)
    broker.call(lambda: free(300, 300))
    assert not space.is_filling
    broker.call(lambda: free(170))
    assert len(warnings_in(caplog)) == 2


def test_a_disk_that_other_programs_fill_is_no_reason_to_warn(
    broker: Broker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A fresh broker, and a disk that loses a GiB a minute to others, for an hour and a half."""
    (space,) = broker.spaces

    def hours_pass() -> None:
        size_bytes = broker.app.services.partitions.get("events", 0).log.size_bytes
        for minute in range(80):
            space.growth.note(minute * 60.0, size_bytes, (90 - minute) * GIB)
            broker.app._disks._note(space, (90 - minute) * GIB, 100 * GIB)

    broker.call(hours_pass)
    assert warnings_in(caplog) == []
    (directory,) = json.loads(broker.get("/disks")[1])["directories"]
    assert (directory["seconds_left"], directory["is_low"]) == (None, False)
    assert directory["others_bytes"] == 79 * GIB


def test_free_space_that_is_really_low_is_told_whoever_has_filled_the_disk(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    (space,) = broker.spaces
    broker.call(lambda: [space.growth.note(hour * 3600.0, MIB, (60 - 20 * hour) * GIB) for hour in range(3)])
    for usable_bytes in (3 * GIB, 2 * GIB - 1, GIB, 2 * GIB):  # the floor is 512 MiB, and low is below four of them
        broker.fill_to(usable_bytes)
    (told,) = warnings_in(caplog)
    assert "has only 2.0 GiB free of 100.0 GiB, and accepts no more records below 512.0 MiB" in told
    assert "in the last 2.0 h its logs took 0 B, other programs 40.0 GiB" in told
    assert space.is_low
    broker.fill_to(3 * GIB)
    assert not space.is_low


def test_what_the_logs_take_is_added_up_by_itself(broker: Broker, client: Client) -> None:
    (space,) = broker.spaces
    before = space.growth._samples[-1].logs_bytes if space.growth._samples else 0
    client.produce("events", batch_of(b"x" * 10_000))
    broker.call(lambda: asyncio.ensure_future(broker.app._disks._sample_rates()))
    while not space.growth._samples or space.growth._samples[-1].logs_bytes <= before + 10_000:
        client.end_offset("events")
    log = broker.app.services.partitions.get("events", 0).log
    assert space.growth._samples[-1].logs_bytes >= log.size_bytes


def test_a_disk_that_cannot_even_tell_is_looked_into(broker: Broker, client: Client) -> None:
    broker.fill_to(FLOOR_BYTES_MAX + 1)
    broker.disk.error = OSError(errno.EIO, "a broken disk")
    broker.call(lambda: broker.app._disks._measure(broker.spaces[0]))
    assert produced(client)[0] is ErrorCode.NONE  # a file can still be written, so nothing has failed


def test_a_measurement_that_ends_after_the_stop_schedules_no_other(broker: Broker, client: Client) -> None:
    def stop_while_measuring() -> None:
        disks, (space,) = broker.app._disks, broker.spaces
        measured: asyncio.Future[tuple[int, int]] = asyncio.Future()
        measured.set_result(broker.disk.free_bytes(""))
        disks.stop()
        space.timer = None
        disks._measured(space, 0, measured)
        assert space.timer is None

    broker.call(stop_while_measuring)


def test_the_page_has_the_directories_and_a_topics_partitions(broker: Broker, client: Client) -> None:
    page = json.loads(broker.get("/disks?topic=events")[1])
    (directory,) = page["directories"]
    assert directory["path"] == broker.app.config.log_dirs
    assert (directory["usable_bytes"], directory["total_bytes"]) == (90 * GIB, 100 * GIB)
    assert (directory["state"], directory["refuses_records"], directory["seconds_left"]) == ("online", False, None)
    first, second = page["partitions"]
    assert (first["partition"], first["segments"], first["directory"]) == (0, 1, directory["path"])
    assert first["size_bytes"] > 0
    assert first["oldest_timestamp_ms"] is not None
    assert (second["size_bytes"], second["segments"], second["oldest_timestamp_ms"]) == (0, 0, None)


def test_a_partitions_growth_is_told(broker: Broker, client: Client) -> None:
    log = broker.app.services.partitions.get("events", 0).log

    def grow() -> float:
        rates = broker.app._disks._rates
        rates.of(log, 1e9)
        before = log.size_bytes
        log.append(batch_of(b"x" * 1000), leader_epoch=0)
        return rates.of(log, 1e9 + 10) - (log.size_bytes - before) / 10

    assert abs(broker.call(grow)) < 1e-6


def test_a_directory_that_could_not_be_opened_is_on_the_page_with_the_reason(tmp_path: Path) -> None:
    paths = f"{tmp_path}/a,{tmp_path}/b"
    with RunningApp(paths):
        pass
    (tmp_path / "b" / "meta.properties").write_bytes(b"nonsense")
    with RunningApp(paths, http_listener="127.0.0.1:0") as broker:
        online, offline = json.loads(broker.get("/disks")[1])["directories"]
        assert (online["state"], offline["state"]) == ("online", "offline")
        assert "meta.properties is damaged" in offline["reason"]
        with broker.client() as client:
            described = client.ask(4, DescribeLogDirsRequest(topics=None)).results
        assert [each.error_code for each in described] == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]
        failed = f'flowstone_log_directory_failed{{directory="{tmp_path}/b"}} 1'
        assert failed in broker.get("/metrics")[1]


def test_the_same_directory_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"log\.dirs: name a directory, or several different ones"):
        App({"log.dirs": "a, a"})
