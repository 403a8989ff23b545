"""Branches of topics: from a request to a topic that clients see, and the cleanup after a failure.

The steps: the name is checked; the end of each partition in the branch is determined; the records before it are
committed and the branch's files are made (`log.branching`); the topic is added to the metadata, which makes it visible;
and groups' offsets are copied if requested. A crash leaves nothing of the branch or all of it, except for the offsets:
they are copied after the topic was added, because a crash would otherwise leave them to any later topic of that name.

A branch that ends "now" is cut in one iteration of the event loop, so that it is consistent across partitions: no
record is in it that was appended after one that is not. Only the partitions of very wide topics are cut in several
iterations, to let other requests run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from flowstone.broker.loop.cold_reads import read_when_cached
from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.requests.context import Services, check_alone
from flowstone.broker.topics.offset_copies import copy_offsets
from flowstone.cluster.decisions.configs import broker_config
from flowstone.cluster.decisions.topic_branches import branch_topic, find_source
from flowstone.cluster.decisions.topic_changes import delete_topics
from flowstone.cluster.image.cluster_image import ClusterImage, TopicImage
from flowstone.cluster.image.ids import random_id
from flowstone.cluster.image.records import MetadataRecord
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.branching.staging import StagedBranch
from flowstone.log.partition.timestamps import first_record_at
from flowstone.replication.partition import Partition
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

# Branches made at the same time, since each uses threads and disk bandwidth; further requests are refused.
BRANCHES_AT_ONCE_MAX = 4
# Partitions rolled in one iteration of the loop: a roll creates a few files, in about a third of a millisecond.
ROLLS_PER_SLICE = 64


class BranchRequest(NamedTuple):
    source: str
    target: str
    time_ms: int | None = None  # None: now
    with_groups: bool = False


class BranchedPartition(NamedTuple):
    partition: int
    first_offset: int
    next_offset: int
    linked_bytes: int
    copied_bytes: int


class BranchedTopic(NamedTuple):
    topic_id: bytes
    partitions: tuple[BranchedPartition, ...]
    group_ids: tuple[str, ...]
    took_ms: int


class TopicBranches:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._under_way: dict[BranchRequest, asyncio.Task[BranchedTopic]] = {}

    def begin(self, request: BranchRequest) -> asyncio.Task[BranchedTopic]:
        """Start a branch, or return the task of an identical running request.

        The task raises ApiError.
        """
        task = self._under_way.get(request)
        if task is None:
            if len(self._under_way) >= BRANCHES_AT_ONCE_MAX:
                raise ApiError(
                    ErrorCode.POLICY_VIOLATION, f"{len(self._under_way)} branches are being made; try again later"
                )
            task = self._under_way[request] = asyncio.ensure_future(self._branch(request))
            task.add_done_callback(partial(self._finished, request))
        return task

    def _finished(self, request: BranchRequest, task: asyncio.Task[BranchedTopic]) -> None:
        self._under_way.pop(request, None)
        error = task.exception() if not task.cancelled() else None
        # The client may be gone by now. An invalid request is not logged.
        if error is not None and (not isinstance(error, ApiError) or error.code is ErrorCode.KAFKA_STORAGE_ERROR):
            logger.warning("branch %s of %s could not be made: %s", request.target, request.source, error)

    def stop(self) -> None:
        """Cancel branches that are being created; the next start removes their files."""
        for task in self._under_way.values():
            task.cancel()

    async def _branch(self, request: BranchRequest) -> BranchedTopic:
        services, topic_id = self._services, random_id()
        check_alone(services, "a branch")
        begun_s = services.clock.monotonic()
        source = find_source(services.metadata.image, request.source)
        await self._check_name(request, source, topic_id)
        partitions = [services.partitions.get(source.name, index) for index in range(len(source.partitions))]
        ends = await self._ends(partitions, request.time_ms)
        logs = [partition.log for partition in partitions]
        try:
            staged = await services.logs.branches.stage(list(zip(logs, ends, strict=True)), request.target, topic_id)
            try:
                await self._install(request, source, topic_id, staged)
                group_ids = await self._publish(request, source, topic_id, staged)
            except BaseException:
                self._withdraw(topic_id, staged)
                raise
        finally:
            for log in logs:
                services.logs.directory_of(log).housekeeping.flush(log)
        took_ms = round((services.clock.monotonic() - begun_s) * 1000)
        return BranchedTopic(topic_id, _branched(len(partitions), staged), group_ids, took_ms)

    async def _check_name(self, request: BranchRequest, source: TopicImage, topic_id: bytes) -> None:
        """Raise ApiError if the branch cannot be created now, considering branches that are being created."""

        def decide(image: ClusterImage) -> tuple[Sequence[MetadataRecord], None]:
            branch_topic(image, source, request.target, topic_id, broker_config(image, self._services.config))
            return (), None

        await self._services.metadata.change(decide)

    # The end of the branch

    async def _ends(self, partitions: Sequence[Partition], time_ms: int | None) -> list[int]:
        for partition in partitions:
            partition.local.check_serving()
        # Flushing before the roll waits for the log's bytes only, not for new files.
        await _all_committed(partitions, [partition.log.log_end_offset for partition in partitions])
        if time_ms is None:
            ends = await self._ends_now(partitions)
        else:
            ends = list(await asyncio.gather(*(self._end_at(partition, time_ms) for partition in partitions)))
        await _all_committed(partitions, ends)
        return ends

    async def _ends_now(self, partitions: Sequence[Partition]) -> list[int]:
        ends = []
        for count, partition in enumerate(partitions):
            if count and count % ROLLS_PER_SLICE == 0:
                await yield_to_loop()
            ends.append(self._end(partition))
        return ends

    def _end(self, partition: Partition) -> int:
        """Roll the log at its end, so that all its segments can be linked, and return that offset.

        The new segment's files are flushed later: creating files is slow while others are synced.
        """
        log = partition.log
        if log.segments.active.size_bytes:
            try:
                log.roll()
            except OSError as error:
                raise ApiError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{log.topic_partition} cannot be rolled: {error}"
                ) from error
        return log.log_end_offset

    async def _end_at(self, partition: Partition, time_ms: int) -> int:
        """Return the offset of the first record at or after the time, as ListOffsets finds it, or the log's end."""
        log, workers = partition.log, self._services.workers
        batch = await read_when_cached(workers, partition, partial(log.find_timestamp, time_ms))
        if batch is None:
            return self._end(partition)
        from_offset = log.log_start_offset
        found = await workers.read(lambda: first_record_at(batch.read(), time_ms, from_offset))
        return found[0] if found is not None else self._end(partition)

    # From files to a topic

    async def _install(
        self, request: BranchRequest, source: TopicImage, topic_id: bytes, staged: Sequence[StagedBranch]
    ) -> None:
        logs = self._services.logs
        await logs.wait_forgotten()  # a topic of that name may have been deleted just before
        await self._check_name(request, source, topic_id)
        for index in range(len(source.partitions)):
            if not logs.is_free(TopicPartition(request.target, index)):
                raise ApiError(
                    ErrorCode.TOPIC_ALREADY_EXISTS,
                    f"'{request.target}-{index}' is on disk, and belongs to another topic",
                )
        await logs.branches.install(staged)

    async def _publish(
        self, request: BranchRequest, source: TopicImage, topic_id: bytes, staged: Sequence[StagedBranch]
    ) -> tuple[str, ...]:
        """Add the topic to the metadata and copy groups' offsets; return the groups."""
        services = self._services
        await services.metadata.change(
            lambda image: branch_topic(image, source, request.target, topic_id, broker_config(image, services.config))
        )
        services.logs.note_published([each.topic_partition for each in staged])
        if not request.with_groups:
            return ()
        try:
            return await self._copy_offsets(request, len(source.partitions), staged)
        except ApiError:
            # A branch without them would be incomplete. Deleting the topic also deletes the copied offsets.
            await services.metadata.change(lambda image: delete_topics(image, [(None, topic_id)]))
            raise

    async def _copy_offsets(
        self, request: BranchRequest, partition_count: int, staged: Sequence[StagedBranch]
    ) -> tuple[str, ...]:
        ends = {each.topic_partition.partition: each.built.end_offset for each in staged}
        return await copy_offsets(
            self._services, request.source, request.target, [ends.get(index, 0) for index in range(partition_count)]
        )

    def _withdraw(self, topic_id: bytes, staged: Sequence[StagedBranch]) -> None:
        """Delete the files of a branch, unless its topic exists: a failed append may still be durable."""
        services = self._services
        if topic_id in services.metadata.image.topics_by_id:
            return
        for each in staged:
            log = services.logs.logs.get(each.topic_partition)
            if log is not None and log.topic_id == topic_id:
                try:
                    services.logs.delete(each.topic_partition)
                except StorageFault as fault:  # the next start deletes it: no topic has this id
                    logger.error("%s", fault)
        services.logs.branches.discard(staged)


async def _all_committed(partitions: Sequence[Partition], offsets: Sequence[int]) -> None:
    waiting = [
        _committed(partition, offset)
        for partition, offset in zip(partitions, offsets, strict=True)
        if partition.high_watermark.offset < offset
    ]
    await asyncio.gather(*waiting)


async def _committed(partition: Partition, offset: int) -> None:
    """Wait until all records below the offset are committed. Raises ApiError if they may not be."""
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    partition.when_committed(offset, lambda code: None if done.done() else done.set_result(code))
    code = await done
    if code is not ErrorCode.NONE:
        raise ApiError(code, f"{partition.topic_partition} was closed while it was branched")


def _branched(partition_count: int, staged: Sequence[StagedBranch]) -> tuple[BranchedPartition, ...]:
    built = {each.topic_partition.partition: each.built for each in staged}
    partitions = []
    for index in range(partition_count):
        if index in built:
            each = built[index]
            sizes = each.linked_bytes, each.copied_bytes
            partitions.append(BranchedPartition(index, each.log_start_offset, each.end_offset, *sizes))
        else:
            partitions.append(BranchedPartition(index, 0, 0, 0, 0))  # the partition was always empty
    return tuple(partitions)
