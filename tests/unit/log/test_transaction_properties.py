"""Random histories of transactions against a model that remembers every batch.

After each step the log must have the model's producers, stable offset and aborted transactions: after rolls,
truncations, deletions, stops and crashes, with and without the files that follow from the log, and on a replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowstone.log.segments.cached_reads import wait_for
from tests.support.transactional_log import PRODUCERS, TransactionWriter, visible_batches, wrong_indexes

STEPS = 60
SEEDS = 40


class History:
    def __init__(self, world: Any, seed: int) -> None:
        self.world = world
        self.writer = TransactionWriter(world.log, seed)
        self.rng, self.model = self.writer.rng, self.writer.model
        self.is_exact = True  # nothing was deleted: a transaction begins where it did

    def step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (30, self.writer.write_transactional),
            (10, self.writer.write_plain),
            (16, self.writer.end_transaction),
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
        self.writer.log = self.world.log
        self.check()

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
            self.writer.epochs[producer_id] = epoch
        for producer_id in range(PRODUCERS):
            if producer_id not in self.model.epochs():
                self.writer.epochs[producer_id] += 1

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
        assert wrong_indexes(log) == []
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
        assert visible_batches(log, found, first, until) == model.visible(first, until)


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
    writer = history.writer
    for _ in range(40):
        history.rng.choice([writer.write_transactional, writer.write_plain, writer.end_transaction])()
    batches = world.read_all()
    world.path += "-replica"
    world.log = world.new_log(exists=False)
    while batches:
        count = history.rng.randint(1, len(batches))
        world.log.append_replicated(b"".join(batches[:count]), leader_epoch=0)
        del batches[:count]
    history.check()
