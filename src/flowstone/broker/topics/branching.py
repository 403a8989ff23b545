"""Branches of topics: from a request to a topic that clients see, and what becomes of it when something fails.

The steps: the name is found free; the place where each partition ends in the branch is settled; what lies before it is
committed and its files are made (`log.branches`); the metadata gets the topic, which is what makes it one; and groups'
offsets are copied if asked for. A crash leaves nothing of the branch or all of it, but for the offsets: they come after
the topic, or a crash would leave them to whatever topic has that name one day.

"Now" is one turn of the event loop: no record of any partition is in the branch that came after one that is not. Only
the partitions of very wide topics are taken in several turns, since others wait for each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from flowstone.broker.loop.cold_reads import read_when_cached
from flowstone.broker.loop.time_slices import others_turn
from flowstone.broker.requests.context import Services, check_alone
from flowstone.cluster.decisions.configs import broker_config
from flowstone.cluster.decisions.topic_branches import branch_topic, find_source
from flowstone.cluster.decisions.topic_changes import delete_topics
from flowstone.cluster.image.cluster_image import ClusterImage, TopicImage
from flowstone.cluster.image.ids import random_id
from flowstone.cluster.image.records import MetadataRecord
from flowstone.coordinator.groups.branching import BranchOffsetsRequest
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.branching.staging import StagedBranch
from flowstone.log.partition.timestamps import first_record_at
from flowstone.replication.partition import Partition
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

# Each takes threads and disk bandwidth of its own; those that ask for more are refused.
BRANCHES_AT_ONCE_MAX = 4
# A roll makes a few files: about a third of a millisecond.
ROLLS_PER_TURN = 64


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
        """Makes the branch, or tells of the one that is being made just like this. ApiError comes with the task."""
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
        # Whoever asked may have hung up by now. What they asked wrong is no news for our log.
        if error is not None and (not isinstance(error, ApiError) or error.code is ErrorCode.KAFKA_STORAGE_ERROR):
            logger.warning("no branch %s of %s was made: %s", request.target, request.source, error)

    def stop(self) -> None:
        """Gives up what is under way; the next start removes what there is of it."""
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
        """ApiError if the branch could not be made now, whatever others have under way included."""

        def decide(image: ClusterImage) -> tuple[Sequence[MetadataRecord], None]:
            branch_topic(image, source, request.target, topic_id, broker_config(image, self._services.config))
            return (), None

        await self._services.metadata.change(decide)

    # Where it ends

    async def _ends(self, partitions: Sequence[Partition], time_ms: int | None) -> list[int]:
        for partition in partitions:
            partition.local.check_serving()
        # Of a log that is flushed before it is rolled, its bytes alone have to be.
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
            if count and count % ROLLS_PER_TURN == 0:
                await others_turn()
            ends.append(self._end(partition))
        return ends

    def _end(self, partition: Partition) -> int:
        """Where the log ends now: there it is rolled, so that all of it can be linked.

        What the roll has made besides is flushed later: names are made slowly while others are synced.
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
        """The first record at or after the time, as ListOffsets finds it; without one, where the log ends now."""
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
        await logs.wait_forgotten()  # a topic of that name may just have been deleted
        await self._check_name(request, source, topic_id)
        for index in range(len(source.partitions)):
            if not logs.is_free(TopicPartition(request.target, index)):
                raise ApiError(
                    ErrorCode.TOPIC_ALREADY_EXISTS, f"'{request.target}-{index}' is on disk, as another topic's"
                )
        await logs.branches.install(staged)

    async def _publish(
        self, request: BranchRequest, source: TopicImage, topic_id: bytes, staged: Sequence[StagedBranch]
    ) -> tuple[str, ...]:
        """The groups whose offsets were copied."""
        services = self._services
        await services.metadata.change(
            lambda image: branch_topic(image, source, request.target, topic_id, broker_config(image, services.config))
        )
        if not request.with_groups:
            return ()
        try:
            return await self._copy_offsets(request, len(source.partitions), staged)
        except ApiError:
            # Without them it is not what was asked for. With the topic, all that was copied goes.
            await services.metadata.change(lambda image: delete_topics(image, [(None, topic_id)]))
            raise

    async def _copy_offsets(
        self, request: BranchRequest, partition_count: int, staged: Sequence[StagedBranch]
    ) -> tuple[str, ...]:
        ends = {each.topic_partition.partition: each.built.end_offset for each in staged}
        asked = BranchOffsetsRequest(
            request.source, request.target, tuple(ends.get(index, 0) for index in range(partition_count))
        )
        tokens = self._services.groups.request_all(
            lambda shard, now_ms, token: shard.branch_offsets(now_ms, token, asked)
        )
        answers = [await token for token in tokens]
        return tuple(sorted(group_id for answer in answers for group_id in answer.group_ids))

    def _withdraw(self, topic_id: bytes, staged: Sequence[StagedBranch]) -> None:
        """Nothing of the branch is left, unless it is a topic all the same: an append may fail after it is durable."""
        services = self._services
        if topic_id in services.metadata.image.topics_by_id:
            return
        for each in staged:
            log = services.logs.logs.get(each.topic_partition)
            if log is not None and log.topic_id == topic_id:
                try:
                    services.logs.delete(each.topic_partition)
                except StorageFault as fault:  # the next start condemns it: no topic has this id
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
    """Returns once what lies below the offset is committed; ApiError if it may not be."""
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    partition.when_committed(offset, lambda code: None if done.done() else done.set_result(code))
    code = await done
    if code is not ErrorCode.NONE:
        raise ApiError(code, f"{partition.topic_partition} went away while it was branched")


def _branched(partition_count: int, staged: Sequence[StagedBranch]) -> tuple[BranchedPartition, ...]:
    built = {each.topic_partition.partition: each.built for each in staged}
    partitions = []
    for index in range(partition_count):
        if index in built:
            each = built[index]
            sizes = each.linked_bytes, each.copied_bytes
            partitions.append(BranchedPartition(index, each.log_start_offset, each.end_offset, *sizes))
        else:
            partitions.append(BranchedPartition(index, 0, 0, 0, 0))  # nothing was ever written to it
    return tuple(partitions)
