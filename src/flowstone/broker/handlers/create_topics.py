"""CreateTopics, versions 2 to 7. Since version 5 the answer shows the topic's numbers and settings, since 7 its id.

A topic is there as soon as the metadata log has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.broker.changes import change
from flowstone.broker.context import RequestContext, Services
from flowstone.cluster.configs import broker_config, describe_topic
from flowstone.cluster.ids import random_id
from flowstone.cluster.image import ClusterImage
from flowstone.cluster.partition_plans import NewTopic
from flowstone.cluster.records import MetadataRecord
from flowstone.cluster.topic_changes import TopicResult, create_topics
from flowstone.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
    CreateTopicsResponseConfig,
    CreateTopicsResponseTopic,
)


async def handle(services: Services, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    wanted = [_new_topic(topic) for topic in request.topics]

    def decide(image: ClusterImage) -> tuple[Sequence[MetadataRecord], list[TopicResult]]:
        records, results = create_topics(image, wanted, broker_config(image, services.config), random_id)
        return () if request.validate_only else records, results

    results = await change(services, decide, request.timeout_ms)
    return CreateTopicsResponse(topics=[_answer(services, result) for result in results])


def _new_topic(topic: CreateTopicsRequestTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(each.partition_index, each.broker_ids) for each in topic.assignments],
        configs=[(each.name, each.value) for each in topic.configs],
    )


def _answer(services: Services, result: TopicResult) -> CreateTopicsResponseTopic:
    answer = CreateTopicsResponseTopic(
        name=result.name or "", error_code=result.error, error_message=result.message, configs=[]
    )
    if result.topic is None:
        return answer
    answer.topic_id = result.topic_id
    answer.num_partitions = len(result.topic.partitions)
    answer.replication_factor = len(result.topic.partitions[0].replicas)
    entries = describe_topic(services.metadata.image, result.topic, services.topic_defaults, services.config.node_id)
    answer.configs = [
        CreateTopicsResponseConfig(name=entry.setting.name, value=entry.value, config_source=entry.source)
        for entry in sorted(entries, key=lambda entry: entry.setting.name)
    ]
    return answer
