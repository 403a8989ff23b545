"""Topics restored from a backup: from directories that the command line has staged to a topic that clients see.

The steps: the name is checked; the staged directories become logs (`log.directories`); at last the topic is added to
the metadata, which makes it visible. A crash before that leaves nothing of it, a crash after it leaves all of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from flowstone.broker.requests.context import Services, check_alone
from flowstone.cluster.decisions.configs import broker_config
from flowstone.cluster.decisions.partition_plans import NewTopic
from flowstone.cluster.decisions.topic_changes import create_topics
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.ids import random_id
from flowstone.cluster.image.records import MetadataRecord, TopicCreated
from flowstone.config import parse_topic_config
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.directories.restored_partitions import StagedLog, prepare, staged_path
from flowstone.types import TopicPartition

_TOKEN = re.compile(r"[0-9a-f]{32}")


class RestoreRequest(NamedTuple):
    topic: str
    partition_count: int
    token: str  # in the names of the staged directories; a partition without one is empty
    settings: Mapping[str, str]


async def restore_topic(services: Services, request: RestoreRequest) -> bytes:
    """Return the id of the restored topic.

    Raises ApiError or StorageFault if it was not restored; the staged directories are then of no use.
    """
    check_alone(services, "a restore")
    restoring = _Restoring(services, request)
    await restoring.check_name()
    staged = await restoring.prepare()
    try:
        await restoring.install(staged)
        await restoring.publish(staged)
    except BaseException:
        restoring.withdraw(staged)
        raise
    return restoring.topic_id


class _Restoring:
    def __init__(self, services: Services, request: RestoreRequest) -> None:
        self._services, self._request = services, request
        self.topic_id = random_id()

    async def check_name(self) -> None:
        """Raise ApiError if the topic cannot be created now, considering other running requests."""
        await self._services.metadata.change(lambda image: ((), self._decide(image)))

    def _decide(self, image: ClusterImage) -> TopicCreated:
        request, config = self._request, broker_config(image, self._services.config)
        wanted = NewTopic(request.topic, request.partition_count, configs=tuple(request.settings.items()))
        records, (result,) = create_topics(image, [wanted], config, lambda: self.topic_id)
        if result.error is not ErrorCode.NONE:
            raise ApiError(result.error, result.message or "")
        (record,) = records
        assert isinstance(record, TopicCreated)
        return record

    async def prepare(self) -> list[StagedLog]:
        if not _TOKEN.fullmatch(self._request.token):
            raise ApiError(ErrorCode.INVALID_REQUEST, "not a restore's token")
        staged = []
        for index in range(self._request.partition_count):
            for home in self._services.logs.directories:
                path = staged_path(home.path, index, self._request.token)
                if home.fault is None and home.log_directory.files.is_directory(path):
                    topic_partition = TopicPartition(self._request.topic, index)
                    staged.append(await prepare(home, path, topic_partition, self.topic_id))
        return staged

    async def install(self, staged: Sequence[StagedLog]) -> None:
        services = self._services
        await services.logs.wait_forgotten()  # a topic of that name may have been deleted just before
        await self.check_name()
        for index in range(self._request.partition_count):
            if not services.logs.is_free(TopicPartition(self._request.topic, index)):
                taken = f"'{self._request.topic}-{index}' is on disk, and belongs to another topic"
                raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, taken)
        await services.logs.restore(staged, parse_topic_config(services.topic_defaults, self._request.settings))

    async def publish(self, staged: Sequence[StagedLog]) -> None:
        epochs = {each.topic_partition.partition: each.leader_epoch for each in staged}

        def decide(image: ClusterImage) -> tuple[Sequence[MetadataRecord], None]:
            created = self._decide(image)
            partitions = tuple(
                replace(each, leader_epoch=epochs.get(index, each.leader_epoch))
                for index, each in enumerate(created.partitions)
            )
            return [replace(created, partitions=partitions)], None

        await self._services.metadata.change(decide)
        self._services.logs.note_published([each.topic_partition for each in staged])

    def withdraw(self, staged: Sequence[StagedLog]) -> None:
        """Delete the restored logs, unless their topic exists: a failed append may still be durable."""
        services = self._services
        if self.topic_id in services.metadata.image.topics_by_id:
            return
        for each in staged:
            log = services.logs.logs.get(each.topic_partition)
            if log is not None and log.topic_id == self.topic_id:
                services.logs.delete(each.topic_partition)
