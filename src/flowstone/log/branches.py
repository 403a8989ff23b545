"""Branches of logs, from their files to logs that can be served. Runs on the event loop; threads do what waits.

The order of writes is what makes it safe. A branch's directories are made under names that every start removes. When
all of them are durable they get their own names; they say which topic they are of, and until the metadata knows that
topic, a start condemns them as it does what is left of a deleted one. So a crash leaves no branch, or all of it. The
checkpoints have the branch's offsets before anybody can see it: records deleted from the source never come back in it.

A branch's partition is in the log directory of the one it comes from: a link does not reach another file system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple, TypeVar

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.branch_plan import BranchPlan, plan_branch
from flowstone.log.branch_point import BranchPoint
from flowstone.log.branching import BuiltBranch, build_branch, sync_branch
from flowstone.log.directory_logs import DirectoryLogs
from flowstone.log.epochs import LeaderEpochs
from flowstone.log.handles import FileHandles
from flowstone.log.partition_directory import PartitionDirectory
from flowstone.log.partition_log import PartitionLog
from flowstone.log.producer_state import ProducerStates
from flowstone.log.segment import Segment
from flowstone.ports.clock import Clock
from flowstone.types import TopicPartition

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

# Their syncs share the device's flush.
BRANCH_THREADS = 8
# Each has several files open until it is durable.
LOGS_AT_ONCE = 256
# How often a branch is begun again because retention took a segment that it was about to link.
PLANS_MAX = 5


class _Wanted(NamedTuple):
    topic_partition: TopicPartition
    topic_id: bytes
    source: PartitionLog
    end_offset: int
    home: DirectoryLogs  # its source's: files are linked only within one


class _Planned(NamedTuple):
    wanted: _Wanted
    plan: BranchPlan
    path: str


class StagedBranch(NamedTuple):
    """A partition of a branch whose directory is durable under a name that does not count yet."""

    topic_partition: TopicPartition
    topic_id: bytes
    home: DirectoryLogs
    path: str
    plan: BranchPlan
    built: BuiltBranch


class Branches:
    def __init__(
        self, clock: Clock, handles: FileHandles, directory_of: Callable[[PartitionLog], DirectoryLogs]
    ) -> None:
        self._clock, self._handles, self._directory_of = clock, handles, directory_of

    async def stage(
        self, sources: Sequence[tuple[PartitionLog, int]], target: str, topic_id: bytes
    ) -> list[StagedBranch]:
        """Makes the directories of a branch: of each log up to an offset, numbered in this order.

        A log without a directory needs none in the branch. ApiError if it cannot be; nothing is left then.
        """
        wanted = [
            _Wanted(TopicPartition(target, index), topic_id, log, end_offset, self._directory_of(log))
            for index, (log, end_offset) in enumerate(sources)
            if log.exists
        ]
        staged: list[StagedBranch] = []
        if not wanted:
            return []
        threads = wanted[0].source.files.threads(BRANCH_THREADS, "branch")
        try:
            for first in range(0, len(wanted), LOGS_AT_ONCE):
                staged += await self._stage(threads, wanted[first : first + LOGS_AT_ONCE])
        except BaseException:
            self.discard(staged)
            raise
        finally:
            threads.shutdown(wait=False)
        return staged

    async def _stage(self, threads: Executor, wanted: Sequence[_Wanted]) -> list[StagedBranch]:
        """Of some at a time: files stay open from their making until they are durable."""
        planned: list[_Planned] = []
        made: list[StagedBranch] = []
        try:
            async with AsyncExitStack() as locked:
                for each in wanted:  # in the order of their numbers, as everybody does
                    await locked.enter_async_context(each.source.names_lock)
                for _ in range(PLANS_MAX):
                    plans = [await self._plan(each) for each in wanted]
                    planned += plans
                    outcomes = await _in_threads(threads, _make, plans)
                    made += [each for each in outcomes if each is not None]
                    wanted = [each for each, outcome in zip(wanted, outcomes, strict=True) if outcome is None]
                    if not wanted:
                        break
            if wanted:
                lost = wanted[0].source.topic_partition
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{lost} loses segments all the time; try again")
            for branch, fault in zip(made, await _in_threads(threads, _sync, made), strict=True):
                if fault is not None:
                    branch.home.fail(fault)
                    raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(fault)) from fault
            return [each._replace(built=each.built._replace(unsynced=())) for each in made]
        except BaseException:
            for begun in planned:
                _remove(begun.wanted.home, begun.path)
            raise

    async def _plan(self, wanted: _Wanted) -> _Planned:
        home, log, end_offset = wanted.home, wanted.source, wanted.end_offset
        if home.logs.get(log.topic_partition) is not log:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{log.topic_partition} was deleted meanwhile")
        if end_offset > log.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{log.topic_partition} has lost offset {end_offset}, at which it was to be branched",
            )
        path = home.log_directory.staged_name(home.partition_path(wanted.topic_partition))
        # Retention may have gone beyond the end meanwhile: then nothing is left for the branch.
        plan = await home.housekeeping.when_cached(lambda: plan_branch(log, max(end_offset, log.log_start_offset)))
        return _Planned(wanted, plan, path)

    async def install(self, staged: Sequence[StagedBranch]) -> None:
        """Gives the directories their own names, which must be free, and opens their logs; durable when it returns.

        ApiError if that fails: what has its own name by then goes with its log, the rest with `discard`.
        """
        homes = {id(each.home): each.home for each in staged}.values()
        try:
            for each in staged:
                assert not each.home.is_taken(each.topic_partition)
                each.plan.source.files.rename(each.path, each.home.partition_path(each.topic_partition))
                each.home.logs[each.topic_partition] = self._open(each)
            for home in homes:
                sync = partial(home.log_directory.files.sync_directory, home.path)
                await home.housekeeping.in_thread(sync)
                await home.housekeeping.checkpoint()
        except OSError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the branch cannot be made: {error}") from error
        except StorageFault as fault:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(fault)) from fault

    def discard(self, staged: Sequence[StagedBranch]) -> None:
        """Removes the directories of what was not installed."""
        for each in staged:
            _remove(each.home, each.path)

    def _open(self, staged: StagedBranch) -> PartitionLog:
        source, built = staged.plan.source, staged.built
        path = staged.home.partition_path(staged.topic_partition)
        directory = PartitionDirectory(source.files, path, exists=True)
        log = PartitionLog(
            staged.topic_partition, staged.topic_id, source.config, self._clock, self._handles, directory
        )
        new = partial(Segment, self._handles, path, index_interval_bytes=source.config.index_interval_bytes)
        segments = []
        for each in built.segments:
            segment = new(each.base_offset, created_ms=each.created_ms)
            segment.open_sealed(each.size_bytes, each.offset_index_bytes, each.time_index_bytes)
            segments.append(segment)
        segments.append(new(built.end_offset, created_ms=self._clock.time_ms()))
        epochs = LeaderEpochs.decode(staged.plan.epochs)
        assert epochs is not None
        log.adopt(segments, built.log_start_offset, built.end_offset, epochs, ProducerStates())
        log.branch_point = BranchPoint(source.topic_partition.topic, source.topic_id, built.end_offset)
        log.first_dirty_offset = min(staged.plan.first_dirty_offset, built.end_offset)
        return log


def _make(planned: _Planned) -> StagedBranch | None:
    """In a thread; None if retention has taken a segment since it was planned."""
    wanted, plan, path = planned
    try:
        built = build_branch(wanted.source.files, plan, path, wanted.topic_id)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _cannot_be_made(wanted.topic_partition, error) from error
    return StagedBranch(wanted.topic_partition, wanted.topic_id, wanted.home, path, plan, built)


def _sync(staged: StagedBranch) -> StorageFault | None:
    """In a thread; a fault fails the log directory."""
    try:
        sync_branch(staged.plan.source.files, staged.built)
        return None
    except StorageFault as fault:
        return fault
    except OSError as error:
        raise _cannot_be_made(staged.topic_partition, error) from error


def _cannot_be_made(target: TopicPartition, error: OSError) -> ApiError:
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{target} cannot be made: {error}")


async def _in_threads(threads: Executor, action: Callable[[Item], Outcome], items: Sequence[Item]) -> list[Outcome]:
    """What the action gives for each, in this order; what it raises is raised once all threads are done."""
    loop, some = asyncio.get_running_loop(), -(-len(items) // BRANCH_THREADS) or 1
    chunks = [items[first : first + some] for first in range(0, len(items), some)]
    outcomes = await asyncio.gather(
        *(loop.run_in_executor(threads, _each, action, chunk) for chunk in chunks), return_exceptions=True
    )
    found: list[Outcome] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        found += outcome
    return found


def _each(action: Callable[[Item], Outcome], items: Sequence[Item]) -> list[Outcome]:
    return [action(item) for item in items]


def _remove(home: DirectoryLogs, path: str) -> None:
    """A directory that has failed is left as it is."""
    if home.fault is not None:
        return
    files = home.log_directory.files
    home.housekeeping.in_background(lambda: files.remove_tree(path) if files.exists(path) else None)
