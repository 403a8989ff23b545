"""Delivery by key over random histories: the invariants of key order, with failover, retention, delays and back-off.

A few hundred histories run here. `FLOWSTONE_SHARE_HISTORIES=10000` runs so many.
"""

from __future__ import annotations

import os
from random import Random

from flowstone.broker.sharing.acknowledgements import Acknowledgement, Type
from flowstone.broker.sharing.key_index import key_of_none
from flowstone.broker.sharing.keyed_share_partition import KeyedSharePartition
from flowstone.broker.sharing.share_config import ShareConfig
from flowstone.broker.sharing.spans import spans_of
from flowstone.broker.sharing.window import ACQUIRED, AVAILABLE, TERMINAL
from flowstone.coordinator.share.records import Delay, StateBatch
from flowstone.coordinator.share.state_batches import cut_before, overlay

HISTORIES = int(os.environ.get("FLOWSTONE_SHARE_HISTORIES", "200"))
MEMBERS = ("a", "b", "c")


class History:
    def __init__(self, seed: int, machine: type[KeyedSharePartition] = KeyedSharePartition) -> None:
        self.random = random = Random(seed)
        self.make = machine
        self.config = ShareConfig(
            lock_duration_ms=20,
            delivery_count_limit=random.choice((2, 4)),
            window_max=random.choice((3, 20)),
            backoff_ms=random.choice((0, 5)),
            backoff_max_ms=40,
            lookahead=random.choice((12, 60)),
        )
        self.keys: dict[int, int | None] = {}
        self.not_before: dict[int, int] = {}
        self.log: list[tuple[int, int]] = []
        self.log_end = self.log_start = self.now = 0
        self.stored: list[StateBatch] = []
        self.stored_start = 0
        self.stored_delays: dict[int, int] = {}
        self.machine = machine(0, config=self.config)
        self.change = self.machine.take_write()
        self.delivered: set[int] = set()
        self.accepted: set[int] = set()

    def run(self, steps: int) -> None:
        actions = [self.extend, self.acquire, self.acknowledge, self.write, self.pass_time, self.release]
        rare = [self.fail_over, self.move_start]
        for _ in range(steps):
            self.random.choices([*actions, *rare], [2, 6, 6, 6, 3, 1, 0.5, 0.5])[0]()
            self.check()
        self.drain()

    def extend(self) -> None:
        self.log_end += self.random.choice((0, 0, 2))
        size = self.random.choice((1, 2, 6))
        for offset in range(self.log_end, self.log_end + size):
            if self.random.random() < 0.95:  # the others are gaps in the batch
                self.keys[offset] = self.random.choice((None, 1, 2, 3))
                if self.random.random() < 0.1:
                    self.not_before[offset] = self.now + 30
        self.log.append((self.log_end, self.log_end + size - 1))
        self.log_end += size

    def index(self) -> None:
        for first, last in self.log:
            if last >= self.machine.indexed_to and self.machine.may_index:
                keys = [
                    (self.keys[each] or key_of_none(each)) if each in self.keys else 0
                    for each in range(first, last + 1)
                ]
                delays = [Delay(each, until) for each, until in self.not_before.items() if first <= each <= last]
                self.machine.index(first, last, keys, delays, self.now)

    def acquire(self) -> None:
        self.index()
        member, count = self.random.choice(MEMBERS), self.random.choice((1, 4, 50))
        acquirable = self.acquirable()
        found = self.take_candidates(count)
        has_space = sum(self.machine.in_flight.values()) < self.config.window_max
        assert found == acquirable[: count if has_space else 0], "I4: an acquirable head is not found"
        for offset, count in self.deliver(member, found):
            assert count <= self.config.delivery_count_limit, "I5"
            assert self.now >= self.not_before.get(offset, 0), "I6"
            assert offset not in self.accepted, "an accepted record is delivered again"
            key = self.keys[offset]
            if key is not None:
                for lower in self.lower(offset, key):
                    assert self.is_stored_terminal(lower), f"I3: {offset} before {lower}"
                if offset not in self.delivered:
                    assert not any(each > offset and self.keys[each] == key for each in self.delivered), "I2"
            self.delivered.add(offset)

    def take_candidates(self, count: int) -> list[int]:
        """The candidates, of which some are given back and taken again."""
        found = self.machine.candidates(self.now, count)
        if found and self.random.random() < 0.2:
            self.machine.give_back(found[1:])
            found[1:] = self.machine.candidates(self.now, sum(last - first + 1 for first, last in found[1:]))
        return [offset for first, last in found for offset in range(first, last + 1)]

    def deliver(self, member: str, found: list[int]) -> list[tuple[int, int]]:
        """Acquire candidates as far as the log has them; return each offset with its delivery count."""
        self.machine.archive_missing(spans_of([each for each in found if each not in self.keys]))
        spans = spans_of([each for each in found if each in self.keys])
        acquired = self.machine.acquire_spans(member, spans, self.now)
        return [(offset, count) for first, last, count in acquired for offset in range(first, last + 1)]

    def lower(self, offset: int, key: int) -> list[int]:
        return [each for each in range(self.log_start, offset) if self.keys.get(each) == key]

    def is_stored_terminal(self, offset: int) -> bool:
        if offset < self.stored_start:
            return True
        return any(batch[0] <= offset <= batch[1] and batch[2] in TERMINAL for batch in self.stored)

    def acquirable(self) -> list[int]:
        """The heads of their keys that may be acquired, by the rule alone."""
        machine, found, seen = self.machine, list[int](), set[int]()
        for each in machine.window:
            for offset in range(each.first, each.last + 1):
                if offset >= machine.indexed_to or each.state in TERMINAL or offset not in self.keys:
                    continue
                key = self.keys[offset]
                if key is not None and key in seen:
                    continue
                if key is not None:
                    seen.add(key)
                if each.state is AVAILABLE and each.not_before_ms <= self.now:
                    found.append(offset)
        return found

    def acknowledge(self) -> None:
        held = [each for each in self.machine.window if each.state is ACQUIRED and each.target is None and each.owner]
        if held:
            chosen = self.random.choice(held)
            assert chosen.owner is not None
            kind = self.random.choices((Type.ACCEPT, Type.RELEASE, Type.REJECT, Type.GAP, Type.RENEW), (6, 3, 1, 1, 1))
            self.machine.acknowledge(chosen.owner, [Acknowledgement(chosen.first, chosen.last, kind[0])], self.now)

    def write(self) -> None:
        if self.change is None:
            self.change = self.machine.take_write()
            return
        change, self.change = self.change, None
        is_durable = self.random.random() < 0.8
        if is_durable:
            assert change.start_offset >= self.stored_start, "I7"
            overlay(self.stored, change.batches)
            cut_before(self.stored, change.start_offset)
            self.stored_start = change.start_offset
            self.stored_delays |= dict(change.delays)
            for batch in self.stored:
                if batch[2] == 2:
                    self.accepted |= set(range(batch[0], batch[1] + 1))
        self.machine.written(is_durable, self.now)

    def pass_time(self) -> None:
        self.now += self.random.choice((1, 10, 50))
        self.machine.tick(self.now)

    def release(self) -> None:
        self.machine.release_member(self.random.choice(MEMBERS), self.now)

    def move_start(self) -> None:
        self.log_start = self.random.randrange(self.log_start, self.log_end + 1)
        self.log = [each for each in self.log if each[1] >= self.log_start]
        self.machine.log_start_moved(self.log_start)

    def fail_over(self) -> None:
        self.change = None
        delays = [Delay(each, until) for each, until in sorted(self.stored_delays.items()) if each >= self.stored_start]
        self.machine = self.make(self.stored_start, tuple(self.stored), delays, self.config)
        self.machine.log_start_moved(self.log_start)
        self.machine.tick(self.now)

    def check(self) -> None:
        keys = [
            self.keys[offset]
            for each in self.machine.window
            if each.state is ACQUIRED
            for offset in range(each.first, each.last + 1)
        ]
        known = [key for key in keys if key is not None]
        assert len(known) == len(set(known)), "I1: two records of a key are in delivery"

    def drain(self) -> None:
        """Every record ends accepted or archived (I8)."""
        for _ in range(40 * self.log_end + 100):
            self.write()
            self.pass_time()
            self.index()
            self.deliver("a", self.take_candidates(500))
            for each in list(self.machine.window):
                if each.state is ACQUIRED and each.target is None and each.owner == "a":
                    self.machine.acknowledge("a", [Acknowledgement(each.first, each.last, Type.ACCEPT)], self.now)
            if self.machine.start_offset >= (self.log[-1][1] + 1 if self.log else 0):
                return
        raise AssertionError(f"I8: unfinished records from {self.machine.start_offset} on: {list(self.machine.window)}")


def test_the_invariants_of_key_order_hold_over_random_histories() -> None:
    for seed in range(HISTORIES):
        try:
            History(seed).run(80)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
