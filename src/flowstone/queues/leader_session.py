"""A share consumer's session with one leader: fetches, acknowledgements and renewals, one request at a time.

The protocol numbers the requests of a session, so there is never more than one under way. Acknowledgements travel with
the next fetch; without a fetch they are sent after `ACK_LINGER_S`. If the connection breaks or the broker forgets the
session, all locks are gone: what was held is lost, and is delivered again by the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from flowstone.client.connection import Address
from flowstone.client.errors import ClientError, LeaderMoved, Retriable, refusal
from flowstone.errors import ErrorCode
from flowstone.ports.clock import SystemClock
from flowstone.queues.connections import LEADER, Connections
from flowstone.queues.held_tasks import AckRange, HeldTasks, Place
from flowstone.queues.session_requests import Acks, SessionRequests, acquired_records
from flowstone.queues.task import Outcome, Task
from flowstone.types import Bytes
from flowstone.wire.messages import (
    ShareAcknowledgeResponse,
    ShareFetchResponse,
    ShareFetchResponseAcquiredRecords,
    ShareFetchResponsePartition,
)
from flowstone.wire.record_batch import CorruptBatch, Record

logger = logging.getLogger(__name__)
monotonic = SystemClock.monotonic
sleep = SystemClock().sleep

WAIT_IDLE_MS, WAIT_BUSY_MS = 500, 20
"""How long a fetch waits for records: with tasks in work, whose acknowledgements it delays, and without any."""

ACK_LINGER_S = 0.005
RETRY_FIRST_S, RETRY_MAX_S = 0.05, 5.0
RENEWAL_CHECKS_PER_LOCK = 8
FINAL_TIMEOUT_S = 5.0
_SESSION_LOST = (ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH)
_GONE = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class PartitionsFailed(Retriable):
    """Some partitions of a response have errors; the session continues after a pause."""


class SessionOwner(Protocol):
    """The methods of the consumer that its sessions call."""

    hold_max_s: float

    @property
    def is_idle(self) -> bool:
        """Return whether no task's body is running."""
        ...

    def reserve(self) -> int:
        """Return how many records may be fetched now, and set them aside."""
        ...

    def unreserve(self, count: int) -> None: ...

    def new_task(self, session: LeaderSession, place: Place, record: Record, attempt: int) -> Task: ...

    def deliver(self, tasks: list[Task]) -> None: ...

    def lost(self, tasks: list[Task], reason: str) -> None: ...

    def leaders_changed(self) -> None: ...


class LeaderSession:
    def __init__(
        self, owner: SessionOwner, connections: Connections, address: Address, group: str, member_id: str
    ) -> None:
        self._owner, self._connections, self._address = owner, connections, address
        self._requests = SessionRequests(group, member_id)
        self.held = HeldTasks()
        self._wanted: frozenset[Place] = frozenset()
        self._woken = asyncio.Event()
        self._is_stopping = False
        self._next_renewal_check_s = 0.0

    @property
    def is_needed(self) -> bool:
        return bool(self._wanted) or len(self.held) > 0

    @property
    def wants_records(self) -> bool:
        return bool(self._wanted) and not self._is_stopping

    def want(self, places: frozenset[Place]) -> None:
        """Fetch from these partitions from now on."""
        if places != self._wanted:
            self._wanted = places
            self.wake()

    def settle(self, place: Place, offset: int, outcome: Outcome) -> bool:
        """Send an outcome with the next request; return whether the record is still held."""
        is_held = self.held.settle(place, offset, outcome)
        self.wake()
        return is_held

    def extend(self, place: Place, offset: int, hold_s: float = 0.0) -> None:
        """Renew a lock now, and restart the time for which it may be held `hold_s` from now."""
        held = self.held.by_place.get(place, {}).get(offset)
        if held is not None:
            held.held_since_s, held.locked_until_s = monotonic() + hold_s, min(held.locked_until_s, monotonic())
            self._next_renewal_check_s = 0.0
            self.wake()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        """Make `run` release everything that is held, end the session, and return."""
        self._is_stopping = True
        self.wake()
        if not len(self.held):  # a fetch may wait for a while, and the broker ends a session with its connection
            self._connections.drop(LEADER, self._address)

    async def run(self) -> None:
        """Serve until `stop`. Raises ClientError if the group or the topic is refused for good."""
        retry_s = RETRY_FIRST_S
        while not self._is_stopping:
            try:
                await self._step()
                retry_s = RETRY_FIRST_S
            except Retriable as error:
                if not isinstance(error, PartitionsFailed):
                    self._broken(error)
                await self._pause(retry_s)
                retry_s = min(retry_s * 2, RETRY_MAX_S)
        await self._finish()

    async def _pause(self, pause_s: float) -> None:
        if not self._is_stopping:
            await sleep(pause_s)

    async def _step(self) -> None:
        self._woken.clear()
        now_s = monotonic()
        if now_s >= self._next_renewal_check_s:
            self._next_renewal_check_s = now_s + self.held.lock_s / RENEWAL_CHECKS_PER_LOCK
            self.held.renew(now_s, self._owner.hold_max_s)
            if self.held.has_pending_renewals:
                await self._acknowledge()
                return
        records_max = self._owner.reserve() if self._wanted else 0
        if records_max:
            try:
                await self._fetch(records_max)
            finally:
                self._owner.unreserve(records_max)
            await sleep(0)  # other sessions wait for the same room
        elif self.held.has_pending:
            await sleep(ACK_LINGER_S)
            await self._acknowledge()
        else:
            await self._wait()

    async def _wait(self) -> None:
        timeout_s = max(self._next_renewal_check_s - monotonic(), 0.0) if len(self.held) else None
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return

    # Requests

    async def _fetch(self, records_max: int) -> None:
        acks: Acks = {}
        if self._requests.is_open:
            acks = self.held.take_pending(self._requests.partitions & self._wanted)
        wait_ms = WAIT_IDLE_MS if self._owner.is_idle else WAIT_BUSY_MS
        request = self._requests.fetch(self._wanted, acks, wait_ms, records_max)
        answer = await self._connections.ask(LEADER, self._address, request, ShareFetchResponse)
        self._check(answer.error_code, answer.error_message)
        self._requests.succeeded()
        self._note_lock(answer.acquisition_lock_timeout_ms)
        unanswered = dict(acks)
        failures: list[Retriable] = []
        for topic in answer.responses:
            for part in topic.partitions:
                place = (topic.topic_id, part.partition_index)
                if place in unanswered:
                    self._answered(place, unanswered.pop(place), part.acknowledge_error_code)
                self._take(place, part, failures)
        for place, ranges in unanswered.items():
            self._answered(place, ranges, ErrorCode.NONE)
        if failures:
            raise PartitionsFailed(str(failures[0]))

    async def _acknowledge(self, *, is_last: bool = False) -> None:
        acks = self.held.take_pending()
        if not acks and not is_last:
            return
        if not self._requests.is_open:
            self._lose("its session had ended")
            return
        request = self._requests.acknowledge(acks, is_renewal=self.held.has_renewals(acks), is_last=is_last)
        timeout_s = FINAL_TIMEOUT_S
        answer = await self._connections.ask(LEADER, self._address, request, ShareAcknowledgeResponse, timeout_s)
        self._check(answer.error_code, answer.error_message)
        self._requests.succeeded()
        self._note_lock(answer.acquisition_lock_timeout_ms)
        codes = {
            (topic.topic_id, part.partition_index): part.error_code
            for topic in answer.responses
            for part in topic.partitions
        }
        for place, ranges in acks.items():
            self._answered(place, ranges, codes.get(place, ErrorCode.NONE))

    async def _finish(self) -> None:
        self.held.release_rest()
        if not self._requests.is_open:
            return
        try:
            await self._acknowledge(is_last=True)
        except ClientError as error:
            logger.debug("the session with %s was not ended: %s", self._address, error)

    # Responses

    def _check(self, code: int, message: str | None) -> None:
        if code in _SESSION_LOST:
            raise LeaderMoved(f"the broker at {self._address} has forgotten the session")
        if code:
            raise refusal(code, f"the broker at {self._address}", message)

    def _note_lock(self, lock_ms: int) -> None:
        if lock_ms > 0 and self.held.lock_s != lock_ms / 1000:
            self.held.lock_s = lock_ms / 1000
            self._next_renewal_check_s = 0.0  # it was set for locks of another duration

    def _answered(self, place: Place, ranges: list[AckRange], code: int) -> None:
        is_accepted = code == ErrorCode.NONE
        lost = self.held.answered(place, ranges, monotonic(), is_accepted=is_accepted)
        if lost:
            self._owner.lost(lost, f"the broker refused the acknowledgement: {_name(code)}")

    def _take(self, place: Place, part: ShareFetchResponsePartition, failures: list[Retriable]) -> None:
        if part.error_code:
            error = refusal(part.error_code, f"partition {place[1]}", part.error_message)
            if part.error_code in _GONE:
                error = LeaderMoved(f"partition {place[1]} is not here: {_name(part.error_code)}")
            if not isinstance(error, Retriable):
                raise error
            if isinstance(error, LeaderMoved):
                self._owner.lost(self.held.lose(place), str(error))
                self._owner.leaders_changed()
            failures.append(error)
        elif part.acquired_records:
            records = part.records
            assert records is None or isinstance(records, bytes | bytearray | memoryview)
            self._acquire(place, records, part.acquired_records)

    def _acquire(
        self, place: Place, records: Bytes | None, ranges: Sequence[ShareFetchResponseAcquiredRecords]
    ) -> None:
        now_s, tasks = monotonic(), []
        try:
            for offset, record, attempt in acquired_records(records or b"", ranges):
                task = None if record is None else self._owner.new_task(self, place, record, attempt)
                self.held.acquire(place, offset, task, now_s)
                if task is not None:
                    tasks.append(task)
        except CorruptBatch as error:
            logger.error("partition %d: a batch cannot be read and is released: %s", place[1], error)
            for each in ranges:
                for offset in range(each.first_offset, each.last_offset + 1):
                    self.held.acquire(place, offset, None, now_s)
                    self.held.settle(place, offset, Outcome.RELEASE)
            tasks.clear()
        self._owner.deliver(tasks)

    # Failures

    def _broken(self, error: Retriable) -> None:
        """Restart the session after a failure."""
        self._connections.drop(LEADER, self._address)
        self._lose(str(error))
        self._requests.restart()
        self._owner.leaders_changed()

    def _lose(self, reason: str) -> None:
        lost = self.held.lose()
        if lost:
            self._owner.lost(lost, reason)


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
