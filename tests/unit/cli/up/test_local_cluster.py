"""What the brokers of `flowstone up --brokers` are told. That they run: tests/cluster/test_cli.py."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import flowstone
from flowstone.cli.common.errors import CommandError
from flowstone.cli.up.local_cluster import plan_members

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_each_broker_has_a_number_a_directory_and_a_port(tmp_path: Path) -> None:
    values = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:9092", "http.listener": "127.0.0.1:9080"}
    plans = plan_members(3, values)
    assert [plan["node.id"] for plan in plans] == ["1", "2", "3"]
    assert [plan["log.dirs"] for plan in plans] == [f"{tmp_path}/{number}" for number in (1, 2, 3)]
    assert [plan["listeners"] for plan in plans] == [f"PLAINTEXT://127.0.0.1:{port}" for port in (9092, 9093, 9094)]
    assert [plan["http.listener"] for plan in plans] == [f"127.0.0.1:{port}" for port in (9080, 9081, 9082)]


def test_free_ports_stay_free_ports() -> None:
    plans = plan_members(2, {"listeners": "PLAINTEXT://127.0.0.1:0", "http.listener": "127.0.0.1:0"})
    assert {plan["listeners"] for plan in plans} == {"PLAINTEXT://127.0.0.1:0"}
    assert {plan["http.listener"] for plan in plans} == {"127.0.0.1:0"}


def test_topics_have_three_replicas_unless_told_otherwise() -> None:
    assert plan_members(3, {})[0]["default.replication.factor"] == "3"
    assert plan_members(3, {})[0]["min.insync.replicas"] == "2"
    assert plan_members(2, {})[0]["default.replication.factor"] == "2"
    assert plan_members(3, {"default.replication.factor": "1"})[0]["default.replication.factor"] == "1"


@pytest.mark.parametrize(
    ("count", "values", "reason"),
    [
        (0, {}, "choose between 1 and 16"),
        (17, {}, "choose between 1 and 16"),
        (3, {"node.id": "2"}, "leave out --node-id"),
        (3, {"zookeeper.connect": "a:1"}, "leave out --zookeeper"),
        (3, {"log.dirs": "a,b"}, "name one directory"),
        (3, {"listeners": "A://127.0.0.1:1,B://127.0.0.1:2"}, "name one address to listen on"),
        (3, {"listeners": "PLAINTEXT://127.0.0.1:65534"}, "there is no port 65536"),
    ],
)
def test_what_makes_no_sense_for_several_brokers_is_refused(count: int, values: dict[str, str], reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        plan_members(count, values)


def test_a_single_brokers_directory_is_not_taken_for_a_clusters(run_process: Run, tmp_path: Path) -> None:
    with flowstone.Broker(data=str(tmp_path / "data")):
        pass
    result = run_process("up", "--brokers", 3, "--port", 0, "--data", "data")
    assert result.returncode == 1
    assert "is the data directory of a single broker" in result.stderr
    assert "flowstone cluster found" in result.stderr


def test_without_java_it_is_said_what_to_install(run_process: Run, tmp_path: Path) -> None:
    result = run_process("up", "--brokers", 3, "--port", 0, "--data", "data", JAVA_HOME=str(tmp_path))
    assert result.returncode == 1
    assert "ZooKeeper needs Java" in result.stderr
    assert "--zookeeper HOST:PORT" in result.stderr
    assert result.stderr.count("\n") == 1
