"""The locks of a queue's tasks: renewed while bodies run, given up after `hold_max_s`, lost with the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flowstone
from flowstone.embedded import Broker
from tests.support.security.secured import PASSWORD, USER, secured_app
from tests.support.wire_client import Client, batch_of

WAIT_S = 20.0
LOCK_MS = 1000
SHORT_LOCKS = {
    "group.share.min.record.lock.duration.ms": LOCK_MS,
    "group.share.record.lock.duration.ms": LOCK_MS,
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings=SHORT_LOCKS) as broker:
        broker.create_topic("tasks")
        produce(broker, b"a")
        yield broker


def produce(broker: Broker, value: bytes) -> None:
    host, _, port = broker.bootstrap.rpartition(":")
    with Client((host, int(port))) as client:
        client.produce("tasks", bytes(batch_of(value)))


def queue_of(bootstrap: str, **options: Any) -> flowstone.Queue:
    return flowstone.Queue("tasks", group="workers", bootstrap=bootstrap, **options)


def test_a_task_stays_locked_while_its_body_runs_for_longer_than_a_lock_lasts(broker: Broker) -> None:
    with queue_of(broker.bootstrap) as first, queue_of(broker.bootstrap) as second:
        task = first.get(WAIT_S)
        assert task is not None
        with task:
            assert second.get(1.8 * LOCK_MS / 1000) is None
        assert second.get(0.5) is None
        assert first.lost_count == 0


def test_a_task_that_is_held_for_too_long_is_delivered_to_another(broker: Broker) -> None:
    with queue_of(broker.bootstrap, hold_max_s=0.1) as first, queue_of(broker.bootstrap) as second:
        task = first.get(WAIT_S)
        assert task is not None
        again = second.get(WAIT_S)
        assert again is not None
        assert (again.value, again.attempt > 1) == (b"a", True)
        again.accept()


def test_a_queue_goes_on_when_its_broker_comes_back(tmp_path: Path) -> None:
    with Broker(data=str(tmp_path)) as broker:
        port, bootstrap = broker.port, broker.bootstrap
        broker.create_topic("tasks")
        produce(broker, b"a")
        queue = queue_of(bootstrap)
        held = queue.get(WAIT_S)
        assert held is not None
    with Broker(data=str(tmp_path), port=port) as broker:
        again = queue.get(WAIT_S)
        assert again is not None
        assert again.value == b"a"
        held.accept()  # its lock is gone: nothing happens
        again.accept()
        produce(broker, b"b")
        task = queue.get(WAIT_S)
        assert task is not None
        assert task.value == b"b"
        task.accept()
        assert queue.lost_count == 1
        queue.close()


def test_a_queue_logs_in_over_tls(tmp_path: Path) -> None:
    with secured_app(tmp_path) as app:
        with app.client() as client:
            client.create_topic("tasks")
            client.produce("tasks", bytes(batch_of(b"a")))
        security = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.truststore.location": str(tmp_path / "ca.pem"),
        }
        bootstrap = f"localhost:{app.app.addresses['SASL_SSL'][1]}"
        with queue_of(bootstrap, security=security) as queue:
            task = queue.get(WAIT_S)
            assert task is not None
            with task:
                assert task.value == b"a"


def test_a_task_is_retried_at_once_when_no_more_can_be_held(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowstone.queues.consumer.DELAYED_MAX", 0)
    with queue_of(broker.bootstrap) as queue:
        task = queue.get(WAIT_S)
        assert task is not None
        begun_s = time.monotonic()
        task.retry(after=60)
        again = queue.get(WAIT_S)
        assert again is not None
        assert time.monotonic() - begun_s < WAIT_S
        again.accept()
