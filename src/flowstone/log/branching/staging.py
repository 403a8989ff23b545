"""The directories of a branch, made under names that every start removes. Runs on the event loop; threads do the rest.

Three steps, each for all partitions before the next begins, because making names is slow while others are synced: make
the files that all partitions share; make each partition's directory (`files`); make all durable, with one syncfs if
there are many and the log directory is a file system of its own. A failure leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple, TypeVar

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.branching.files import BuiltBranch, build_branch, make_common, sync_branch
from flowstone.log.branching.plan import BranchPlan, plan_branch
from flowstone.log.directories.log_set import DirectoryLogs
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.types import TopicPartition

# The number of threads that sync files: their syncs share the device's flush.
BRANCH_THREADS = 8
# The most partitions made at once: each has files open until it is durable.
LOGS_AT_ONCE = 256
# This many partitions share one syncfs.
SYNCFS_LOGS = 32
# How often a branch is begun again because retention took a segment that was about to be linked.
PLANS_MAX = 5

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class WantedBranch(NamedTuple):
    """A partition of a branch to be made: a copy of a log up to an offset."""

    topic_partition: TopicPartition
    topic_id: bytes
    source: PartitionLog
    end_offset: int
    home: DirectoryLogs  # its source's: hard links work only within one directory


class _Planned(NamedTuple):
    wanted: WantedBranch
    plan: BranchPlan
    path: str
    common_path: str


class StagedBranch(NamedTuple):
    """A partition of a branch whose directory is durable under a temporary name."""

    topic_partition: TopicPartition
    topic_id: bytes
    home: DirectoryLogs
    path: str
    plan: BranchPlan
    built: BuiltBranch


async def stage(wanted: Sequence[WantedBranch]) -> list[StagedBranch]:
    """Make the directories of a branch. Raises ApiError if that is not possible; nothing is left then."""
    if not wanted:
        return []
    threads = wanted[0].source.files.threads(BRANCH_THREADS, "branch")
    staging = _Staging(threads)
    try:
        await staging.make_commons(wanted)
        for first in range(0, len(wanted), LOGS_AT_ONCE):
            await staging.stage(wanted[first : first + LOGS_AT_ONCE])
    except BaseException:
        staging.give_up()
        raise
    finally:
        staging.remove_commons()
        threads.shutdown(wait=False)
    return staging.staged


def discard(home: DirectoryLogs, path: str) -> None:
    """Remove a directory in the background; one in a log directory that has failed is left as it is."""
    if home.fault is None:
        files = home.log_directory.files
        home.housekeeping.in_background(lambda: files.remove_tree(path) if files.exists(path) else None)


class _Staging:
    def __init__(self, threads: Executor) -> None:
        self.staged: list[StagedBranch] = []
        self._threads = threads
        self._commons: dict[DirectoryLogs, str] = {}
        self._begun: list[_Planned] = []

    async def make_commons(self, wanted: Sequence[WantedBranch]) -> None:
        for home, first in {each.home: each for each in reversed(wanted)}.items():
            self._commons[home] = _new_path(first)
            faults = await self._in_threads(partial(_make_common, self._commons[home]), [first])
            _raise_faults([home], faults)

    def remove_commons(self) -> None:
        for home, path in self._commons.items():
            discard(home, path)

    def give_up(self) -> None:
        for each in self._begun:
            discard(each.wanted.home, each.path)

    async def stage(self, wanted: Sequence[WantedBranch]) -> None:
        """Make the partitions, some at a time, because files stay open until they are durable."""
        made: list[StagedBranch] = []
        async with AsyncExitStack() as locked:
            for each in wanted:  # in the order of their numbers, so that no two branches deadlock
                await locked.enter_async_context(each.source.names_lock)
            for _ in range(PLANS_MAX):
                planned = [await self._plan(each) for each in wanted]
                self._begun += planned
                # Links take no time: threads would only wait for the interpreter's lock.
                copies = any(each.plan.cut is not None for each in planned)
                outcomes = await self._in_threads(_make, planned, BRANCH_THREADS if copies else 1)
                made += [each for each in outcomes if each is not None]
                wanted = [each for each, outcome in zip(wanted, outcomes, strict=True) if outcome is None]
                if not wanted:
                    break
        if wanted:
            lost = wanted[0].source.topic_partition
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{lost} keeps losing segments to retention; try again")
        await self._make_durable(made)
        self.staged += [each._replace(built=each.built._replace(unsynced=())) for each in made]

    async def _plan(self, wanted: WantedBranch) -> _Planned:
        home, log, end_offset = wanted.home, wanted.source, wanted.end_offset
        if home.logs.get(log.topic_partition) is not log:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{log.topic_partition} was deleted meanwhile")
        if end_offset > log.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{log.topic_partition} has lost offset {end_offset}, where the branch was to end",
            )
        # Retention may have passed the end meanwhile: then nothing is left for the branch.
        plan = await home.housekeeping.when_cached(lambda: plan_branch(log, max(end_offset, log.log_start_offset)))
        return _Planned(wanted, plan, _new_path(wanted), self._commons[home])

    async def _make_durable(self, made: Sequence[StagedBranch]) -> None:
        alone = list(made)
        for home in self._commons:
            sharing = [each for each in made if each.home is home]
            if len(sharing) >= SYNCFS_LOGS and home.log_directory.files.is_own_filesystem(home.path):
                _raise_faults([home], await self._in_threads(_sync_filesystem, [home]))
                alone = [each for each in alone if each.home is not home]
        _raise_faults([each.home for each in alone], await self._in_threads(_sync, alone))

    async def _in_threads(
        self, action: Callable[[Item], Outcome], items: Sequence[Item], count: int = BRANCH_THREADS
    ) -> list[Outcome]:
        """Return what the action returns for each item, in order. Raises its first error once all threads are done."""
        loop, some = asyncio.get_running_loop(), -(-len(items) // count) or 1
        chunks = [items[first : first + some] for first in range(0, len(items), some)]
        running = [loop.run_in_executor(self._threads, _each, action, chunk) for chunk in chunks]
        found: list[Outcome] = []
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            found += outcome
        return found


def _new_path(wanted: WantedBranch) -> str:
    return wanted.home.log_directory.staged_name(wanted.home.partition_path(wanted.topic_partition))


def _raise_faults(homes: Sequence[DirectoryLogs], faults: Sequence[StorageFault | None]) -> None:
    """Fail the log directories whose files cannot be made durable, and raise ApiError if there are any."""
    for home, fault in zip(homes, faults, strict=True):
        if fault is not None:
            home.fail(fault)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(fault)) from fault


# In a thread


def _each(action: Callable[[Item], Outcome], items: Sequence[Item]) -> list[Outcome]:
    return [action(item) for item in items]


def _make_common(path: str, wanted: WantedBranch) -> StorageFault | None:
    try:
        make_common(wanted.source.files, path, wanted.source, wanted.topic_id)
        return None
    except StorageFault as fault:
        return fault
    except OSError as error:
        raise _not_made(wanted.topic_partition, error) from error


def _make(planned: _Planned) -> StagedBranch | None:
    """Make a planned partition; return None if retention has taken one of its segments since it was planned."""
    wanted, plan, path, common_path = planned
    try:
        built = build_branch(wanted.source.files, plan, path, common_path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _not_made(wanted.topic_partition, error) from error
    return StagedBranch(wanted.topic_partition, wanted.topic_id, wanted.home, path, plan, built)


def _sync(staged: StagedBranch) -> StorageFault | None:
    try:
        sync_branch(staged.plan.source.files, staged.built)
        return None
    except StorageFault as fault:
        return fault
    except OSError as error:
        raise _not_made(staged.topic_partition, error) from error


def _sync_filesystem(home: DirectoryLogs) -> StorageFault | None:
    try:
        home.log_directory.files.sync_filesystem(home.path)
        return None
    except OSError as error:
        return StorageFault(f"{home.path} cannot be made durable: {error}")


def _not_made(target: TopicPartition, error: OSError) -> ApiError:
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{target} cannot be made: {error}")
