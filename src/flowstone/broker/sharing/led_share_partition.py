"""A share partition on the broker that leads the partition: the state machine with its log, its stored state and time.

Owns loading the state, the writes of its changes, the timer of locks and delays, and the fetches that wait. It is valid
for one leader epoch of the partition. When the share coordinator fences a write, another broker leads, or the start was
altered: then it is closed, forgets everything, and the next fetch loads the state again.

Fairness: of the fetches that wait, the member with the fewest records in flight is served first. While several members
fetch from the share partition, what each may get is limited (`fair_shares`).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from flowstone.broker.sharing.acknowledgements import Acknowledgement
from flowstone.broker.sharing.delays import bounded
from flowstone.broker.sharing.fair_shares import FairShares
from flowstone.broker.sharing.keyed_share_partition import KeyedSharePartition
from flowstone.broker.sharing.letters.letter_writer import LetterWriter
from flowstone.broker.sharing.reads.keyed_reads import index_more, read_spans
from flowstone.broker.sharing.reads.log_reads import read_log
from flowstone.broker.sharing.reads.recent_batches import RecentBatches
from flowstone.broker.sharing.share_config import share_config
from flowstone.broker.sharing.share_partition import SharePartition
from flowstone.broker.sharing.share_services import FENCED, Fetched, ShareServices, Waiter, told
from flowstone.broker.sharing.spans import Span, without
from flowstone.broker.sharing.start_offsets import chosen_start
from flowstone.coordinator.share.messages import StateResult, StateWrite
from flowstone.coordinator.share.records import NO_START_OFFSET, UNCHANGED_START_OFFSET, LetterBatch, ShareKey
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import Timer
from flowstone.promise import Promise
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader
from flowstone.replication.waiters import Watchers

logger = logging.getLogger(__name__)

# After a failed write the next one waits, unless the coordinator fenced it.
WRITE_PAUSE_S = 0.5
# Records of a key-ordered share partition in one response, unless the client asks for an exact number.
SOFT_RECORDS_MAX = 2_000
# How often records that were deleted meanwhile are passed by one fetch.
STARTS_MAX = 4


class LedSharePartition:
    def __init__(self, key: ShareKey, partition: Partition, services: ShareServices) -> None:
        self.key, self.partition = key, partition
        self._states, self._settings, self._clock, self.workers, dead_letters, self._counts, kept, slots = services
        self._letters = LetterWriter(key, partition, dead_letters, self._settings, self._store_letters)
        self._copying: asyncio.Task[None] | None = None
        self.leader_epoch = partition.leader_epoch
        self._epoch_ms = self._clock.time_ms() - self._clock.monotonic() * 1000
        self.machine: SharePartition | None = None  # None while the state is loaded
        self.error: ApiError | None = None  # why it is closed
        self.sessions: set[object] = set()
        self._waiters: dict[Waiter, None] = {}
        self._is_serving = False
        self._watched: Watchers | None = None  # of the log, while fetches wait
        self._reader = Reader.UNCOMMITTED
        self._shares = FairShares()
        self._recent = RecentBatches(key, self.leader_epoch, kept)
        self._state_epoch = 0
        self._answers: dict[int, list[Promise[ErrorCode]]] = {}  # by the number of the write
        self._writing = 0
        self._pause_until_s = 0.0
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._loading = asyncio.ensure_future(self._load(slots))

    @property
    def is_current(self) -> bool:
        """Return whether this broker still leads the partition in the epoch in which the state was loaded."""
        partition = self.partition
        return (
            self.error is None
            and partition.is_leader
            and partition.leader_epoch == self.leader_epoch
            and partition.local.closed_with is None
        )

    @property
    def is_idle(self) -> bool:
        """Return whether the share partition may be dropped: no member uses it or has its records, and everything is
        written.
        """
        machine = self.machine
        if self.sessions or self._waiters:
            return False
        return machine is None or not (machine.has_unwritten or machine.in_flight or self._copying)

    def now_ms(self) -> int:
        return int(self._epoch_ms + self._clock.monotonic() * 1000)

    def close(self, error: ApiError) -> None:
        """Stop, and answer waiting fetches and acknowledgements with the error."""
        if self.error is not None:
            return
        self.error = error
        self._loading.cancel()
        if self._copying is not None:
            self._copying.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._watch(False)
        answers, self._answers = self._answers, {}
        for promises in answers.values():
            for promise in promises:
                _resolve(promise, error.code)
        for waiter in tuple(self._waiters):
            waiter.failed(self.key, error)
        self._waiters.clear()

    # Loading

    async def _load(self, slots: asyncio.Semaphore) -> None:
        async with slots:
            await self._load_now()

    async def _load_now(self) -> None:
        try:
            found = (await self._states.read({self.key: self.leader_epoch}))[self.key]
            if found.error_code is not ErrorCode.NONE:
                raise ApiError(told(found.error_code), found.error_message or "")
            start_offset, self._state_epoch = found.start_offset, found.state_epoch
            if start_offset == NO_START_OFFSET:
                settings = self._settings.of(self.key.group_id)
                start_offset = await chosen_start(settings, self.partition, self.workers, self._clock.time_ms())
                epochs = self._state_epoch, self.leader_epoch
                stored = await self._states.write(StateWrite(self.key, *epochs, start_offset, (), 0))
                if stored.error_code is not ErrorCode.NONE:
                    raise ApiError(told(stored.error_code), stored.error_message or "")
            if self.error is None:
                is_keyed = self._settings.of(self.key.group_id).share_ordering == "key"
                make = KeyedSharePartition if is_keyed else SharePartition
                self._letters.last = found.letters
                unfinished = () if found.letters is None else found.letters.ranges
                latest_ms = self.now_ms() + self._settings.of(self.key.group_id).share_redelivery_backoff_max_ms
                delays = bounded(found.delays, latest_ms)
                self.machine = make(start_offset, found.batches, delays, None, unfinished, found.given_up)
                self._follow_settings(self.machine)
                self._changed(self.machine, has_news=True)
        except ApiError as error:
            self.close(error)
        except Exception as error:
            logger.exception("share partition %s: loading failed", self.key)
            self.close(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))

    def _follow_settings(self, machine: SharePartition) -> None:
        settings = self._settings.of(self.key.group_id)
        machine.config = share_config(settings)
        is_committed = settings.share_isolation_level == "read_committed"
        self._reader = Reader.COMMITTED if is_committed else Reader.UNCOMMITTED

    # Requests

    def fetch(self, member: str, max_bytes: int, max_records: int, *, strict: bool) -> Fetched | None:
        """Deliver records to a member; return None if there are none for it now.

        Raises NotCached if a worker must read first, and ApiError with the error code for the partition.
        """
        self._check()
        machine = self.machine
        if machine is None:
            return None
        self._follow_settings(machine)
        now_ms = self.now_ms()
        limit = self._shares.limit(member, len(self.sessions), machine.config.window_max, max_records)
        if limit is not None:
            max_records, strict = min(max_records, limit), True
        fetched = self._acquire(machine, member, max_bytes, max_records, now_ms, strict=strict)
        if fetched is not None:
            self._shares.delivered(member, self._clock.monotonic())
            for first, last, count in fetched.acquired:
                self._counts.deliveries += last - first + 1
                self._counts.redeliveries += last - first + 1 if count > 1 else 0
        return fetched

    def _acquire(
        self, machine: SharePartition, member: str, max_bytes: int, max_records: int, now_ms: int, *, strict: bool
    ) -> Fetched | None:
        if isinstance(machine, KeyedSharePartition):
            if not strict:  # the batches are sent whole: most of their records should be delivered at once
                max_records = max(max_records, SOFT_RECORDS_MAX)
            return self._fetch_by_key(machine, member, max_bytes, max_records, now_ms)
        for _ in range(STARTS_MAX):
            machine.log_start_moved(self.partition.log.log_start_offset)
            offset = machine.next_offset(now_ms)
            if offset is None:
                return None
            found = read_log(self.partition, self._reader, offset, max_bytes, self._recent)
            if found is None:
                return None
            acquired = machine.acquire(member, offset, found, now_ms, max_records, strict=strict)
            self._changed(machine)
            if acquired:
                return Fetched(found.records_of(acquired), acquired)
        return None

    def _fetch_by_key(
        self, machine: KeyedSharePartition, member: str, max_bytes: int, max_records: int, now_ms: int
    ) -> Fetched | None:
        machine.log_start_moved(self.partition.log.log_start_offset)
        source = self.partition, self._reader, self._recent
        for _ in range(STARTS_MAX):
            was_enough = machine.ready_count >= max_records
            has_more = index_more(machine, *source, now_ms, max_records)
            candidates = machine.candidates(now_ms, max_records)
            if candidates or has_more or not was_enough:
                break  # otherwise all that seemed ready is delayed or gone
        records, covered, missing = b"", list[Span](), list[Span]()
        try:
            if candidates:
                records, covered, missing = read_spans(*source, candidates, max_bytes)
        finally:
            machine.give_back(without(candidates, sorted((*covered, *missing))))
        machine.archive_missing(missing)
        acquired = machine.acquire_spans(member, covered, now_ms)
        if has_more and not acquired:
            self._clock.call_later(0, self._serve)  # other requests first
        self._changed(machine)
        return Fetched(records, acquired) if acquired else None

    def acknowledge(self, member: str, acknowledgements: list[Acknowledgement]) -> Promise[ErrorCode] | None:
        """Apply a member's acknowledgements; the promise of the error code is resolved when they are durable.

        The result is None if nothing needs to be durable. Raises ApiError, and changes nothing, if they are refused.
        """
        self._check()
        machine = self.machine
        if machine is None:
            raise ApiError(ErrorCode.INVALID_RECORD_STATE, "The records are not acquired: their locks were lost.")
        self._follow_settings(machine)
        ticket = machine.acknowledge(member, acknowledgements, self.now_ms())
        count = sum(last - first + 1 for first, last, _ in acknowledgements)
        self._counts.acknowledgements += count
        self._shares.acknowledged(member, count, member in machine.in_flight, self._clock.monotonic())
        if not ticket:
            self._changed(machine)
            return None
        answer: Promise[ErrorCode] = Promise()
        self._answers.setdefault(ticket, []).append(answer)
        self._changed(machine)
        return answer

    def release_member(self, member: str) -> None:
        """Release what a member has acquired, because its session is over."""
        self._shares.forget(member)
        if self.machine is not None and self.error is None:
            self.machine.release_member(member, self.now_ms())
            self._changed(self.machine)

    def _check(self) -> None:
        if not self.is_current:
            self.close(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        if self.error is not None:
            raise self.error
        if not self.partition.holds_lease:
            # Another broker may be the leader by now: it may have delivered the same records, and they may be accepted.
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # Waiting fetches

    def wait(self, waiter: Waiter) -> None:
        """Offer records to the fetch when there may be some."""
        self._waiters[waiter] = None
        self._watch(True)

    def stop_waiting(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)
        if not self._waiters:
            self._watch(False)

    def advanced(self, size_bytes: int) -> None:
        """Offer new records of the log to the fetches that wait."""
        self._serve()

    def interrupted(self) -> None:
        """Look again: the partition was closed, has another leader, or another start."""
        if not self.is_current:
            self.close(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            self._serve()

    def _watch(self, wanted: bool) -> None:
        if wanted and self._watched is None:
            self._watched = self.partition.local.watchers(self._reader)
            self._watched.watch(self)
        elif not wanted and self._watched is not None:
            self._watched.unwatch(self)
            self._watched = None

    def _serve(self) -> None:
        """Offer records to the waiting fetches, first to members with the fewest records in flight."""
        if self._is_serving or not self._waiters or self.machine is None:
            return
        self._is_serving = True
        try:
            in_flight = self.machine.in_flight
            for waiter in sorted(self._waiters, key=lambda each: in_flight.get(each.member, 0)):
                if waiter in self._waiters and not waiter.offered(self.key):
                    break
        finally:
            self._is_serving = False

    # Changes

    def _changed(self, machine: SharePartition, *, has_news: bool = False) -> None:
        """Write what has changed, set the timer, and tell the waiting fetches what has become available."""
        if self._copying is None and self._letters.has_work(machine) and self.error is None:
            self._copying = asyncio.ensure_future(self._copy(machine))
        self._write(machine)
        self._schedule(machine)
        if machine.has_news or has_news:
            machine.has_news = False
            self._serve()

    async def _copy(self, machine: SharePartition) -> None:
        """Copy records to the dead letter queue before they are archived, until none waits for that."""
        try:
            while self.error is None and self._letters.has_work(machine):
                self._counts.dead_letters += await self._letters.copy(machine)
                self._changed(machine)
                await self._letters.archived()
        except ApiError as error:  # the partition is closed, or its disk fails
            self.close(error)
        except Exception as error:  # or else its members would wait until something else changes
            logger.exception("share partition %s: copying to the dead letter queue failed", self.key)
            self.close(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
        finally:
            self._copying = None

    async def _store_letters(self, letters: LetterBatch) -> None:
        """Make durable which letters are about to be written. Raises ApiError if another leader is to write them."""
        while True:
            epochs = self._state_epoch, self.leader_epoch
            write = StateWrite(self.key, *epochs, UNCHANGED_START_OFFSET, (), letters=letters)
            result = await self._states.write(write)
            if result.error_code is ErrorCode.NONE:
                return
            if result.error_code in FENCED:
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, result.error_message or "")
            logger.warning("share partition %s: dead letters were not stored: %s", self.key, result.error_code.name)
            await self._clock.sleep(WRITE_PAUSE_S)

    def _write(self, machine: SharePartition) -> None:
        if self.error is not None or self._clock.monotonic() < self._pause_until_s:
            return
        change = machine.take_write()
        if change is None:
            return
        self._writing += 1
        epochs = self._state_epoch, self.leader_epoch
        start_offset, batches, completed, delays, given_up = change
        # The records of letters that are written are archived in the same change that says so.
        letters = self._letters.finished
        write = StateWrite(self.key, *epochs, start_offset, batches, completed, delays, letters, given_up)
        self._states.write(write).add_done_callback(partial(self._written, letters))

    def _written(self, letters: LetterBatch | None, written: Promise[StateResult]) -> None:
        machine = self.machine
        if machine is None or self.error is not None:
            return
        result = written.result()
        code = result.error_code
        if code in FENCED:
            self.close(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, result.error_message or ""))
            return
        if code is not ErrorCode.NONE:
            logger.warning("share partition %s: a change of its state was not stored: %s", self.key, code.name)
            self._counts.failed_writes += 1
            self._pause_until_s = self._clock.monotonic() + WRITE_PAUSE_S
        else:
            self._letters.stored(letters)
        machine.written(code is ErrorCode.NONE, self.now_ms())
        for promise in self._answers.pop(self._writing, ()):
            _resolve(promise, told(code))
        self._changed(machine)

    def _schedule(self, machine: SharePartition) -> None:
        deadline_ms = machine.next_deadline()
        if machine.has_unwritten and self._pause_until_s > self._clock.monotonic():
            pause_ms = self.now_ms() + int((self._pause_until_s - self._clock.monotonic()) * 1000) + 1
            deadline_ms = pause_ms if deadline_ms is None else min(deadline_ms, pause_ms)
        if deadline_ms is None or self.error is not None:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._clock.call_later(max(deadline_ms - self.now_ms(), 0) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.machine is not None and self.error is None:
            self.machine.tick(self.now_ms())
            self._changed(self.machine)


def _resolve(promise: Promise[ErrorCode], code: ErrorCode) -> None:
    if not promise.is_done:
        promise.set_result(code)
