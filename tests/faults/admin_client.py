"""What an operator asks for, over one blocking connection: topics, their settings, a group's offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import generated as messages

from .raw_client import (
    CREATE_TOPICS,
    DELETE_TOPICS,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    RawClient,
    Refused,
)

TOPIC_RESOURCE, SET = 2, 0
LOADING = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
LOADING_S_MAX = 10.0
POLL_S = 0.01


def _check(code: int, message: str | None = None) -> None:
    if code:
        raise Refused(code, message)


class AdminClient(RawClient):
    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        wanted = messages.CreateTopicsRequestTopic(
            name=topic,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                messages.CreateTopicsRequestConfig(name=name, value=text) for name, text in (configs or {}).items()
            ],
        )
        answer = self.ask(CREATE_TOPICS, messages.CreateTopicsRequest(topics=[wanted])).topics[0]
        _check(answer.error_code, answer.error_message)

    def alter_topic(self, topic: str, configs: Mapping[str, str]) -> None:
        wanted = messages.IncrementalAlterConfigsRequestResource(
            resource_type=TOPIC_RESOURCE,
            resource_name=topic,
            configs=[
                messages.IncrementalAlterConfigsRequestConfig(name=name, config_operation=SET, value=value)
                for name, value in configs.items()
            ],
        )
        request = messages.IncrementalAlterConfigsRequest(resources=[wanted], validate_only=False)
        answer = self.ask(INCREMENTAL_ALTER_CONFIGS, request).responses[0]
        _check(answer.error_code, answer.error_message)

    def delete_topic(self, topic: str) -> None:
        answer = self.ask(
            DELETE_TOPICS, messages.DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
        ).responses[0]
        _check(answer.error_code, answer.error_message)

    def topics(self) -> set[str]:
        answer = self.ask(METADATA, messages.MetadataRequest(topics=None, allow_auto_topic_creation=False))
        return {topic.name for topic in answer.topics}

    def commit(self, group_id: str, partition: TopicPartition, offset: int) -> None:
        wanted = messages.OffsetCommitRequestPartition(
            partition_index=partition.partition, committed_offset=offset, committed_metadata=""
        )
        topic = messages.OffsetCommitRequestTopic(name=partition.topic, partitions=[wanted])
        request = messages.OffsetCommitRequest(group_id=group_id, member_id="", topics=[topic])
        self._find(group_id)
        self._when_loaded(lambda: self.ask(OFFSET_COMMIT, request).topics[0].partitions[0].error_code)

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """All offsets of the group."""
        self._find(group_id)
        found: list[messages.OffsetFetchResponseTopic] = []

        def fetch() -> int:
            answer = self.ask(OFFSET_FETCH, messages.OffsetFetchRequest(group_id=group_id, topics=None))
            found[:] = answer.topics
            code: int = answer.error_code
            return code

        self._when_loaded(fetch)
        return {
            TopicPartition(topic.name, each.partition_index): each.committed_offset
            for topic in found
            for each in topic.partitions
        }

    def _find(self, group_id: str) -> None:
        """Makes the offsets topic, if nobody has asked for a coordinator before."""
        request = messages.FindCoordinatorRequest(key=group_id, key_type=0)
        self._when_loaded(lambda: self.ask(FIND_COORDINATOR, request).error_code)

    def _when_loaded(self, ask: Callable[[], int]) -> None:
        deadline = time.monotonic() + LOADING_S_MAX
        while (code := ErrorCode(ask())) in LOADING and time.monotonic() < deadline:
            time.sleep(POLL_S)
        _check(code)
