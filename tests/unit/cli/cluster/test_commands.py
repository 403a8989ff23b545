"""`flowstone cluster` against three brokers in this process, which agree through memory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import flowstone

Run = Callable[..., subprocess.CompletedProcess[str]]
Call = Callable[..., str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[flowstone.Cluster]:
    with flowstone.Cluster(3, settings={"auto.leader.rebalance.enable": False}) as cluster:
        cluster.create_topic("orders", partitions=6)
        cluster.wait_in_sync("orders")
        yield cluster


@pytest.fixture
def call(run: Run, cluster: flowstone.Cluster) -> Call:
    """A command of the group that must succeed; what it printed."""

    def call(*arguments: object) -> str:
        result = run("cluster", *arguments, "--bootstrap", cluster.bootstrap)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout

    return call


@pytest.fixture
def refused(run: Run, cluster: flowstone.Cluster) -> Call:
    """A command of the group that must fail; its one sentence."""

    def refused(*arguments: object) -> str:
        result = run("cluster", *arguments, "--bootstrap", cluster.bootstrap)
        assert result.returncode == 1
        assert result.stderr.startswith("flowstone: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    return refused


@pytest.fixture
def status(call: Call) -> Callable[[], dict[str, Any]]:
    return lambda: json.loads(call("status", "--verbose", "--json"))


def leaders(status: dict[str, Any]) -> dict[int, int]:
    return {each["broker"]: each["leaders"] for each in status["brokers"]}


def test_the_status_shows_brokers_and_what_they_lead(call: Call, cluster: flowstone.Cluster) -> None:
    lines = call("status").splitlines()
    assert lines[0].startswith(f"cluster {cluster.image.cluster_id}: 3 of 3 brokers alive, ")
    assert lines[1].split() == ["broker", "address", "rack", "alive", "controller", "leaders", "replicas"]
    assert [line.split()[1] for line in lines[2:5]] == [each.bootstrap for each in cluster.brokers.values()]
    assert lines[5] == "offline 0, under-replicated 0, under min ISR 0, moving 0"


def test_a_drained_broker_leads_nothing_until_partitions_are_spread_again(
    call: Call, status: Callable[[], dict[str, Any]]
) -> None:
    assert call("drain", 2) == "broker 2 leads 0 partitions and has 6 replicas\n"
    assert leaders(status())[2] == 0
    assert call("elect") == "0 partitions got another leader\n"
    call("reassign", "--topic", "orders", "--brokers", "1,2,3", "--watch")
    assert call("elect", "--topic", "orders") == "2 partitions got another leader\n"
    assert leaders(status()) == {1: 2, 2: 2, 3: 2}


def test_a_plan_that_is_shown_first_can_be_carried_out_from_a_file(call: Call, tmp_path: Path) -> None:
    call("reassign", "--topic", "orders", "--brokers", "1,2,3", "--watch")
    shown = call("reassign", "--topic", "orders", "--brokers", "1,3", "--replication-factor", 2, "--dry-run", "--json")
    plan = tmp_path / "plan.json"
    plan.write_text(shown)
    assert {tuple(sorted(each["replicas"])) for each in json.loads(shown)["partitions"]} == {(1, 3)}
    assert call("reassign", "--file", plan, "--watch") == "6 partitions moved\n"
    assert call("reassign", "--file", plan, "--dry-run") == "all is where it should be\n"
    call("reassign", "--topic", "orders", "--brokers", "1,2,3", "--replication-factor", 3, "--watch")


def test_a_broker_is_emptied_onto_the_others(
    call: Call, cluster: flowstone.Cluster, status: Callable[[], dict[str, Any]]
) -> None:
    cluster.create_topic("pairs", partitions=4, replication_factor=2)
    call("reassign", "--topic", "orders", "--brokers", "2,3", "--replication-factor", 2, "--watch")
    assert call("drain", 1, "--replicas") == "broker 1 leads 0 partitions and has 0 replicas\n"
    assert {each["broker"]: each["replicas"] for each in status()["brokers"]} == {1: 0, 2: 10, 3: 10}
    call("reassign", "--topic", "orders", "--brokers", "1,2,3", "--replication-factor", 3, "--watch")


def test_a_throttle_is_taken_back_when_all_has_moved(call: Call, cluster: flowstone.Cluster) -> None:
    call("reassign", "--topic", "orders", "--brokers", "1,2", "--replication-factor", 2, "--throttle", 5_000_000)
    assert cluster.image.broker_configs["1"]["follower.replication.throttled.rate"] == "5000000"
    call("reassign", "--watch")
    assert not any("throttled" in name for values in cluster.image.broker_configs.values() for name in values)
    call("reassign", "--topic", "orders", "--brokers", "1,2,3", "--replication-factor", 3, "--watch")


def test_a_dead_brokers_partitions_are_told_and_moves_to_it_can_be_cancelled(
    run: Run, cluster: flowstone.Cluster, call: Call, status: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    cluster.create_topic("alone", partitions=1, replication_factor=1)
    home = cluster.leader("alone")
    other = next(each for each in cluster.brokers if each != home)
    cluster.kill(other)
    cluster.wait_for_leader("orders", other_than=other)
    for number in range(6):
        cluster.wait_for_leader("orders", number, other_than=other)
    told = status()
    assert {each["broker"]: each["alive"] for each in told["brokers"]}[other] is False
    assert told["under_replicated"] >= 6
    assert told["problems"][0]["what"]
    plan = tmp_path / "plan.json"
    move = {"topic": "alone", "partition": 0, "replicas": [home, other]}
    plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
    assert call("reassign", "--file", plan, "--throttle", 5_000_000).startswith("1 partition on the move")
    assert status()["moving"] == 1
    assert call("reassign", "--cancel") == "cancelled the moves of 1 partition\n"
    assert status()["moving"] == 0
    assert not any("throttled" in name for values in cluster.image.broker_configs.values() for name in values)
    cluster.restart(other)
    cluster.wait_in_sync("orders")


def test_emptying_a_broker_waits_for_moves_off_it_that_are_under_way(run: Run, tmp_path: Path) -> None:
    with flowstone.Cluster(3) as cluster:
        cluster.create_topic("leaving", replication_factor=1, configs={"min.insync.replicas": "1"})
        home = cluster.leader("leaving")
        target = next(each for each in cluster.brokers if each != home)
        bootstrap = cluster.brokers[home].bootstrap
        cluster.kill(target)
        plan = tmp_path / "plan.json"
        move = {"topic": "leaving", "partition": 0, "replicas": [target]}
        plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
        run("cluster", "reassign", "--file", plan, "--bootstrap", bootstrap)
        with ThreadPoolExecutor() as threads:
            draining = threads.submit(run, "cluster", "drain", home, "--replicas", "--bootstrap", bootstrap)
            with pytest.raises(TimeoutError):
                draining.result(timeout=3.0)
            cluster.restart(target)
            result = draining.result(timeout=30.0)
        assert (result.stderr, result.stdout) == ("", f"broker {home} leads 0 partitions and has 0 replicas\n")


def test_a_broker_that_is_gone_for_good_is_forgotten_once_it_has_no_replicas(run: Run) -> None:
    with flowstone.Cluster(2) as cluster:
        cluster.create_topic("kept", replication_factor=1, configs={"min.insync.replicas": "1"})
        home = cluster.leader("kept")
        gone = 3 - home
        bootstrap = cluster.brokers[home].bootstrap
        cluster.brokers[gone].stop()
        result = run("cluster", "unregister", gone, "--bootstrap", bootstrap)
        assert (result.stderr, result.stdout) == ("", f"broker {gone} is no part of the cluster any more\n")
        told = json.loads(run("cluster", "status", "--json", "--bootstrap", bootstrap).stdout)
        assert [each["broker"] for each in told["brokers"]] == [home]


def test_feature_levels_are_shown_with_what_is_supported(call: Call) -> None:
    document = json.loads(call("features", "describe", "--json"))
    assert document["features"] == [
        {"feature": "flowstone.metadata.version", "level": 2, "supported_min": 1, "supported_max": 2},
        {"feature": "group.version", "level": 1, "supported_min": 0, "supported_max": 1},
        {"feature": "share.version", "level": 1, "supported_min": 0, "supported_max": 1},
        {"feature": "transaction.version", "level": 2, "supported_min": 0, "supported_max": 2},
    ]
    assert document["epoch"] >= 0
    assert call("features", "describe").splitlines()[1].split() == ["flowstone.metadata.version", "2", "1", "to", "2"]


def test_a_feature_level_is_changed_or_only_checked(call: Call) -> None:
    level = "flowstone.metadata.version=2"
    assert call("features", "upgrade", level) == "flowstone.metadata.version is now at level 2\n"
    assert call("features", "downgrade", level, "--dry-run") == (
        "flowstone.metadata.version can be changed to level 2\n"
    )
    assert json.loads(call("features", "upgrade", level, "--json")) == {
        "levels": {"flowstone.metadata.version": 2},
        "dry_run": False,
    }


def test_an_unclean_election_is_asked_about(refused: Call, call: Call) -> None:
    assert "every record that one lacks is lost" in refused("elect", "--unclean")
    assert call("elect", "--unclean", "--yes") == "0 partitions got another leader\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["drain", 7], "there is no broker 7: 1, 2, 3 are known"),
        (["unregister", 7], "the broker refused: Broker 7 is not registered."),
        (["unregister", 1], "the broker refused: Broker 1 is alive: stop it first."),
        (["elect", "--topic", "nowhere"], "there is no topic nowhere"),
        (["features", "upgrade", "x"], "'x' is not FEATURE=LEVEL with a level from 0 to 32767"),
        (["features", "upgrade", "x=40000"], "'x=40000' is not FEATURE=LEVEL"),
        (["features", "upgrade", "moon.version=1"], "Broker 1 does not support this feature."),
        (["features", "upgrade", "flowstone.metadata.version=3"], "Broker 1 only supports versions 1-2"),
        (["features", "downgrade", "flowstone.metadata.version=0", "--unsafe"], "only supports versions 1-2"),
        (["reassign"], "say where partitions are to go, with --brokers or --file"),
        (["reassign", "--brokers", "1,9"], "broker 9 is not alive: those that are: 1,2,3"),
        (["reassign", "--brokers", "all"], "expected their numbers with commas"),
        (["reassign", "--brokers", "1,2", "--partition", 0], "--partition needs --topic"),
        (["reassign", "--topic", "orders", "--brokers", "1,2,3", "--partition", 9], "has partitions 0 to 5"),
        (["reassign", "--topic", "orders", "--brokers", "1,2"], "is to have 3 replicas, and 2 brokers are named"),
        (["reassign", "--file", "nowhere.json"], "cannot read nowhere.json"),
        (["found", "--data", "nowhere", "--zookeeper", "127.0.0.1:1"], "there is no directory nowhere"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    refused: Call, run: Run, arguments: list[object], reason: str
) -> None:
    if arguments[0] == "found":  # asks no broker
        assert reason in run("cluster", *arguments).stderr
    else:
        assert reason in refused(*arguments)


def test_a_single_broker_is_a_cluster_of_one(run: Run, broker: flowstone.Broker) -> None:
    result = run("cluster", "status", "--json", "--bootstrap", broker.bootstrap)
    (alone,) = json.loads(result.stdout)["brokers"]
    assert (alone["broker"], alone["address"], alone["alive"]) == (1, broker.bootstrap, True)
    assert run("cluster", "elect", "--bootstrap", broker.bootstrap).stdout == "0 partitions got another leader\n"


def test_without_a_broker_the_sentence_says_so(run: Run) -> None:
    result = run("cluster", "status", "--bootstrap", "127.0.0.1:1")
    assert result.returncode == 1
    assert result.stderr.startswith("flowstone: cannot reach a broker at 127.0.0.1:1")
