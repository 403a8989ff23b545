"""DescribeLogDirs, versions 1 to 5: what each partition takes in the data directory, and how much room there is.

A null list of topics asks for every partition this broker has; partitions it does not have are passed over. The
directory itself is always shown; once it has failed, with that error and nothing else. Nothing is ever moved between
directories, so no replica is a future one and none lags.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from flowstone.broker.context import RequestContext, Services
from flowstone.errors import ApiError, ErrorCode
from flowstone.replication.partition import Partition
from flowstone.wire.messages import (
    DescribeLogDirsRequest,
    DescribeLogDirsRequestTopic,
    DescribeLogDirsResponse,
    DescribeLogDirsResponseLogDir,
    DescribeLogDirsResponsePartition,
    DescribeLogDirsResponseTopic,
)


def handle(services: Services, context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    path = posixpath.abspath(services.logs.directory)
    if services.logs.flusher.fault is not None:
        failed = DescribeLogDirsResponseLogDir(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path)
        return DescribeLogDirsResponse(results=[failed])
    wanted = services.partitions if request.topics is None else _named(services, request.topics)
    by_topic: dict[str, dict[int, Partition]] = {}
    for partition in wanted:
        by_topic.setdefault(partition.topic_partition.topic, {})[partition.topic_partition.partition] = partition
    usable_bytes, total_bytes = services.logs.free_bytes()
    directory = DescribeLogDirsResponseLogDir(
        log_dir=path,
        topics=[
            DescribeLogDirsResponseTopic(name=name, partitions=_sizes(partitions))
            for name, partitions in by_topic.items()
        ],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    return DescribeLogDirsResponse(results=[directory])


def _named(services: Services, topics: Iterable[DescribeLogDirsRequestTopic]) -> Iterator[Partition]:
    for topic in topics:
        for index in topic.partitions:
            try:
                yield services.partitions.get(topic.topic, index)
            except ApiError:
                continue


def _sizes(partitions: dict[int, Partition]) -> list[DescribeLogDirsResponsePartition]:
    return [
        DescribeLogDirsResponsePartition(partition_index=index, partition_size=partition.log.size_bytes)
        for index, partition in partitions.items()
    ]
