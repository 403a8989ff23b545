from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import flowstone
from flowstone.errors import ConfigError, StartupError

# The promise is 100 ms on a quiet machine; the best of a few starts must keep it even on a busy one.
READY_MS_MAX = 100
STARTS = 5


def produce(broker: flowstone.Broker, values: list[str], topic: str = "events") -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "log_level": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(10) == 0


def read(broker: flowstone.Broker, count: int, topic: str = "events") -> list[str]:
    config = {"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer(config)
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, 10)
    consumer.close()
    return [message.value().decode() for message in messages]


def test_importing_the_package_does_not_load_the_broker() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, flowstone; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(flowstone.__file__).parents[1])},
    ).stdout.split()
    assert "flowstone" in loaded
    assert "asyncio" not in loaded
    assert "flowstone.app" not in loaded


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Brokker"):
        _ = flowstone.Brokker


def test_what_is_produced_is_read_back() -> None:
    with flowstone.Broker() as broker:
        produce(broker, ["a", "b", "c"])
        assert read(broker, 3) == ["a", "b", "c"]


@pytest.mark.measures_time
def test_it_is_ready_at_once_with_warm_imports() -> None:
    took_ms = []
    for _ in range(STARTS):
        begun = time.perf_counter()
        with flowstone.Broker():
            took_ms.append((time.perf_counter() - begun) * 1000)
    assert min(took_ms) < READY_MS_MAX


def test_a_temporary_directory_goes_with_its_broker() -> None:
    with flowstone.Broker() as broker:
        produce(broker, ["a"])
        assert os.path.isdir(broker.data_directory)
    assert not os.path.exists(broker.data_directory)


def test_a_named_directory_stays_and_is_served_again(tmp_path: Path) -> None:
    with flowstone.Broker(data=str(tmp_path)) as broker:
        produce(broker, ["a"])
    with flowstone.Broker(data=str(tmp_path)) as broker:
        assert read(broker, 1) == ["a"]


def test_acknowledged_records_survive_a_kill(tmp_path: Path) -> None:
    broker = flowstone.Broker(data=str(tmp_path))
    produce(broker, ["a", "b"])
    broker.kill()
    with flowstone.Broker(data=str(tmp_path)) as broker:
        assert read(broker, 2) == ["a", "b"]


def test_a_killed_broker_keeps_its_temporary_directory_until_it_is_stopped() -> None:
    broker = flowstone.Broker()
    produce(broker, ["a"])
    broker.kill()
    assert os.path.isdir(f"{broker.data_directory}/events-0")
    broker.stop()
    assert not os.path.exists(broker.data_directory)


def test_stopping_twice_is_no_error_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    broker = flowstone.Broker()
    broker.stop()
    broker.stop()
    assert set(threading.enumerate()) == before


def test_several_brokers_run_side_by_side() -> None:
    with flowstone.Broker() as first, flowstone.Broker() as second:
        produce(first, ["first"])
        produce(second, ["second"])
        assert (read(first, 1), read(second, 1)) == (["first"], ["second"])


def test_settings_have_kafkas_names() -> None:
    with flowstone.Broker(settings={"num.partitions": "4"}) as broker:
        produce(broker, ["a"])
        partitions = Producer({"bootstrap.servers": broker.bootstrap}).list_topics("events", 10).topics["events"]
    assert len(partitions.partitions) == 4


def test_a_wrong_setting_is_raised_in_the_caller() -> None:
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions"):
        flowstone.Broker(settings={"num.partition": "4"})


def test_a_port_that_is_taken_is_raised_in_the_caller() -> None:
    with flowstone.Broker() as broker, pytest.raises(StartupError, match="cannot listen"):
        flowstone.Broker(port=int(broker.bootstrap.rpartition(":")[2]))


def test_a_directory_in_use_is_raised_in_the_caller(tmp_path: Path) -> None:
    with flowstone.Broker(data=str(tmp_path)), pytest.raises(StartupError, match="in use"):
        flowstone.Broker(data=str(tmp_path))


def test_health_and_metrics_are_served_where_asked_for() -> None:
    with flowstone.Broker(http=True) as broker, urllib.request.urlopen(f"{broker.http}/health") as response:
        assert response.status == 200


def test_without_being_asked_nothing_is_served_over_http() -> None:
    with flowstone.Broker() as broker:
        assert broker.http is None


def test_settings_may_be_numbers_and_booleans() -> None:
    with flowstone.Broker(settings={"num.partitions": 3, "auto.create.topics.enable": False}) as broker:
        broker.create_topic("t")
        topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).topics
        assert len(topics["t"].partitions) == 3
