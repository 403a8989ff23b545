"""The state of a cluster as its brokers describe it: live brokers, the placement of partitions, and problems.

Read with the thin client, all of it over one connection: no other client tells of dead brokers, of partitions on the
move, or of one setting of every topic. A replica that is still to come is not missed: such a partition is on the move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from flowstone.cli.common.clients import REQUEST_TIMEOUT_S, connect
from flowstone.cli.common.errors import CommandError, refused
from flowstone.client import ClientError
from flowstone.client.brokers import Brokers
from flowstone.types import TopicPartition
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponsePartition,
    MetadataRequest,
    MetadataResponse,
)

CLIENT_ID = "flowstone-cli"
TOPIC_RESOURCE = 2
MIN_INSYNC_REPLICAS = "min.insync.replicas"
NO_LEADER = -1

Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class BrokerState:
    node_id: int
    address: str
    rack: str | None
    is_alive: bool


@dataclass(frozen=True, slots=True)
class PartitionState:
    partition: TopicPartition
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_insync_replicas: int
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_offline(self) -> bool:
        return self.leader == NO_LEADER

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas) - len(self.adding)

    @property
    def is_under_min_isr(self) -> bool:
        """Return whether too few replicas are in sync. All of them are always enough, as in Kafka."""
        return len(self.isr) < min(self.min_insync_replicas, len(self.replicas))

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """Return the brokers of the replicas, or the target brokers if a move is in progress."""
        return tuple(node_id for node_id in self.replicas if node_id not in self.removing)


@dataclass(frozen=True, slots=True)
class ClusterState:
    cluster_id: str
    controller_id: int
    brokers: dict[int, BrokerState]
    partitions: list[PartitionState]

    @property
    def alive(self) -> list[int]:
        return [broker.node_id for broker in self.brokers.values() if broker.is_alive]

    @property
    def racks(self) -> dict[int, str | None]:
        return {broker.node_id: broker.rack for broker in self.brokers.values()}

    def leader_counts(self) -> Counter[int]:
        return Counter(each.leader for each in self.partitions)

    def replica_counts(self) -> Counter[int]:
        return Counter(node_id for each in self.partitions for node_id in each.replicas)

    def of_topics(self, topics: Iterable[str]) -> list[PartitionState]:
        """Return the partitions of these topics, or all if none is named. Raises CommandError for an unknown one."""
        wanted = set(topics)
        unknown = wanted - {each.partition.topic for each in self.partitions}
        if unknown:
            raise CommandError(f"there is no topic {min(unknown)}; see `flowstone topic list`")
        return [each for each in self.partitions if not wanted or each.partition.topic in wanted]


class ClusterReader:
    def __init__(self, bootstrap: str) -> None:
        """Create the reader. Raises CommandError if nothing listens at the address."""
        self.bootstrap = bootstrap
        self.admin = connect(bootstrap)
        self._brokers = Brokers(bootstrap, CLIENT_ID)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._brokers.close()

    def ask(self, request: Message, kind: type[Response]) -> Response:
        """Return the answer of any broker. Raises CommandError if none answers."""
        try:
            return self._brokers.ask_any(request, kind, REQUEST_TIMEOUT_S)
        except ClientError as error:
            raise CommandError(f"no answer from {self.bootstrap} ({error}): check that it is a broker") from None

    def read(self) -> ClusterState:
        cluster = self.ask(DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse)
        check(cluster.error_code, cluster.error_message)
        return ClusterState(
            cluster.cluster_id,
            cluster.controller_id,
            {
                each.broker_id: BrokerState(each.broker_id, f"{each.host}:{each.port}", each.rack, not each.is_fenced)
                for each in sorted(cluster.brokers, key=lambda broker: broker.broker_id)
            },
            self._read_partitions(),
        )

    def moving(self) -> dict[TopicPartition, ListPartitionReassignmentsResponsePartition]:
        """Return the partitions that are being moved."""
        answer = self.ask(ListPartitionReassignmentsRequest(topics=None), ListPartitionReassignmentsResponse)
        check(answer.error_code, answer.error_message)
        return {
            TopicPartition(topic.name, each.partition_index): each
            for topic in answer.topics
            for each in topic.partitions
        }

    def _read_partitions(self) -> list[PartitionState]:
        # The moves first: a move that ends in between then only seems to be still under way.
        moving = self.moving()
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        topics = {topic.name or "": topic for topic in self.ask(request, MetadataResponse).topics}
        minimum = self._min_insync_replicas(sorted(topics))
        nothing = ListPartitionReassignmentsResponsePartition()
        found = []
        for name in sorted(topics):
            for each in sorted(topics[name].partitions, key=lambda partition: partition.partition_index):
                partition = TopicPartition(name, each.partition_index)
                move = moving.get(partition, nothing)
                found.append(
                    PartitionState(
                        partition,
                        each.leader_id,
                        tuple(each.replica_nodes),
                        tuple(each.isr_nodes),
                        minimum[name],
                        tuple(move.adding_replicas),
                        tuple(move.removing_replicas),
                    )
                )
        return found

    def _min_insync_replicas(self, topics: Sequence[str]) -> dict[str, int]:
        resources = [
            DescribeConfigsRequestResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=[MIN_INSYNC_REPLICAS]
            )
            for name in topics
        ]
        answer = self.ask(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
        found = dict.fromkeys(topics, 1)  # a topic that was deleted meanwhile has no answer
        for resource in answer.results:
            for config in resource.configs:  # the requested setting
                found[resource.resource_name] = int(config.value or 1)
        return found


def check(code: int, message: str | None) -> None:
    if code:
        raise refused(code, message)
