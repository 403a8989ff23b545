"""DescribeLogDirs, versions 1 to 5: show the size of each partition in its log directory, and the free space.

A null list of topics requests every partition this broker has; partitions it does not have are left out. Every
directory is always listed; one that has failed, or could not be opened, with that error and nothing else. Replicas are
never moved between directories, so none is a future replica and none lags.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.directories.log_set import DirectoryLogs
from flowstone.replication.partition import Partition
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    DescribeLogDirsRequest,
    DescribeLogDirsRequestTopic,
    DescribeLogDirsResponse,
    DescribeLogDirsResponseLogDir,
    DescribeLogDirsResponsePartition,
    DescribeLogDirsResponseTopic,
)


async def handle(services: Services, context: RequestContext, request: DescribeLogDirsRequest) -> Message:
    logs = services.logs
    # A copy: partitions may be added and closed between two time slices.
    wanted = [*services.partitions] if request.topics is None else _named(services, request.topics)
    by_directory: dict[DirectoryLogs, dict[str, list[DescribeLogDirsResponsePartition]]] = {}
    slices = TimeSlices(services.clock.monotonic)
    elements = 0
    async for partition in slices.over(wanted):
        if partition is None:
            continue
        elements += 1
        topic, index = partition.topic_partition
        sizes = by_directory.setdefault(logs.directory_of(partition.log), {}).setdefault(topic, [])
        sizes.append(DescribeLogDirsResponsePartition(partition_index=index, partition_size=partition.log.size_bytes))
    results = [_directory(each, by_directory.get(each, {})) for each in logs.directories]
    response = DescribeLogDirsResponse(results=[*results, *map(_failed, logs.unusable)])
    return await encode_if_long(services, context, response, elements, slices)


def _directory(
    directory: DirectoryLogs, topics: dict[str, list[DescribeLogDirsResponsePartition]]
) -> DescribeLogDirsResponseLogDir:
    if directory.fault is not None:
        return _failed(directory.path)
    try:
        usable_bytes, total_bytes = directory.free_bytes()
    except OSError:
        return _failed(directory.path)
    return DescribeLogDirsResponseLogDir(
        log_dir=posixpath.abspath(directory.path),
        topics=[DescribeLogDirsResponseTopic(name=name, partitions=sizes) for name, sizes in topics.items()],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )


def _failed(path: str) -> DescribeLogDirsResponseLogDir:
    return DescribeLogDirsResponseLogDir(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=posixpath.abspath(path))


def _named(services: Services, topics: Iterable[DescribeLogDirsRequestTopic]) -> Iterator[Partition | None]:
    """Yield the named partitions, None for each that is not on this broker."""
    for topic in topics:
        for index in topic.partitions:
            try:
                yield services.partitions.get(topic.topic, index)
            except ApiError:
                yield None
