"""A queue on three brokers of which one, a coordinator or a leader, is killed and comes back: every task is done."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Producer

import flowstone

TASKS, WORKERS = 200, 4
IDLE_S = 5.0
VICTIMS = ["__consumer_offsets", "tasks"]

pytestmark = pytest.mark.skipif(
    not os.environ.get("FLOWSTONE_CLUSTER_LONG"), reason="takes half a minute: FLOWSTONE_CLUSTER_LONG=1"
)


@pytest.mark.parametrize("victim_of", VICTIMS)
def test_every_task_is_done_when_a_broker_dies_and_comes_back(victim_of: str) -> None:
    done: Counter[bytes] = Counter()
    lock = threading.Lock()

    def work(task: Any) -> None:
        time.sleep(0.002)
        with lock:
            done[task.value] += 1

    with flowstone.Cluster(3) as cluster:
        cluster.create_topic("tasks", partitions=6)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0})
        queues = [
            flowstone.Queue("tasks", group="workers", bootstrap=cluster.bootstrap, idle_s=IDLE_S) for _ in range(2)
        ]
        workers = [threading.Thread(target=queue.run, args=(work,), kwargs={"threads": WORKERS}) for queue in queues]
        for worker in workers:
            worker.start()
        victim = 0
        for number in range(TASKS):
            producer.produce("tasks", str(number))
            producer.poll(0)
            time.sleep(0.005)
            if number == TASKS // 3:
                victim = cluster.leader(victim_of)
                cluster.kill(victim)
            if number == 2 * TASKS // 3:
                cluster.restart(victim)
        assert producer.flush(30) == 0
        for worker in workers:
            worker.join(60)
        lost = sum(queue.lost_count for queue in queues)
        for queue in queues:
            queue.close()
    assert set(done) == {str(number).encode() for number in range(TASKS)}
    assert done.total() <= TASKS + lost
