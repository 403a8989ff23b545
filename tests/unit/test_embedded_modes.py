"""What holds in both modes of the embedded broker, and what belongs to one of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Literal

import pytest
from confluent_kafka import Producer

import flowstone
from flowstone.embedded import Broker, NotInProcessMode, NotServing
from flowstone.errors import ApiError, ConfigError, ErrorCode, StartupError

Mode = Literal["thread", "process"]
MODES: tuple[Mode, ...] = ("thread", "process")
TIMEOUT_S = 20
UNACKNOWLEDGED_MAX = 1000
_numbers = count()


@pytest.fixture(scope="module", params=MODES)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """One for all: a process takes its time to start. Whoever kills or pauses it brings it back."""
    with flowstone.Broker(mode=request.param) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """A name that no other test uses; the topic is not there yet."""
    return f"topic-{next(_numbers)}"


def new_producer(broker: Broker, **more: object) -> Producer:
    config = {"bootstrap.servers": broker.bootstrap, "acks": "all", "log_level": 0}
    return Producer({**config, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, **more})


def produce(broker: Broker, topic: str, *values: str) -> None:
    producer = new_producer(broker)
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def values(broker: Broker, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in broker.records(topic)]


def test_records_come_by_partition_and_offset_with_all_they_have(broker: Broker, topic: str) -> None:
    broker.create_topic(topic, partitions=2)
    producer = new_producer(broker)
    producer.produce(topic, "b", partition=1, timestamp=1_700_000_000_000)
    producer.produce(topic, None, key="k", partition=0, headers={"trace": b"7", "none": None})
    producer.produce(topic, "c", partition=1)
    assert producer.flush(TIMEOUT_S) == 0
    first, second, third = broker.records(topic)
    assert (first.partition, first.offset, first.key, first.value) == (0, 0, b"k", None)
    assert list(first.headers) == [("trace", b"7"), ("none", None)]
    assert (second.partition, second.offset, second.value, second.timestamp_ms) == (1, 0, b"b", 1_700_000_000_000)
    assert (third.partition, third.offset, third.value) == (1, 1, b"c")


def test_records_of_a_topic_that_is_not_there_are_an_error(broker: Broker, topic: str) -> None:
    with pytest.raises(ApiError, match=f"there is no topic '{topic}'") as raised:
        broker.records(topic)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_made_twice_is_an_error(broker: Broker, topic: str) -> None:
    broker.create_topic(topic)
    with pytest.raises(ApiError) as raised:
        broker.create_topic(topic)
    assert raised.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_waiting_ends_with_the_record_that_was_missing(broker: Broker, topic: str) -> None:
    produce(broker, topic, "a")
    late = threading.Timer(0.05, produce, (broker, topic, "b", "c"))
    late.start()
    assert len(broker.wait_for(topic, 3, TIMEOUT_S)) == 3
    late.join()


def test_waiting_begins_before_the_topic_is_there(broker: Broker, topic: str) -> None:
    late = threading.Timer(0.05, produce, (broker, topic, "a"))
    late.start()
    assert [record.value for record in broker.wait_for(topic, 1, TIMEOUT_S)] == [b"a"]
    late.join()


def test_waiting_in_vain_says_how_much_there_was(broker: Broker, topic: str) -> None:
    produce(broker, topic, "a", "b")
    with pytest.raises(TimeoutError, match=rf"waited 0\.2 s for 3 records: '{topic}' has 2"):
        broker.wait_for(topic, 3, timeout=0.2)
    with pytest.raises(TimeoutError, match=r"for 1 records: there is no topic 'other'"):
        broker.wait_for("other", 1, timeout=0.2)


def test_waiting_for_a_broker_that_is_killed_ends() -> None:
    with flowstone.Broker() as broker:
        killing = threading.Timer(0.05, broker.kill)
        killing.start()
        with pytest.raises(NotServing, match="ended before it could answer"):
            broker.wait_for("never", 1, TIMEOUT_S)
        killing.join()


def test_a_restart_keeps_address_and_data(broker: Broker, topic: str) -> None:
    produce(broker, topic, "before")
    address = broker.bootstrap
    broker.restart()
    assert broker.bootstrap == address
    produce(broker, topic, "after")
    assert values(broker, topic) == ["before", "after"]


def test_what_was_acknowledged_survives_a_kill_and_a_restart(broker: Broker, topic: str) -> None:
    produce(broker, topic, "a", "b")
    broker.kill()
    with pytest.raises(NotServing, match="not running"):
        broker.records(topic)
    broker.restart()
    assert values(broker, topic) == ["a", "b"]


def test_nothing_is_written_once_kill_has_returned(broker: Broker, topic: str) -> None:
    stop, producer = threading.Event(), new_producer(broker, **{"linger.ms": 0})

    def write() -> None:
        number = 0
        while not stop.is_set():
            producer.produce(f"{topic}-{number % 50}", bytes(1000))
            producer.poll(0 if len(producer) < UNACKNOWLEDGED_MAX else 0.01)
            number += 1

    writing = threading.Thread(target=write)
    writing.start()
    broker.wait_for(f"{topic}-20", 1, TIMEOUT_S)
    broker.kill()
    before = snapshot(broker)
    threading.Event().wait(0.2)
    after = snapshot(broker)
    stop.set()
    writing.join()
    assert after == before
    broker.restart()
    assert producer.flush(TIMEOUT_S) == 0  # the client comes back by itself


def snapshot(broker: Broker) -> dict[str, tuple[int, int]]:
    """Every file, its size and when it was last written."""
    files = (path for path in Path(broker.data_directory).rglob("*") if path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def test_a_paused_broker_answers_nothing_until_it_is_resumed(broker: Broker, topic: str) -> None:
    broker.create_topic(topic)
    producer = new_producer(broker)
    broker.pause()
    producer.produce(topic, "a")
    assert producer.flush(0.3) == 1
    with pytest.raises(NotServing, match="paused"):
        broker.records(topic)
    broker.resume()
    assert producer.flush(TIMEOUT_S) == 0
    assert values(broker, topic) == ["a"]


def test_a_paused_broker_takes_what_had_arrived_with_it_when_it_is_killed(broker: Broker, topic: str) -> None:
    produce(broker, topic, "before")
    producer = new_producer(broker, **{"message.timeout.ms": 300})
    assert producer.list_topics(topic, TIMEOUT_S)
    broker.pause()
    producer.produce(topic, "lost")
    producer.flush(TIMEOUT_S)
    broker.kill()
    broker.restart()
    assert values(broker, topic) == ["before"]


@pytest.mark.parametrize("mode", MODES)
def test_a_paused_broker_can_be_stopped(mode: Mode) -> None:
    broker = flowstone.Broker(mode=mode)
    broker.pause()
    broker.stop()
    assert not os.path.exists(broker.data_directory)


def test_pausing_and_resuming_what_does_not_run_is_an_error(broker: Broker) -> None:
    broker.kill()
    for call in (broker.pause, broker.resume):
        with pytest.raises(NotServing, match="not running"):
            call()
    broker.restart()


@pytest.mark.parametrize("mode", MODES)
def test_mistakes_are_raised_in_the_caller_and_leave_nothing_behind(mode: Mode, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean num\.partitions"):
        flowstone.Broker(mode=mode, settings={"num.partition": "4"})
    with flowstone.Broker(data=str(tmp_path)), pytest.raises(StartupError, match="in use"):
        flowstone.Broker(mode=mode, data=str(tmp_path))


def test_a_mode_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="'thread' or 'process', not 'fork'"):
        flowstone.Broker(mode="fork")  # type: ignore[arg-type]


def test_what_belongs_to_thread_mode_is_refused_in_a_process_which_has_the_rest() -> None:
    with flowstone.Broker(mode="process", http=True) as broker:
        assert (broker.http or "").startswith("http://127.0.0.1:")
        with pytest.raises(NotInProcessMode, match="clock"):
            _ = broker.clock
        with pytest.raises(NotInProcessMode, match="faults"):
            broker.fault("Produce", disconnect=True)


def test_the_brokers_process_ends_with_the_program_that_started_it(tmp_path: Path) -> None:
    program = (
        "import flowstone, json, sys\n"
        f"broker = flowstone.Broker(mode='process', data={str(tmp_path)!r})\n"
        "print(json.dumps(broker.port), flush=True)\n"
        "sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(flowstone.__file__).parents[1])}
    started = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert started.stdout is not None
    assert json.loads(started.stdout.readline()) > 0
    started.send_signal(signal.SIGKILL)
    started.communicate()  # the child shares its standard error only: it is this process that is waited for
    deadline = threading.Event()
    for _ in range(TIMEOUT_S * 20):
        try:
            flowstone.Broker(data=str(tmp_path)).stop()
            return
        except StartupError:  # the data directory is in use as long as the broker lives
            deadline.wait(0.05)
    pytest.fail("the broker outlived the program that started it")
