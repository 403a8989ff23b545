"""Random histories of transactions against a model that remembers every batch.

After each step the log must have the model's producers, stable offset and aborted transactions: after rolls,
truncations, deletions, stops and crashes, with and without the files that follow from the log, and on a replica.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from flowstone.log.segments.cached_reads import wait_for
from flowstone.wire.end_markers import end_marker, read_end_marker
from flowstone.wire.record_batch import parse_header

STEPS = 60
PRODUCERS = 4
SEEDS = 40


class Batch(NamedTuple):
    base_offset: int
    next_offset: int
    producer_id: int
    epoch: int
    is_transactional: bool
    marker: bool | None = None  # whether it commits


class Open(NamedTuple):
    producer_id: int
    first_offset: int


class Model:
    """Every batch of the log; all else is worked out anew whenever it is asked for."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def transactions(self) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
        """Open ones, by producer, and aborted ones: producer, first offset, marker."""
        is_open, aborted = dict[int, int](), list[tuple[int, int, int]]()
        for batch in self.batches:
            if batch.marker is None and batch.is_transactional:
                is_open.setdefault(batch.producer_id, batch.base_offset)
            elif batch.marker is not None:
                first_offset = is_open.pop(batch.producer_id, None)
                if first_offset is not None and not batch.marker:
                    aborted.append((batch.producer_id, first_offset, batch.base_offset))
        return is_open, aborted

    def stable_offset(self, end: int, log_start: int) -> int:
        return min([max(first, log_start) for first in self.transactions()[0].values()] + [end])

    def epochs(self) -> dict[int, int]:
        return {batch.producer_id: batch.epoch for batch in self.batches if batch.producer_id >= 0}

    def visible(self, start: int, end: int) -> list[int]:
        """The batches, by offset, that a read_committed reader of these offsets must see."""
        aborted = self.transactions()[1]
        seen = []
        for batch in self.batches:
            is_aborted = batch.is_transactional and any(
                producer_id == batch.producer_id and first <= batch.base_offset < marker
                for producer_id, first, marker in aborted
            )
            if batch.marker is None and not is_aborted and start <= batch.base_offset < end:
                seen.append(batch.base_offset)
        return seen


class History:
    def __init__(self, world: Any, seed: int) -> None:
        self.world, self.rng, self.model = world, random.Random(seed), Model()
        self.epochs = dict.fromkeys(range(PRODUCERS), 0)
        self.is_exact = True  # nothing was deleted: a transaction begins where it did

    def step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (30, self.write_transactional),
            (10, self.write_plain),
            (16, self.end_transaction),
            (3, self.roll),
            (3, self.truncate),
            (3, self.crash),
            (3, self.stop),
            (2, self.lose_derived_files),
            (1, self.delete),
            (2, self.world.flush),
        ]
        [step] = self.rng.choices([step for _, step in steps], [weight for weight, _ in steps])
        step()
        self.check()

    def _append(self, batch: bytes, *, is_own: bool = False, marker: bool | None = None) -> None:
        appended = self.world.log.append(batch, leader_epoch=0, is_own=is_own, transaction_version=1)
        header = parse_header(batch)
        self.model.batches.append(
            Batch(
                appended.base_offset,
                appended.last_offset + 1,
                header.producer_id,
                header.producer_epoch,
                header.is_transactional,
                marker,
            )
        )

    def write_transactional(self) -> None:
        producer_id = self.rng.randrange(PRODUCERS)
        self._write(producer_id, is_transactional=True)

    def write_plain(self) -> None:
        idle = set(range(PRODUCERS)) - set(self.model.transactions()[0])
        if idle and self.rng.random() < 0.5:
            self._write(self.rng.choice(sorted(idle)), is_transactional=False)
        else:
            self._append(self.world.batch(self.rng.randint(1, 3)))

    def _write(self, producer_id: int, *, is_transactional: bool) -> None:
        epoch, count = self.epochs[producer_id], self.rng.randint(1, 3)
        known = self.world.log.producers.get(producer_id)
        sequence = known.batches[-1].last_sequence + 1 if known and known.epoch == epoch and known.batches else 0
        self._append(
            self.world.batch(
                count,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                is_transactional=is_transactional,
            )
        )

    def end_transaction(self) -> None:
        is_open = self.model.transactions()[0]
        if not is_open:
            return
        producer_id, is_commit = self.rng.choice(sorted(is_open)), self.rng.random() < 0.5
        self.epochs[producer_id] += self.rng.random() < 0.5  # the second protocol, or the first
        marker = end_marker(producer_id, self.epochs[producer_id], 3, is_commit, self.world.clock.time_ms())
        self._append(marker, is_own=True, marker=is_commit)

    def roll(self) -> None:
        if self.world.log.segments.active.size_bytes:
            self.world.log.roll()

    def truncate(self) -> None:
        log = self.world.log
        if log.log_start_offset < log.log_end_offset and log.log_end_offset:
            self.world.flush()
            self.world.checkpoint()
            self.world.truncate_to(self.rng.randrange(log.log_start_offset, log.log_end_offset))
            self._follow_log()

    def _follow_log(self) -> None:
        """What the log has lost is not in the model any more; producers go on with what is left."""
        end = self.world.log.log_end_offset
        self.model.batches = [batch for batch in self.model.batches if batch.next_offset <= end]
        for producer_id, epoch in self.model.epochs().items():
            self.epochs[producer_id] = epoch
        for producer_id in range(PRODUCERS):
            if producer_id not in self.model.epochs():
                self.epochs[producer_id] += 1

    def crash(self) -> None:
        """Kill the process; what was not flushed may be lost, and what was flushed may be checkpointed."""
        if self.rng.random() < 0.5:
            self.world.flush()
        if self.rng.random() < 0.5:
            self.world.checkpoint()
        self.world.reopen()
        self._follow_log()

    def stop(self) -> None:
        self.world.stop_cleanly()
        self.world.reopen(clean=True)

    def lose_derived_files(self) -> None:
        """Files that follow from the log are gone, or wrong, at the next start."""
        self.world.stop_cleanly()
        if not self.world.files.exists(self.world.path):
            return
        snapshots, indexes = self.world.names(".snapshot"), self.world.names(".txnindex")
        which = self.rng.randrange(4)
        if which in (0, 3):
            for name in snapshots:
                self.world.files.remove(f"{self.world.path}/{name}")
        if which in (1, 3):
            for name in indexes:
                self.world.files.remove(f"{self.world.path}/{name}")
        if which == 2 and indexes:
            self.world.damage(self.rng.choice(indexes), lambda data: data.extend(b"\1"))
        self.world.reopen(clean=True)

    def delete(self) -> None:
        log = self.world.log
        if log.log_start_offset < log.log_end_offset:
            log.advance_log_start(self.rng.randrange(log.log_start_offset, log.log_end_offset))
            log.drop_segments()
            self.world.flush()
            self.world.checkpoint()
            self.is_exact = False

    def check(self) -> None:
        log, model = self.world.log, self.model
        end = log.log_end_offset
        aborted = model.transactions()[1]
        if self.is_exact:
            assert log.last_stable_offset(end) == model.stable_offset(end, log.log_start_offset)
        else:  # transactions whose records are all deleted may or may not be known
            assert log.last_stable_offset(end) >= model.stable_offset(end, log.log_start_offset)
        stable = log.last_stable_offset(end)
        if stable <= log.log_start_offset:
            return
        start = self.rng.randrange(log.log_start_offset, stable)
        until = self.rng.randint(start + 1, stable)
        found = wait_for(lambda: log.aborted_transactions(start, until))
        assert [each.first_offset for each in found] == sorted(each.first_offset for each in found)
        if self.is_exact:
            expected = [(pid, first) for pid, first, marker in aborted if marker >= start and first < until]
            assert sorted(found) == sorted(expected)
        first = next(batch.base_offset for batch in model.batches if batch.next_offset > start)
        assert visible_with(self.world, found, first, until) == model.visible(first, until)


def visible_with(world: Any, aborted: list[Any], start: int, end: int) -> list[int]:
    """The batches that a client shows, by offset, which leaves out aborted ones as Kafka's consumer does."""
    seen, pending, aborting = [], list(aborted), set[int]()
    offset = start
    while offset < end:
        data = world.read_batch(max(offset, world.log.log_start_offset))
        header = parse_header(data)
        offset = header.next_offset
        while pending and pending[0].first_offset <= header.last_offset:
            aborting.add(pending.pop(0).producer_id)
        if header.is_control:
            marker = read_end_marker(data, 0, header)
            if marker is not None and not marker.is_commit:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting) and header.base_offset < end:
            seen.append(header.base_offset)
    return seen


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_log_has_the_transactions_of_its_batches_whatever_happens_to_it(world: Any, seed: int) -> None:
    history = History(world, seed)
    for _ in range(STEPS):
        history.step()
    if history.is_exact:  # else a producer may be forgotten with its records
        epochs = history.model.epochs()
        assert {each: world.log.producers.get(each).epoch for each in epochs} == epochs


@pytest.mark.parametrize("seed", range(10))
def test_a_replica_has_the_transactions_of_its_leader(world: Any, seed: int) -> None:
    history = History(world, seed)
    for _ in range(40):
        history.rng.choice([history.write_transactional, history.write_plain, history.end_transaction])()
    batches = world.read_all()
    world.path += "-replica"
    world.log = world.new_log(exists=False)
    while batches:
        count = history.rng.randint(1, len(batches))
        world.log.append_replicated(b"".join(batches[:count]), leader_epoch=0)
        del batches[:count]
    history.check()
