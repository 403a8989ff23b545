"""What `flowstone topic describe` says about the disks, with a broker's page and without."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from flowstone.cli.topic.disk_use import TopicDisks
from tests.support.running_app import RunningApp
from tests.support.wire_client import batch_of

Run = Callable[..., CompletedProcess[str]]
ONLINE = {
    "path": "/data",
    "state": "online",
    "usable_bytes": 10 << 30,
    "total_bytes": 100 << 30,
    "refuses_records": False,
    "seconds_left": None,
    "is_low": False,
    "has_enough_history": True,
    "history_seconds": 6 * 3600,
    "grown_bytes": 0,
    "filling_bytes_per_second": 0.0,
}
GROWING = {"grown_bytes": 3 << 30, "filling_bytes_per_second": 150_000.0}
SPACE = "disk /data: 10.0 GiB free of 100.0 GiB"


def address(broker: RunningApp) -> str:
    host, port = broker.app.addresses["PLAINTEXT"]
    return f"{host}:{port}"


def test_a_topics_size_segments_age_and_growth_are_shown(run: Run, tmp_path: Path) -> None:
    with RunningApp(str(tmp_path), http_listener="127.0.0.1:0") as broker, broker.client() as client:
        client.create_topic("orders", 2)
        client.produce("orders", batch_of(b"v" * 100))
        lines = run("topic", "describe", "orders", "--bootstrap", address(broker)).stdout.splitlines()
        (told,) = [
            json.loads(line)
            for line in run("topic", "describe", "orders", "--json", "--bootstrap", address(broker)).stdout.splitlines()
        ]
    assert lines[1].split()[-4:] == ["size", "segments", "oldest", "growth"]
    assert lines[3].split()[-4:] == ["B", "0", "-", "0", "B/s"][-4:]
    assert lines[4].startswith(f"disk {tmp_path}: ")
    first = told["partitions"][0]
    assert (first["directory"], first["segments"]) == (str(tmp_path), 1)
    assert first["size_bytes"] > 100
    assert told["directories"][0]["path"] == str(tmp_path)


def test_without_the_page_the_reason_is_told(run: Run, tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as broker, broker.client() as client:
        client.create_topic("orders")
        lines = run("topic", "describe", "orders", "--bootstrap", address(broker)).stdout.splitlines()
    assert lines[-1] == (
        "sizes, ages and free disk space are not known: the broker serves no HTTP pages (http.listener is off)"
    )


def test_a_topic_with_an_offline_partition_is_shown(run: Run, tmp_path: Path) -> None:
    data = f"{tmp_path}/a,{tmp_path}/b"
    with RunningApp(data) as broker, broker.client() as client:
        client.create_topic("orders", 2)
        for partition in range(2):
            client.produce("orders", batch_of(b"v"), partition=partition)
    (tmp_path / "b" / "meta.properties").write_bytes(b"nonsense")
    with RunningApp(data, http_listener="127.0.0.1:0") as broker:
        lines = run("topic", "describe", "orders", "--bootstrap", address(broker)).stdout.splitlines()
    assert lines[3].split()[:3] == ["1", "-", "-"]
    assert f"disk {tmp_path}/b: OFFLINE, " in lines[5]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({}, f"{SPACE}, its logs did not grow in the last 6.0 h"),
        ({"has_enough_history": False}, f"{SPACE}, no forecast yet: too little history"),
        (GROWING, f"{SPACE}, its logs grew by 3.0 GiB in 6.0 h, not full for a long time"),
        (
            {**GROWING, "seconds_left": 7200},
            f"{SPACE}, full in 2.0 h if its logs keep growing as in the last 6.0 h, by 3.0 GiB",
        ),
        ({"is_low": True, "has_enough_history": False}, f"{SPACE} (LOW), no forecast yet: too little history"),
        ({"refuses_records": True}, "disk /data: FULL, 10.0 GiB free of 100.0 GiB: new records are refused"),
        ({"state": "offline", "reason": "gone"}, "disk /data: OFFLINE, gone"),
    ],
)
def test_a_directorys_state_is_a_line(changed: dict[str, object], line: str) -> None:
    assert TopicDisks({0: {"size_bytes": 1}}, [{**ONLINE, **changed}], None).lines() == [line]


def test_an_empty_topic_has_no_forecast() -> None:
    growing = {**ONLINE, **GROWING, "seconds_left": 7200}
    assert TopicDisks({0: {"size_bytes": 0}}, [growing], None).lines() == [SPACE]
