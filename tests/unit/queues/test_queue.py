"""`flowstone.Queue` against a broker: Flowstone's, or the one that `FLOWSTONE_QUEUE_BOOTSTRAP` names.

With Apache Kafka 4.2 or later the same tests show that it works there: share.version must be 1, and on one broker
offsets.topic.replication.factor, share.coordinator.state.topic.replication.factor and .min.isr must be 1.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import flowstone
from flowstone.client.errors import ClientError, UnknownTopic
from flowstone.embedded import Broker
from flowstone.queues.task import AlreadySettled
from flowstone.wire import messages as m
from tests.support.wire_client import Client, batch_of

BOOTSTRAP = os.environ.get("FLOWSTONE_QUEUE_BOOTSTRAP", "")
WAIT_S = 20.0
IDLE_S = 2.0 if BOOTSTRAP else 0.3  # Kafka may need longer to deliver a record again
_numbers = count(int(time.time()))


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    if BOOTSTRAP:
        yield BOOTSTRAP
        return
    with Broker() as broker:
        yield broker.bootstrap


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"tasks-{next(_numbers)}"
    with _client(bootstrap) as client:
        client.create_topic(name, 1)
    return name


def _client(bootstrap: str) -> Client:
    host, _, port = bootstrap.rpartition(":")
    return Client((host, int(port)))


def produce(bootstrap: str, topic: str, *values: str, partition: int = 0) -> None:
    records = bytes(batch_of(*(value.encode() for value in values)))
    deadline = time.monotonic() + WAIT_S
    with _client(bootstrap) as client:
        while client.produce(topic, records, partition=partition).error_code:  # Kafka's new topics have no leader yet
            assert time.monotonic() < deadline
            time.sleep(0.05)


def queue_of(address: str, topic: str, **options: Any) -> flowstone.Queue:
    return flowstone.Queue(topic, **{"group": f"group-of-{topic}", "bootstrap": address, "idle_s": IDLE_S} | options)


def get(queue: flowstone.Queue) -> Any:
    task = queue.get(WAIT_S)
    assert task is not None, "no task arrived"
    return task


def lags(bootstrap: str, topic: str) -> list[int]:
    """What the group has not finished, by partition."""
    asked = m.DescribeShareGroupOffsetsRequestGroup(group_id=f"group-of-{topic}", topics=None)
    with _client(bootstrap) as client:
        (group,) = client.ask(1, m.DescribeShareGroupOffsetsRequest(groups=[asked])).groups
    return [each.lag for topic in group.topics for each in topic.partitions]


def state_of(bootstrap: str, topic: str) -> str:
    with _client(bootstrap) as client:
        (group,) = client.ask(1, m.ShareGroupDescribeRequest(group_ids=[f"group-of-{topic}"])).groups
    return str(group.group_state)


def test_every_task_is_delivered_once_also_those_from_before_the_group(bootstrap: str) -> None:
    topic = f"tasks-{next(_numbers)}"
    with _client(bootstrap) as client:
        client.create_topic(topic, 2)
    produce(bootstrap, topic, "a", "b", "c")
    produce(bootstrap, topic, "d", "e", partition=1)
    seen = []
    with queue_of(bootstrap, topic) as queue:
        for task in queue:
            with task:
                seen.append((task.value, task.attempt, task.topic))
    assert sorted(seen) == [(value.encode(), 1, topic) for value in "abcde"]
    assert lags(bootstrap, topic) == [0, 0]
    assert state_of(bootstrap, topic) == "Empty"


def test_a_body_that_raises_releases_its_task_and_work_goes_on(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, "bad", "good")
    attempts = []
    with queue_of(bootstrap, topic) as queue:
        for task in queue:
            with task:
                attempts.append((task.value, task.attempt))
                if task.value == b"bad" and task.attempt == 1:
                    raise ValueError("not yet")
    assert sorted(attempts) == [(b"bad", 1), (b"bad", 2), (b"good", 1)]


def test_with_raise_errors_the_exception_leaves_and_the_task_is_released(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, "bad")
    with queue_of(bootstrap, topic, raise_errors=True) as queue:
        with pytest.raises(ValueError, match="not yet"), get(queue):
            raise ValueError("not yet")
        assert get(queue).attempt == 2


def test_a_rejected_task_is_not_delivered_again(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, "bad", "good")
    seen = []
    with queue_of(bootstrap, topic) as queue:
        for task in queue:
            seen.append(task.value)
            if task.value == b"bad":
                task.reject("it is no address")
            else:
                task.accept()
    assert sorted(seen) == [b"bad", b"good"]


def test_a_task_is_settled_once(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, "a")
    with queue_of(bootstrap, topic) as queue:
        task = get(queue)
        task.accept()
        for again in (task.accept, task.release, task.extend, lambda: task.retry(1)):
            with pytest.raises(AlreadySettled):
                again()


def test_a_task_to_be_retried_comes_back_after_its_time_and_holds_up_no_other(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, "later", "now")
    with queue_of(bootstrap, topic, in_flight=1) as queue:
        begun_s, order = 0.0, []
        while len(order) < 3:
            task = get(queue)
            order.append((task.value, task.attempt))
            if order[-1] == (b"later", 1):
                begun_s = time.monotonic()
                task.retry(after=0.7)
            else:
                task.accept()
        assert time.monotonic() - begun_s >= 0.7
    assert order == [(b"later", 1), (b"now", 1), (b"later", 2)]


def test_no_more_tasks_are_locked_than_in_flight(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, *(str(n) for n in range(50)))
    with queue_of(bootstrap, topic, in_flight=5) as first, queue_of(bootstrap, topic, in_flight=100) as second:
        held = [get(first) for _ in range(5)]
        others = []
        while len(others) < 45:
            others.append(get(second))
        assert second.get(0.3) is None
        for task in (*held, *others):
            task.accept()


def test_threads_share_a_queue(bootstrap: str, topic: str) -> None:
    values = [str(n) for n in range(200)]
    produce(bootstrap, topic, *values)
    seen: list[bytes] = []
    threads = set()

    def work(task: Any) -> None:
        threads.add(threading.current_thread().name)
        time.sleep(0.001)
        seen.append(task.value)

    with queue_of(bootstrap, topic, in_flight=50) as queue:
        queue.run(work, threads=8)
    assert sorted(seen) == sorted(value.encode() for value in values)
    assert len(threads) > 1


def test_coroutines_take_tasks(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, "a", "b", "c")
    seen = []

    async def consume() -> None:
        async with queue_of(bootstrap, topic) as queue:
            async for task in queue:
                async with task:
                    await asyncio.sleep(0.01)
                    seen.append(task.value)

    asyncio.run(consume())
    assert sorted(seen) == [b"a", b"b", b"c"]


def test_two_processes_share_the_work(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, *(str(n) for n in range(100)))
    code = (
        "import flowstone, sys, time\n"
        f"queue = flowstone.Queue({topic!r}, group='group-of-{topic}', bootstrap={bootstrap!r}, idle_s=1,\n"
        "                        in_flight=4)\n"
        "with queue:\n"
        "    for task in queue:\n"
        "        with task:\n"
        "            time.sleep(0.01)\n"
        "            print(task.value.decode())\n"
    )
    workers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [worker.communicate(timeout=60)[0].split() for worker in workers]
    assert sorted(outputs[0] + outputs[1], key=int) == [str(n) for n in range(100)]
    assert all(outputs)


def test_a_queue_that_is_closed_returns_what_nobody_works_on(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, "a", "b", "c", "d")
    with queue_of(bootstrap, topic, in_flight=4) as queue:
        get(queue).accept()
    begun_s = time.monotonic()
    with queue_of(bootstrap, topic) as queue:
        left = [get(queue) for _ in range(3)]
        assert time.monotonic() - begun_s < WAIT_S / 2, "their locks must not have to expire"
        assert {task.value for task in left} <= {b"a", b"b", b"c", b"d"}
        for task in left:
            task.accept()


def test_a_queue_that_is_stopped_ends_all_iterations(bootstrap: str, topic: str) -> None:
    with queue_of(bootstrap, topic, idle_s=None) as queue:
        done: list[bool] = []
        workers = [threading.Thread(target=lambda: done.append(list(queue) == [])) for _ in range(3)]
        for worker in workers:
            worker.start()
        time.sleep(0.2)
        queue.stop()
        for worker in workers:
            worker.join(WAIT_S)
        assert done == [True] * 3


def test_a_topic_that_does_not_exist_is_an_error(bootstrap: str) -> None:
    with queue_of(bootstrap, "no-such-topic") as queue, pytest.raises(UnknownTopic, match="create it first"):
        queue.get(WAIT_S)


def test_a_group_of_another_kind_is_an_error(bootstrap: str, topic: str) -> None:
    with _client(bootstrap) as client:
        client.ask(6, m.FindCoordinatorRequest(coordinator_keys=[f"classic-{topic}"]))
        partition = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        asked = [m.OffsetCommitRequestTopic(name=topic, partitions=[partition])]
        client.ask(
            8,
            m.OffsetCommitRequest(group_id=f"classic-{topic}", generation_id_or_member_epoch=-1, topics=asked),
        )
    with (
        queue_of(bootstrap, topic, group=f"classic-{topic}") as queue,
        pytest.raises(ClientError, match="choose another name"),
    ):
        queue.get(WAIT_S)


@pytest.mark.parametrize(
    "options", [{"in_flight": 0}, {"begin": "now"}, {"group": ""}, {"hold_max_s": 0}, {"bootstrap": "a:b"}]
)
def test_options_without_sense_are_refused_at_once(bootstrap: str, options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, ClientError)):
        queue_of(bootstrap, "t", **options)


def test_a_negative_delay_is_refused(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, "a")
    with queue_of(bootstrap, topic) as queue:
        task = get(queue)
        with pytest.raises(ValueError, match="past"):
            task.retry(after=-1)
        task.accept()
