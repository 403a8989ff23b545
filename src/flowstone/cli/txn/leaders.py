"""Requests to the leaders of partitions: which producers a partition remembers, and markers that abort transactions."""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.cli.common.errors import CommandError
from flowstone.cli.txn.broker_link import BrokerLink, chunks
from flowstone.cli.txn.facts import NO_OFFSET, OpenTransaction, PartitionProducer
from flowstone.client.errors import refusal
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeProducersRequest,
    DescribeProducersRequestTopic,
    DescribeProducersResponse,
    DescribeProducersResponsePartition,
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestMarker,
    WriteTxnMarkersRequestTopic,
    WriteTxnMarkersResponse,
)

NO_LEADER = -1
PARTITIONS_AT_ONCE = 200  # of one request
BROKER_RESOURCE = 4
MAX_TIMEOUT_SETTING, MAX_TIMEOUT_MS_DEFAULT = "transaction.max.timeout.ms", 15 * 60_000


class PartitionLeaders:
    def __init__(self, link: BrokerLink) -> None:
        self._link = link

    def alive(self) -> list[int]:
        """Return the node ids of the brokers that are alive."""
        self._link.retry(lambda left_s: self._link.brokers.describe([], left_s))
        return self._link.brokers.node_ids

    def partitions(self, topic: str | None = None, partition: int | None = None) -> dict[TopicPartition, int]:
        """Return the node id of the leader of each partition: of all, of a topic's, or one. Raises CommandError."""
        topics = self._link.retry(lambda left_s: self._link.brokers.describe(None, left_s))
        leaders = {
            TopicPartition(each.name or "", one.partition_index): one.leader_id
            for each in topics
            for one in each.partitions
        }
        if topic is None:
            return leaders
        of_topic = {each: leader for each, leader in leaders.items() if each.topic == topic}
        if not of_topic:
            from flowstone.config import nearest

            advice = nearest(topic, [each.name or "" for each in topics]) or "; see `flowstone topic list`"
            raise CommandError(f"there is no topic {topic}{advice}")
        if partition is None:
            return of_topic
        where = TopicPartition(topic, partition)
        if where not in of_topic:
            last = max(each.partition for each in of_topic)
            raise CommandError(f"{topic} has no partition {partition}: its partitions are 0 to {last}")
        return {where: of_topic[where]}

    def producers_of(self, where: TopicPartition) -> list[PartitionProducer]:
        """Return the producers that a partition remembers. Raises CommandError if it does not exist, or is offline."""
        leaders = self.partitions(*where)
        if leaders[where] == NO_LEADER:
            raise CommandError(f"{where} has no leader: see `flowstone cluster status --verbose`")
        return self.producers(leaders)[where]

    def producers(self, leaders: dict[TopicPartition, int]) -> dict[TopicPartition, list[PartitionProducer]]:
        """Return the producers that each partition's leader remembers, without partitions that have no leader."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for where, leader in leaders.items():
            if leader != NO_LEADER:
                by_leader.setdefault(leader, []).append(where)
        found: dict[TopicPartition, list[PartitionProducer]] = {}
        for leader, partitions in by_leader.items():
            for some in chunks(partitions, PARTITIONS_AT_ONCE):
                found |= self._producers_at(leader, some)
        return found

    def _producers_at(
        self, leader: int, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[PartitionProducer]]:
        found = {}
        for where, answer in self._link.retry(lambda left_s: self._ask_producers(leader, partitions, left_s)).items():
            if answer.error_code == ErrorCode.INVALID_REQUEST and len(partitions) > 1:
                # Together they have more producers than the broker describes at once.
                found.update(self._producers_at(leader, [where]))
            else:
                found[where] = [
                    PartitionProducer(
                        each.producer_id,
                        each.producer_epoch,
                        each.coordinator_epoch,
                        each.last_sequence,
                        each.last_timestamp,
                        each.current_txn_start_offset if each.current_txn_start_offset != NO_OFFSET else None,
                    )
                    for each in answer.active_producers
                ]
        return found

    def _ask_producers(
        self, leader: int, partitions: Sequence[TopicPartition], left_s: float
    ) -> dict[TopicPartition, DescribeProducersResponsePartition]:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        request = DescribeProducersRequest(
            topics=[DescribeProducersRequestTopic(name=name, partition_indexes=each) for name, each in topics.items()]
        )
        found = {}
        for answered in self._link.brokers.ask_node(leader, request, DescribeProducersResponse, left_s).topics:
            for each in answered.partitions:
                where = TopicPartition(answered.name, each.partition_index)
                if each.error_code and (each.error_code != ErrorCode.INVALID_REQUEST or len(partitions) == 1):
                    raise refusal(each.error_code, f"{where} at broker {leader}", each.error_message)
                found[where] = each
        return found

    def max_timeout_ms(self) -> int:
        """Return the brokers' transaction.max.timeout.ms, or Kafka's default if it cannot be read."""
        self._link.retry(lambda left_s: self._link.brokers.describe([], left_s))
        resource = DescribeConfigsRequestResource(
            resource_type=BROKER_RESOURCE,
            resource_name=str(self._link.brokers.any_node_id()),
            configuration_keys=[MAX_TIMEOUT_SETTING],
        )
        request = DescribeConfigsRequest(resources=[resource])
        answer = self._link.retry(lambda left_s: self._link.brokers.ask_any(request, DescribeConfigsResponse, left_s))
        values = [each.value for result in answer.results for each in result.configs]
        return int(values[0]) if values and values[0] else MAX_TIMEOUT_MS_DEFAULT

    def write_abort_marker(self, transaction: OpenTransaction, leader: int) -> None:
        """Abort an open transaction in its partition. Raises CommandError if the leader refuses."""
        where, producer = transaction.partition, transaction.producer
        request = WriteTxnMarkersRequest(
            markers=[
                WriteTxnMarkersRequestMarker(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    transaction_result=False,
                    topics=[WriteTxnMarkersRequestTopic(name=where.topic, partition_indexes=[where.partition])],
                    coordinator_epoch=max(producer.coordinator_epoch, 0),
                )
            ]
        )

        def ask(left_s: float) -> None:
            answer = self._link.brokers.ask_node(leader, request, WriteTxnMarkersResponse, left_s)
            code = answer.markers[0].topics[0].partitions[0].error_code
            if code == ErrorCode.TRANSACTION_COORDINATOR_FENCED or code == ErrorCode.INVALID_PRODUCER_EPOCH:
                raise CommandError(
                    f"the transaction of producer {producer.producer_id} in {where} has been ended meanwhile: see "
                    f"`flowstone txn producers {where.topic}/{where.partition}`"
                )
            if code:
                raise refusal(code, f"the end marker in {where}")

        self._link.retry(ask)
