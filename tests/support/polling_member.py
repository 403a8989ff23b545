"""A member of a consumer group that polls in a thread of its own, as a program would."""

from __future__ import annotations

import threading

from confluent_kafka import Consumer

from flowstone.embedded import Broker, Cluster

SESSION_S = 30
HEARTBEAT_MS = 100
POLL_S = 0.05
# Members of the consumer protocol are told theirs by the coordinator.
CLASSIC_TIMES: dict[str, str | int | bool] = {
    "session.timeout.ms": SESSION_S * 1000,
    "heartbeat.interval.ms": HEARTBEAT_MS,
}


class PollingMember:
    """Commits what it has read, every tenth of a second, until it leaves."""

    def __init__(self, broker: Broker | Cluster, group_id: str, topic: str, **more: str | int | bool) -> None:
        """`more` are settings of the client, with underscores for dots."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group_id,
                **({} if more.get("group_protocol") == "consumer" else CLASSIC_TIMES),
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": HEARTBEAT_MS,
                "fetch.wait.max.ms": HEARTBEAT_MS,
                "log_level": 0,
                **{name.replace("_", "."): value for name, value in more.items()},
            }
        )
        self.read: list[tuple[int, int]] = []  # the partition and offset of each record
        self._consumer.subscribe([topic])
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self) -> None:
        while not self._ending.is_set():
            record = self._consumer.poll(POLL_S)
            if record is not None and record.error() is None:
                self.read.append((record.partition(), record.offset()))

    def leave(self) -> None:
        self._ending.set()
        self._thread.join()
        self._consumer.close()
