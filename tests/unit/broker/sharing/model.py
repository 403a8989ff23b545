"""A model of a share partition that is as simple as possible: one object for each record, no ranges, no hints.

`Model` answers the same calls as `SharePartition`, by the rules and not by its code. `History` makes random calls of
both and compares what they return and what they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from flowstone.broker.sharing.acknowledgements import Acknowledgement, Type
from flowstone.broker.sharing.acquisition import Acquired, LogBatch
from flowstone.broker.sharing.share_changes import Change
from flowstone.broker.sharing.share_config import ShareConfig
from flowstone.broker.sharing.share_partition import SharePartition
from flowstone.coordinator.share.records import Delay, StateBatch
from flowstone.coordinator.share.state_batches import cut_before, overlay
from flowstone.errors import ApiError, ErrorCode

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = 0, 1, 2, 4
DONE = (ACKNOWLEDGED, ARCHIVED)
MEMBERS = ("a", "b", "c")


@dataclass
class Item:
    state: int = AVAILABLE
    count: int = 0
    batch_size: int = 1
    owner: str | None = None
    deadline: int = 0
    not_before: int = 0
    target: int | None = None
    is_writing: bool = False


class Model:
    def __init__(self, start: int, config: ShareConfig) -> None:
        self.start, self.config = start, config
        self.items: list[Item] = []

    @property
    def end(self) -> int:
        return self.start + len(self.items)

    def at(self, offset: int) -> Item:
        return self.items[offset - self.start]

    def next_offset(self, now: int) -> int | None:
        for index, item in enumerate(self.items):
            if item.state == AVAILABLE and item.not_before <= now:
                return self.start + index
        return self.end if len(self.items) < self.window_max(now) else None

    def window_max(self, now: int) -> int:
        waiting = sum(item.state == AVAILABLE and item.not_before > now for item in self.items)
        return min(self.config.window_max + waiting, 10 * self.config.window_max)

    def acquire(
        self, member: str, offset: int, batches: Sequence[LogBatch], now: int, limit: int, strict: bool
    ) -> list[Acquired]:
        taken: list[tuple[int, int]] = []
        fresh: list[int] = []
        window_max = self.window_max(now)
        for first, last, is_delivered, delays in batches:
            for hole in range(offset, first):
                self._archive_missing(hole)
            offset = max(offset, last + 1)
            if not is_delivered:
                for each in range(first, last + 1):
                    self._archive_missing(each)
                continue
            before = len(taken)
            self._wait(last, delays, {each for each, _ in taken}, now)
            over = self._acquire_batch(first, last, taken, fresh, window_max, now, limit, strict)
            if over or (before and len(taken) == before) or len(taken) >= limit:
                break
        for run in _runs(fresh):
            for each in run:
                self.at(each).batch_size = len(run)
        for each, _ in taken:
            item = self.at(each)
            item.state, item.owner, item.deadline = ACQUIRED, member, now + self.config.lock_duration_ms
            item.not_before = 0
        result = [Acquired(run[0], run[-1], self.at(run[0]).count) for run in _alike(taken)]
        self._advance()
        return result

    def _wait(self, last: int, delays: Sequence[Delay], taken: set[int], now: int) -> None:
        if delays and last >= self.end and len(self.items) < 10 * self.config.window_max:
            size = last + 1 - self.end
            self.items += [Item(batch_size=size) for _ in range(size)]
        for each, until in delays:
            if until > now and self.start <= each < self.end:
                item = self.at(each)
                if item.state == AVAILABLE and each not in taken:
                    item.not_before = max(item.not_before, until)

    def _acquire_batch(
        self,
        first: int,
        last: int,
        taken: list[tuple[int, int]],
        fresh: list[int],
        window_max: int,
        now: int,
        limit: int,
        strict: bool,
    ) -> bool:
        chosen = {each for each, _ in taken}
        each = max(first, self.start)
        while each <= min(last, self.end - 1):
            item = self.at(each)
            if item.state != AVAILABLE or item.not_before > now or each in chosen:
                each += 1
                continue
            size = self._piece(item)
            if size is not None:
                if taken:
                    return True
                run = [each]
                while run[-1] < min(last, self.end - 1) and self._alike(item, self.at(run[-1] + 1)):
                    run.append(run[-1] + 1)
                run = run[:size] if not strict else run[: min(size, limit)]
                for offset in run:
                    self._take(offset, taken)
                return True
            if strict and len(taken) >= limit:
                return True
            self._take(each, taken)
            each += 1
        if strict and len(taken) >= limit:
            return True
        space = window_max - len(self.items)
        if space <= 0 or max(first, self.end) > self.end:
            return False
        count = 0
        while self.end <= last:
            if strict and (len(taken) >= limit or count >= space):
                break
            self.items.append(Item())
            fresh.append(self.end - 1)
            self._take(self.end - 1, taken)
            count += 1
        return False

    def _take(self, offset: int, taken: list[tuple[int, int]]) -> None:
        self.at(offset).count += 1
        taken.append((offset, self.at(offset).count))

    def _alike(self, one: Item, other: Item) -> bool:
        return (one.state, one.count, one.batch_size, one.not_before) == (
            other.state,
            other.count,
            other.batch_size,
            other.not_before,
        )

    def _piece(self, item: Item) -> int | None:
        limit = self.config.delivery_count_limit
        threshold = max(2, (limit + 1) // 2)
        if item.count < threshold:
            return None
        return 1 if item.count >= limit - 1 else max(1, item.batch_size >> (item.count - threshold + 1))

    def _archive_missing(self, offset: int) -> None:
        if self.start <= offset < self.end:
            if self.at(offset).state == AVAILABLE:
                self.at(offset).state = ARCHIVED
        elif offset == self.end:
            self.items.append(Item(ARCHIVED))

    def acknowledge(self, member: str, acks: Sequence[Acknowledgement], now: int) -> ErrorCode:
        for first, last, kind in acks:
            if last >= self.end:
                return ErrorCode.INVALID_REQUEST
            if kind is Type.RENEW and not self.config.may_renew:
                return ErrorCode.INVALID_RECORD_STATE
            for offset in range(max(first, self.start), last + 1):
                item = self.at(offset)
                if item.state != ACQUIRED or item.owner != member or item.target is not None:
                    return ErrorCode.INVALID_RECORD_STATE
        for first, last, kind in acks:
            for offset in range(max(first, self.start), last + 1):
                item = self.at(offset)
                if kind is Type.RENEW:
                    item.deadline = now + self.config.lock_duration_ms
                elif kind is Type.ACCEPT:
                    item.target = ACKNOWLEDGED
                elif kind is Type.RELEASE and item.count < self.config.delivery_count_limit:
                    item.target = AVAILABLE
                    item.not_before = now + self._backoff(item.count)
                else:
                    item.target = ARCHIVED
        return ErrorCode.NONE

    def _backoff(self, count: int) -> int:
        return min(self.config.backoff_ms * 2 ** (count - 1), self.config.backoff_max_ms) if count else 0

    def release_member(self, member: str, now: int) -> None:
        for item in self.items:
            if item.owner == member:
                if item.target is not None:
                    item.owner = None
                else:
                    self._release(item, now)

    def tick(self, now: int) -> None:
        for item in self.items:
            if item.state == ACQUIRED and item.target is None and item.deadline <= now:
                self._release(item, now)

    def _release(self, item: Item, now: int) -> None:
        item.owner = None
        if item.count >= self.config.delivery_count_limit:
            item.target = ARCHIVED
        else:
            item.state = AVAILABLE
            item.not_before = now + self._backoff(item.count) if self._backoff(item.count) else 0

    def take_write(self) -> None:
        for item in self.items:
            item.is_writing = item.target is not None

    def start_after_write(self) -> int:
        done = [item.state in DONE or item.target in DONE for item in self.items]
        return self.start + (done.index(False) if False in done else len(done))

    def written(self, ok: bool, now: int) -> None:
        for item in self.items:
            if not item.is_writing:
                continue
            item.is_writing = False
            target, item.target = item.target, None
            if ok:
                assert target is not None
                item.state, item.owner = target, None
                if target == AVAILABLE and item.not_before <= now:
                    item.not_before = 0
                continue
            item.not_before = 0
            if item.owner is None or item.deadline <= now:
                self._release(item, now)
        self._advance()

    def log_start_moved(self, offset: int) -> None:
        if offset > self.start:
            del self.items[: offset - self.start]
            self.start = offset
            self._advance()

    def _advance(self) -> None:
        while self.items and self.items[0].state in DONE:
            self.start += 1
            self.items.pop(0)


def _runs(offsets: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for each in offsets:
        if runs and runs[-1][-1] + 1 == each:
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs


def _alike(taken: Sequence[tuple[int, int]]) -> list[list[int]]:
    runs: list[list[int]] = []
    counts: list[int] = []
    for offset, count in taken:
        if runs and runs[-1][-1] + 1 == offset and counts[-1] == count:
            runs[-1].append(offset)
        else:
            runs.append([offset])
            counts.append(count)
    return runs


class History:
    """One random history; `step` makes one call of both and compares them."""

    def __init__(self, seed: int, machine: type[SharePartition] = SharePartition) -> None:
        self.random = random = Random(seed)
        self.config = ShareConfig(
            lock_duration_ms=random.choice((5, 30)),
            delivery_count_limit=random.choice((2, 3, 5)),
            window_max=random.choice((4, 12, 40)),
            may_renew=random.random() < 0.8,
            backoff_ms=random.choice((0, 0, 4)),
            backoff_max_ms=16,
        )
        self.start = random.randrange(5)
        self.make = machine
        self.real = machine(self.start, config=self.config)
        self.model = Model(self.start, self.config)
        self.log: list[LogBatch] = []
        self.log_end = self.log_start = 0
        self.now = 0
        self.change: Change | None = None
        self.stored_start, self.stored = self.start, list[StateBatch]()
        self.stored_delays: dict[int, int] = {}
        self.accepted: set[int] = set()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.compare()

    def step(self) -> None:
        actions: list[tuple[Any, int]] = [
            (self.extend, 3),
            (self.acquire, 6),
            (self.acknowledge, 8),
            (self.begin_write, 5),
            (self.end_write, 5),
            (self.pass_time, 3),
            (self.release, 1),
            (self.move_start, 0 if self.random.random() < 0.8 else 1),
            (self.fail_over, 0 if self.random.random() < 0.8 else 1),
        ]
        (action,) = self.random.choices([each for each, _ in actions], [weight for _, weight in actions])
        action()

    def extend(self) -> None:
        self.log_end += self.random.choice((0, 0, 0, 2))  # a hole
        size = self.random.choice((1, 1, 3, 8))
        offsets = range(self.log_end, self.log_end + size)
        delays = tuple(Delay(each, self.now + 9) for each in offsets if self.random.random() < 0.3)
        if self.random.random() < 0.8:
            delays = ()
        self.log.append(LogBatch(self.log_end, self.log_end + size - 1, self.random.random() < 0.9, delays))
        self.log_end += size

    def acquire(self) -> None:
        offset = self.real.next_offset(self.now)
        assert offset == self.model.next_offset(self.now)
        if offset is None:
            return
        batches = [each for each in self.log if each.last >= offset][: self.random.choice((1, 2, 9))]
        member, limit, strict = self.random.choice(MEMBERS), self.random.choice((1, 3, 50)), self.random.random() < 0.5
        got = self.real.acquire(member, offset, batches, self.now, limit, strict=strict)
        assert got == self.model.acquire(member, offset, batches, self.now, limit, strict)
        assert not strict or sum(last - first + 1 for first, last, _ in got) <= limit
        for first, last, count in got:
            assert not self.accepted & set(range(first, last + 1)), "an accepted record is delivered again"
            assert count <= self.config.delivery_count_limit

    def acknowledge(self) -> None:
        member = self.random.choice(MEMBERS)
        held = [self.model.start + i for i, item in enumerate(self.model.items) if item.owner == member]
        acks = []
        for run in _runs(held):
            if self.random.random() < 0.6:
                begin = self.random.randrange(len(run))
                end = self.random.randrange(begin, len(run))
                acks.append(Acknowledgement(run[begin], run[end], self.random.choice(tuple(Type))))
        if self.random.random() < 0.1:
            first = self.random.randrange(max(self.model.end, 1) + 2)
            acks = [Acknowledgement(first, first + self.random.randrange(3), self.random.choice(tuple(Type)))]
        code = ErrorCode.NONE
        try:
            self.real.acknowledge(member, acks, self.now)
        except ApiError as error:
            code = error.code
        assert code == self.model.acknowledge(member, acks, self.now)

    def begin_write(self) -> None:
        if self.change is None:
            self.change = self.real.take_write()
            if self.change is not None:
                self.model.take_write()
                assert self.change.start_offset == self.model.start_after_write()

    def end_write(self) -> None:
        if self.change is None:
            return
        is_durable, change, self.change = self.random.random() < 0.8, self.change, None
        if is_durable:
            self.store(change)
        self.real.written(is_durable, self.now)
        self.model.written(is_durable, self.now)

    def store(self, change: Change) -> None:
        overlay(self.stored, change.batches)
        cut_before(self.stored, change.start_offset)
        assert change.start_offset >= self.stored_start, "the start moves back"
        self.stored_start = change.start_offset
        done = {each for batch in self.stored if batch[2] in DONE for each in range(batch[0], batch[1] + 1)}
        assert change.delivery_complete_count == len(done), (change, self.stored)
        self.accepted |= {
            each for batch in self.stored if batch[2] == ACKNOWLEDGED for each in range(batch[0], batch[1] + 1)
        }
        self.stored_delays = {each: until for each, until in self.stored_delays.items() if each not in done}
        self.stored_delays |= dict(change.delays)

    def pass_time(self) -> None:
        self.now += self.random.choice((1, 4, 40))
        self.real.tick(self.now)
        self.model.tick(self.now)

    def release(self) -> None:
        member = self.random.choice(MEMBERS)
        self.real.release_member(member, self.now)
        self.model.release_member(member, self.now)

    def move_start(self) -> None:
        self.log_start = self.random.randrange(self.log_start, max(self.log_end, self.log_start) + 1)
        self.log = [each for each in self.log if each.last >= self.log_start]
        self.real.log_start_moved(self.log_start)
        self.model.log_start_moved(self.log_start)

    def fail_over(self) -> None:
        """A new leader begins with what is stored."""
        self.change = None
        delays = [Delay(each, until) for each, until in sorted(self.stored_delays.items()) if each >= self.stored_start]
        self.real = self.make(self.stored_start, tuple(self.stored), delays, self.config)
        self.model = model = Model(self.stored_start, self.config)
        for first, last, state, count in self.stored:
            while model.end < first:
                gap = first - model.end
                model.items += [Item(batch_size=gap) for _ in range(gap)]
            model.items += [Item(state, count, last - first + 1) for _ in range(first, last + 1)]
        for each, until in delays:
            if each < model.end and model.at(each).state == AVAILABLE:
                model.at(each).not_before = until
        model._advance()
        self.real.log_start_moved(self.log_start)
        self.model.log_start_moved(self.log_start)

    def compare(self) -> None:
        real, model = self.real, self.model
        assert (real.start_offset, real.end_offset) == (model.start, model.end - 1)
        items = []
        for each in real.window:
            items += [
                (int(each.state), each.count, each.owner, each.target, each.not_before_ms) for _ in range(len(each))
            ]
            if each.state == ACQUIRED and each.target is None:
                assert all(self.model.at(o).deadline == each.deadline_ms for o in (each.first, each.last))
        theirs = [
            (item.state, item.count, item.owner if item.state == ACQUIRED else None, item.target, item.not_before)
            for item in model.items
        ]
        assert [_comparable(each) for each in items] == [_comparable(each) for each in theirs]
        assert real.completed_count == sum(item.state in DONE for item in model.items)
        in_flight = {
            member: count
            for member in MEMBERS
            if (count := sum(item.owner == member and item.target is None for item in model.items))
        }
        assert real.in_flight == in_flight
        deadlines = [item.deadline for item in model.items if item.state == ACQUIRED and item.target is None]
        due = real.next_deadline()
        assert not deadlines or (due is not None and due <= min(deadlines))


def _comparable(item: tuple[int, int, str | None, int | None, int]) -> tuple[Any, ...]:
    """Of a completed record only that it is completed."""
    state, count, owner, target, not_before = item
    if state in DONE:
        return (True,)
    return state, count, owner, target, not_before if state == AVAILABLE else 0
