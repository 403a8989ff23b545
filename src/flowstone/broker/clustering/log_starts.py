"""DeleteRecords requests that wait until the logs of all live replicas start at the requested offset or later.

A follower learns its leader's log start from the answer to its fetch, and reports its own start with the next fetch. A
waiting request is checked after each such report, and after every change of the metadata: it does not wait for dead
replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowstone.broker.requests.partition_lookup import live_broker
from flowstone.errors import ApiError, ErrorCode
from flowstone.promise import Promise
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader

if TYPE_CHECKING:
    from flowstone.broker.requests.context import Services

# Waiting partitions of all requests. Beyond it a request gets REQUEST_TIMED_OUT; its records are deleted all the same.
LOG_START_WAITS_MAX = 10_000


class LogStarts:
    def __init__(self) -> None:
        self._waits: dict[Partition, set[LogStartWait]] = {}
        self._count = 0
        self._follows_metadata = False

    def __len__(self) -> int:
        return self._count

    def wait(self, services: Services, partition: Partition, offset: int, timeout_ms: int) -> Promise[ErrorCode]:
        """Return a promise that gets NONE when all live replicas' logs start at `offset` or later, or an error code."""
        wait = LogStartWait(services, partition, offset)
        if not wait.is_done and (timeout_ms <= 0 or self._count >= LOG_START_WAITS_MAX):
            wait.timed_out()
        if wait.is_done:
            return wait
        if not self._follows_metadata:
            self._follows_metadata = True
            services.metadata.on_change(lambda *_: self._check_all())
        self._waits.setdefault(partition, set()).add(wait)
        self._count += 1
        wait.add_done_callback(self._remove)
        partition.local.watchers(Reader.REPLICA).watch(wait)
        services.waiting.deadlines.add(wait, timeout_ms)
        return wait

    def told(self, partition: Partition) -> None:
        """Check the requests that wait for a partition, after a follower has reported its log start."""
        for wait in tuple(self._waits.get(partition, ())):
            wait.check()

    def _check_all(self) -> None:
        for waits in tuple(self._waits.values()):
            for wait in tuple(waits):
                wait.check()

    def _remove(self, wait: LogStartWait) -> None:
        waits = self._waits[wait.partition]
        waits.remove(wait)
        self._count -= 1
        if not waits:
            del self._waits[wait.partition]
        wait.partition.local.watchers(Reader.REPLICA).unwatch(wait)


class LogStartWait(Promise[ErrorCode]):
    """A wait until all followers have moved one partition's log start, or this broker leads the partition no longer."""

    __slots__ = ("_leader_epoch", "_offset", "_services", "partition")

    def __init__(self, services: Services, partition: Partition, offset: int) -> None:
        super().__init__()
        self.partition = partition
        self._services, self._offset, self._leader_epoch = services, offset, partition.leader_epoch
        self.check()

    def check(self) -> None:
        if not self.is_done:
            code = self._outcome()
            if code is not None:
                self.set_result(code)

    def timed_out(self) -> None:
        self.set_result(ErrorCode.REQUEST_TIMED_OUT)

    def advanced(self, size_bytes: int) -> None:
        """Do nothing: appended records do not change the log start."""

    def interrupted(self) -> None:
        self.check()

    def _outcome(self) -> ErrorCode | None:
        partition = self.partition
        try:
            partition.local.check_serving()
        except ApiError as error:
            return error.code
        if not partition.is_leader or partition.leader_epoch != self._leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE if low_watermark(self._services, partition) >= self._offset else None


def low_watermark(services: Services, partition: Partition) -> int:
    """Return the lowest offset that a live replica still has; -1 until all have reported theirs."""
    image = services.metadata.image
    if partition.leading is None:
        return partition.log.log_start_offset
    return partition.leading.low_watermark(
        [each for each in partition.replicas if live_broker(image, each) is not None]
    )
