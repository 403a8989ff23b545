"""DescribeLogDirs, versions 1 to 5: show the size of each partition in its log directory, and the free space.

A null list of topics requests every partition this broker has; partitions it does not have are left out. Every
directory is always listed; one that has failed, or could not be opened, with that error and nothing else. A partition
that is being moved is listed twice: as a future replica, with how far it is behind, in the directory that it moves to.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.directories.log_set import DirectoryLogs
from flowstone.log.directories.replica_moves import ReplicaMove
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
        log = partition.log
        sizes = by_directory.setdefault(logs.directory_of(log), {}).setdefault(topic, [])
        lag = max(0, partition.high_watermark.offset - log.log_end_offset)
        sizes.append(
            DescribeLogDirsResponsePartition(partition_index=index, partition_size=log.size_bytes, offset_lag=lag)
        )
        move = logs.moves.find(partition.topic_partition)
        if move is not None:
            futures = by_directory.setdefault(move.target, {}).setdefault(topic, [])
            futures.append(_future(index, move))
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


def _future(index: int, move: ReplicaMove) -> DescribeLogDirsResponsePartition:
    return DescribeLogDirsResponsePartition(
        partition_index=index, partition_size=move.size_bytes, offset_lag=move.offset_lag, is_future_key=True
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
