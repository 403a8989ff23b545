"""Share groups in a chaos run: who sends tasks, who handles them, and what must hold of them in the end.

Two groups read the same topic, one without an order and one ordered by key; what they reject goes to a dead letter
queue. No accepted or rejected record is delivered again, none is lost, the order of keys is never violated, no record
is delivered more often than its limit, and each letter is written once.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping

from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire import messages as m
from flowstone.wire.record_batch import Record, build_batch, decode_records
from tests.chaos.cluster import ChaosCluster
from tests.chaos.queues.members import END_TIMEOUT_S, PAUSE_S, TIMEOUT_S, TROUBLE, ChaosHistory, Member, leader_of
from tests.faults.checker import Anomaly
from tests.sim.queues.history import Group, Letter, StoredTasks
from tests.support.wire_client import Client

TASKS, LETTERS = "tasks", "dlq.tasks"
PARTITIONS, MEMBERS, KEYS = 2, 2, 40
RECORDS_PER_BATCH, PRODUCE_INTERVAL_S = 8, 0.25
DELIVERY_COUNT_LIMIT = 10
GROUPS = (Group("free", False, DELIVERY_COUNT_LIMIT, 0.0), Group("keyed", True, DELIVERY_COUNT_LIMIT, 0.0))
GROUP_RESOURCE = 32
BEGIN_S_MAX, GOING_S_MAX, FINISH_S_MAX = 60.0, 60.0, 180.0
# Locks of what members keep last so long; after a longer silence nothing is left.
LOCK_S = 15
QUIET_S = LOCK_S + 5.0


class QueueWork:
    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster
        self.history = ChaosHistory()
        self.partitions = cluster.create_topic(TASKS, PARTITIONS)
        self.letters = cluster.create_topic(LETTERS, 1)
        self._configure()
        for group in GROUPS:
            for partition in self.partitions:
                self._begin(group, partition)
        self.members = [
            Member(f"{group.name}-{partition.partition}-{number}", group, partition, self._connect, self.history)
            for group in GROUPS
            for partition in self.partitions
            for number in range(MEMBERS)
        ]
        self.produced_count = 0
        self._ended = threading.Event()
        self._producer = threading.Thread(target=self._produce, name="task-producer", daemon=True)
        self._producer.start()

    @property
    def anomalies(self) -> list[Anomaly]:
        with self.history.lock:
            return list(self.history.anomalies)

    def figures(self) -> Mapping[str, int]:
        with self.history.lock:
            deliveries = sum(each.count for records in self.history.records.values() for each in records.values())
            finished = self.history.finished_count
        return {"produced": self.produced_count, "deliveries": deliveries, "finished": finished}

    @property
    def all_partitions(self) -> list[TopicPartition]:
        return [*self.partitions, *self.letters]

    def close(self) -> None:
        self._ended.set()
        for member in self.members:
            member.close()
        self._producer.join(END_TIMEOUT_S)

    def _addresses(self) -> list[tuple[str, int]]:
        nodes = list(self._cluster.nodes.values())
        random.shuffle(nodes)
        addresses = (each.address.rpartition(":") for each in nodes)
        return [(host, int(port)) for host, _, port in addresses]

    def _connect(self, partition: TopicPartition) -> tuple[Client, bytes]:
        return leader_of(self._addresses(), partition)

    # The beginning

    def _configure(self) -> None:
        settings = {
            "errors.deadletterqueue.topic.name": LETTERS,
            "share.delivery.count.limit": str(DELIVERY_COUNT_LIMIT),
            "share.record.lock.duration.ms": str(LOCK_S * 1000),
        }
        resources = [
            _resource(2, LETTERS, {"errors.deadletterqueue.group.enable": "true"}),
            *(
                _resource(GROUP_RESOURCE, name, {**settings, "share.ordering": "key" if is_keyed else "none"})
                for name, is_keyed, *_ in GROUPS
            ),
        ]
        request = m.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)

        def alter(client: Client) -> bool:
            codes = [each.error_code for each in client.ask(1, request).responses]
            return not any(codes)

        self._until(alter, "the groups have no settings")

    def _begin(self, group: Group, partition: TopicPartition) -> None:
        """Initialize a share partition's state, as the group coordinator does."""

        def initialize(client: Client) -> bool:
            topic_id = _topic_id(client)
            key = str(ShareKey(group.name, topic_id, partition.partition))
            found = client.ask(6, m.FindCoordinatorRequest(key_type=2, coordinator_keys=[key])).coordinators[0]
            if found.error_code:
                return False
            state = m.InitializeShareGroupStateRequestPartition(
                partition=partition.partition, state_epoch=0, start_offset=0
            )
            topic = m.InitializeShareGroupStateRequestTopic(topic_id=topic_id, partitions=[state])
            request = m.InitializeShareGroupStateRequest(group_id=group.name, topics=[topic])
            with Client((found.host, found.port), TIMEOUT_S) as coordinator:
                answer = coordinator.ask(0, request)
            return not answer.results[0].partitions[0].error_code

        self._until(initialize, f"{group.name} has no state for {partition}")

    def _until(self, ask: object, otherwise: str) -> None:
        assert callable(ask)
        deadline = time.monotonic() + BEGIN_S_MAX
        while time.monotonic() < deadline:
            for address in self._addresses():
                try:
                    with Client(address, TIMEOUT_S) as client:
                        if ask(client):
                            return
                except TROUBLE:
                    pass
            time.sleep(PAUSE_S)
        raise AssertionError(otherwise)

    # Tasks

    def _produce(self) -> None:
        """Send batches to the partitions in turn; one without an answer may be there, and is not sent again."""
        chance = random.Random("tasks")
        clients: dict[TopicPartition, Client] = {}
        while not self._ended.is_set():
            for partition in self.partitions:
                keys = [b"%d" % chance.randrange(KEYS) for _ in range(RECORDS_PER_BATCH)]
                now_ms = int(time.time() * 1000)
                batch = build_batch([Record(number, now_ms, key, b"task") for number, key in enumerate(keys)])
                try:
                    if partition not in clients:
                        clients[partition], _ = self._connect(partition)
                    answer = clients[partition].produce(TASKS, batch, partition=partition.partition)
                    if answer.error_code:
                        raise OSError(ErrorCode(answer.error_code).name)
                    self.produced_count += RECORDS_PER_BATCH
                except TROUBLE:
                    if (client := clients.pop(partition, None)) is not None:
                        client.close()
            self._ended.wait(PRODUCE_INTERVAL_S)
        for client in clients.values():
            client.close()

    def check_going(self, since_s: float, after: str) -> None:
        """Note an anomaly unless a member of each group and partition is answered soon."""
        while stuck := [each.name for each in self.members if each.answered_s < since_s]:
            if time.monotonic() - since_s > GOING_S_MAX:
                self.history.note("no progress", self.partitions[0], -1, f"{after}: {', '.join(stuck)}")
                return
            time.sleep(PAUSE_S)

    # The end

    def finish(self) -> None:
        """Send no more, and wait until nothing is left."""
        self._ended.set()
        self._producer.join(END_TIMEOUT_S)
        for member in self.members:
            member.is_finishing = True
        deadline = time.monotonic() + FINISH_S_MAX
        while busy := [each.name for each in self.members if time.monotonic() - each.quiet_since_s < QUIET_S]:
            if time.monotonic() > deadline:
                self.history.note("no end", self.partitions[0], -1, ", ".join(busy))
                break
            time.sleep(PAUSE_S)
        for member in self.members:
            member.close()

    def check_disks(self, copies: Mapping[TopicPartition, list[bytes]]) -> None:
        """Hold the end of everything to what is known: the batches of tasks and letters on the disks."""
        if not all(partition in copies for partition in self.all_partitions):
            return  # one cannot be read, which is an anomaly of its own
        stored = {
            partition: StoredTasks(frozenset(each.offset for each in _records(copies[partition])), frozenset())
            for partition in self.partitions
        }
        letters = [_letter(record) for partition in self.letters for record in _records(copies[partition])]
        self.history.check(GROUPS, stored, letters)


def _records(copy: list[bytes]) -> list[Record]:
    return [record for batch in copy for record in decode_records(batch)]


def _letter(record: Record) -> Letter:
    headers = {name: (value or b"").decode() for name, value in record.headers}
    source = TopicPartition(headers["__dlq.errors.topic"], int(headers["__dlq.errors.partition"]))
    return Letter(headers["__dlq.errors.group"], source, int(headers["__dlq.errors.offset"]))


def _topic_id(client: Client) -> bytes:
    answer = client.ask(12, m.MetadataRequest(topics=[m.MetadataRequestTopic(name=TASKS)]))
    return bytes(answer.topics[0].topic_id)


def _resource(kind: int, name: str, settings: Mapping[str, str]) -> m.IncrementalAlterConfigsRequestResource:
    configs = [
        m.IncrementalAlterConfigsRequestConfig(name=each, config_operation=0, value=value)
        for each, value in settings.items()
    ]
    return m.IncrementalAlterConfigsRequestResource(resource_type=kind, resource_name=name, configs=configs)
