"""`status`: runs, lag, counters and errors, read from a broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from flowstone.cli.commands import build_app
from flowstone.client import Cluster
from flowstone.embedded import Broker
from flowstone.pipeline.errors import TryLater
from flowstone.pipeline.operations.example import write_example
from flowstone.pipeline.operations.status import status
from flowstone.pipeline.state import StateStore
from flowstone.types import TopicPartition

AGE_S = 100


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def ran(broker: Broker) -> Broker:
    """A broker on which the pipeline `shop` has read three of five records, and failed once."""
    broker.create_topic("orders")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(5):
        producer.produce("orders", str(number), timestamp=int((time.time() - AGE_S) * 1000))
        producer.flush(10)
    with StateStore(broker.bootstrap, "shop") as store:
        run = store.begin_run(None)
        store.store_positions("shop", {"orders": '{"orders":{"0":0}}'})
        run.record_batch("shop", 0, 3, {"out": 2}, 1, {"payable.has_an_amount": 1}, 20)
        run.record_error("shop", "something broke", 1.0)
        assert run.end("ended")
    with Cluster(broker.bootstrap) as cluster:
        cluster.commit("shop", {TopicPartition("orders", 0): 3})
    return broker


@pytest.fixture
def command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `flowstone pipeline status` prints of the pipeline `shop` on a broker."""
    write_example(tmp_path / "shop", is_yaml=True)

    def run(broker: Broker, *more: str) -> str:
        arguments = ["pipeline", "status", str(tmp_path / "shop"), "--bootstrap", broker.bootstrap, *more]
        build_app("pipeline")(arguments, standalone_mode=False)
        return capfd.readouterr().out

    return run


def test_the_lag_is_in_records_and_seconds(ran: Broker) -> None:
    (query,) = status(ran.bootstrap, "shop").queries
    assert query.lag_records == 2
    assert query.lag_s is not None
    assert AGE_S <= query.lag_s < AGE_S + 60
    with Cluster(ran.bootstrap) as cluster:
        cluster.commit("shop", {TopicPartition("orders", 0): 5})
    (query,) = status(ran.bootstrap, "shop").queries
    assert (query.lag_records, query.lag_s) == (0, 0.0)


def test_a_run_that_goes_on_is_shown(ran: Broker) -> None:
    assert status(ran.bootstrap, "shop").live is None
    with StateStore(ran.bootstrap, "shop") as store:
        run = store.begin_run(None)
        live = status(ran.bootstrap, "shop").live
        assert live is not None
        assert live.run_id == run.id
        run.end("over")


def test_a_deleted_topic_has_no_lag(ran: Broker) -> None:
    with StateStore(ran.bootstrap, "shop") as store:
        store.store_positions("shop", {"orders": '{"gone":{"0":0}}'})
    (query,) = status(ran.bootstrap, "shop").queries
    assert (query.lag_records, query.lag_s) == (None, None)


def test_the_command_prints_it_for_people_and_programs(ran: Broker, command: Callable[..., str]) -> None:
    printed = command(ran)
    for part in ("shop is not running", "something broke", "payable.has_an_amount", "ended", "letters"):
        assert part in printed
    document = json.loads(command(ran, "--json"))
    assert document["running"] is False
    (query,) = document["queries"]
    assert (query["lag_records"], query["progress"]["rows_out"]) == (2, {"out": 2})
    assert document["runs"][0]["reason"] == "ended"
    assert document["errors"][0]["message"] == "something broke"


def test_a_pipeline_that_never_ran_has_an_empty_status(broker: Broker, command: Callable[..., str]) -> None:
    assert command(broker) == "shop has never run\n"


def test_without_a_broker_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowstone.pipeline.operations.status.DEADLINE_S", 0.5)
    with pytest.raises(TryLater, match=r"127\.0\.0\.1:1"):
        status("127.0.0.1:1", "shop")
