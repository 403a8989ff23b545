"""A member of a share group as requests over a socket: it fetches, acknowledges and says nothing of itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from flowstone.wire import messages as m
from flowstone.wire.record_batch import decode_records
from tests.support.wire_client import Client, whole_batches

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
GROUP = "g"


class Delivered(NamedTuple):
    offset: int
    delivery_count: int
    value: bytes | None


class Sharer:
    """One member on a connection of its own; its requests follow the epochs of its session."""

    def __init__(self, client: Client, topic_id: bytes, member: str = "m", group: str = GROUP) -> None:
        self.client, self.topic_id, self.member, self.group = client, topic_id, member, group
        self.epoch = 0

    def fetch(
        self,
        *acks: tuple[int, int, int],
        wait_ms: int = 1000,
        max_records: int = 500,
        partition: int = 0,
        **more: Any,
    ) -> Any:
        """The response to a fetch of one partition with acknowledgements: first and last offset, type."""
        request = m.ShareFetchRequest(
            group_id=self.group,
            member_id=self.member,
            share_session_epoch=self.epoch,
            min_bytes=0 if more.get("is_renew_ack") else 1,
            topics=[
                m.ShareFetchRequestTopic(
                    topic_id=self.topic_id,
                    partitions=[
                        m.ShareFetchRequestPartition(
                            partition_index=partition,
                            acknowledgement_batches=[
                                m.ShareFetchRequestAcknowledgementBatch(
                                    first_offset=first, last_offset=last, acknowledge_types=types(kind)
                                )
                                for first, last, kind in acks
                            ],
                        )
                    ],
                )
            ],
            forgotten_topics_data=more.pop("forgotten", []),
            **{"max_wait_ms": wait_ms, "max_records": max_records, "max_bytes": 1 << 20, "batch_size": 500} | more,
        )
        return self._next(self.client.ask(2, request))

    def acknowledge(self, *acks: tuple[int, int, int], partition: int = 0, is_renew_ack: bool = False) -> Any:
        """The response to acknowledgements of one partition."""
        request = m.ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.member,
            share_session_epoch=self.epoch,
            is_renew_ack=is_renew_ack,
            topics=[
                m.ShareAcknowledgeRequestTopic(
                    topic_id=self.topic_id,
                    partitions=[
                        m.ShareAcknowledgeRequestPartition(
                            partition_index=partition,
                            acknowledgement_batches=[
                                m.ShareAcknowledgeRequestAcknowledgementBatch(
                                    first_offset=first, last_offset=last, acknowledge_types=types(kind)
                                )
                                for first, last, kind in acks
                            ],
                        )
                    ],
                )
            ],
        )
        return self._next(self.client.ask(2, request))

    def take(self, *acks: tuple[int, int, int], **more: Any) -> list[Delivered]:
        """The records that a fetch acquires; it must have no error."""
        return list(delivered(self.fetch(*acks, **more)))

    def accept(self, *acks: tuple[int, int]) -> None:
        """Accept records, which must succeed."""
        answer = self.acknowledge(*((first, last, ACCEPT) for first, last in acks))
        assert answer.error_code == 0, answer
        assert all(each.error_code == 0 for topic in answer.responses for each in topic.partitions), answer

    def _next(self, response: Any) -> Any:
        if response.error_code == 0:
            self.epoch = max(self.epoch, 0) + 1
        return response


def types(kind: int | Iterable[int]) -> list[int]:
    return [kind] if isinstance(kind, int) else list(kind)


def delivered(response: Any) -> Iterable[Delivered]:
    assert response.error_code == 0, (response.error_code, response.error_message)
    for topic in response.responses:
        for partition in topic.partitions:
            assert partition.error_code == 0, (partition.error_code, partition.error_message)
            assert partition.acknowledge_error_code == 0, partition.acknowledge_error_message
            records = {}
            for batch in whole_batches(bytes(partition.records)):
                records.update({record.offset: record.value for record in decode_records(batch)})
            for each in partition.acquired_records:
                for offset in range(each.first_offset, each.last_offset + 1):
                    yield Delivered(offset, each.delivery_count, records.get(offset))


def begin(client: Client, topic_id: bytes, partitions: int = 1, group: str = GROUP, start_offset: int = -1) -> None:
    """Initialize the state of share partitions, as the group coordinator does."""
    state = [
        m.InitializeShareGroupStateRequestPartition(partition=each, state_epoch=0, start_offset=start_offset)
        for each in range(partitions)
    ]
    client.ask(6, m.FindCoordinatorRequest(key_type=2, coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAA:0"]))
    topic = m.InitializeShareGroupStateRequestTopic(topic_id=topic_id, partitions=state)
    answer = client.ask(0, m.InitializeShareGroupStateRequest(group_id=group, topics=[topic]))
    assert all(each.error_code == 0 for topic in answer.results for each in topic.partitions), answer


def topic_id_of(client: Client, name: str) -> bytes:
    answer = client.ask(12, m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)]))
    return bytes(answer.topics[0].topic_id)
