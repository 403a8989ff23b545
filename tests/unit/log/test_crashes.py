"""Random histories against a plain model: what was promised is there after every kind of crash (S1 to S5, S7)."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import operator
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition.timestamps import first_record_at
from flowstone.log.segments.cached_reads import wait_for
from flowstone.wire.record_batch import checksum_matches, decode_records, parse_header

SEEDS = 60
STEPS = 70


class History:
    """Drives one log at random and knows what must be in it."""

    def __init__(self, world: Any, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.batches: list[bytes] = []  # as stored, in order
        self.starts: list[int] = []
        self.flushed = 0  # how many of them were reported durable
        self.sequences = dict.fromkeys(range(1, 4), 0)
        self.last_sent: dict[int, tuple[bytes, int]] = {}
        world.config = dataclasses.replace(
            world.config,
            segment_bytes=self.random.choice([600, 1500, 5000]),
            index_interval_bytes=self.random.choice([0, 150, 400]),
        )
        world.log.configure(world.config)

    @property
    def end(self) -> int:
        return self.starts[-1] + parse_header(self.batches[-1]).last_offset_delta + 1 if self.batches else 0

    def append(self) -> None:
        count = self.random.randint(1, 4)
        timestamp = self.world.clock.time_ms() - self.random.randint(0, 5000)
        more: dict[str, int] = {}
        producer_id = self.random.choice([-1, 1, 2, 3])
        if producer_id > 0:
            more = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": self.sequences[producer_id]}
        sent = self.world.batch(count, value_bytes=self.random.randint(0, 120), timestamp=timestamp, **more)
        epoch = max(self.world.log.epochs.latest, 0) + (self.random.random() < 0.05)
        appended = self.world.log.append(sent, leader_epoch=epoch)
        assert (appended.base_offset, appended.duplicate) == (self.end, False)
        if producer_id > 0:
            self.sequences[producer_id] += count
            self.last_sent[producer_id] = (sent, appended.base_offset)
        self.starts.append(appended.base_offset)
        self.batches.append(self.world.read_batch(appended.base_offset))
        assert self.batches[-1][16:] == sent[16:]

    def flush(self) -> None:
        """One flush, with appends while it runs, as the group commit has them."""
        task = self.world.log.durability.take_dirty()
        covered = len(self.batches)
        for _ in range(self.random.randint(0, 2)):
            self.append()
        if task is not None:
            self.world.run(task)
        self.flushed = max(self.flushed, covered)

    def checkpoint(self) -> None:
        self.world.checkpoint()

    def delete_records(self) -> None:
        if self.flushed and self.random.random() < 0.3:
            self.world.log.advance_log_start(self.random.choice(self.starts[: self.flushed]))
            self.world.checkpoint()
            self.world.log.drop_segments()

    def damage_derived_files(self) -> None:
        """Whatever follows from the log may vanish or rot."""
        for name in self.world.names():
            if name.endswith(".log") or name == "partition.metadata" or self.random.random() < 0.5:
                continue
            if self.random.random() < 0.4:
                self.world.files.remove(f"{self.world.path}/{name}")
            else:
                self.world.damage(name, self.rot)

    def rot(self, data: bytearray) -> None:
        match self.random.randrange(3):
            case 0 if data:
                data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            case 1:
                del data[self.random.randrange(len(data) + 1) :]
            case _:
                data += self.random.randbytes(self.random.randint(1, 30))

    def stop_cleanly(self) -> None:
        self.world.stop_cleanly()
        self.flushed = len(self.batches)
        self.world.reopen(clean=True)
        self.check(at_least=len(self.batches))

    def kill(self) -> None:
        if self.random.random() < 0.3:
            self.damage_derived_files()
        self.reopen_at_last()
        self.check(at_least=len(self.batches))

    def lose_power(self) -> None:
        """The kernel may have written any of the rest back already, in any order."""
        for name in self.world.names():
            if self.random.random() < 0.3:
                self.world.files.open(f"{self.world.path}/{name}").sync()
        if self.world.files.exists(self.world.path) and self.random.random() < 0.3:
            self.world.files.sync_directory(self.world.path)
        self.world.files.lose_power()
        self.reopen_at_last()
        self.check(at_least=self.flushed)

    def tear_tail(self) -> None:
        """The last write of a killed machine, which was not flushed, is there in part, or as other bytes."""
        point = self.world.stored().promised_end
        names = self.world.names(".log")
        if not names or point >= self.end:
            return
        first_loose = next(at for at, start in enumerate(self.starts) if start >= point)
        last_base = int(names[-1][:20])
        loose = [at for at in range(first_loose, len(self.starts)) if self.starts[at] >= last_base]
        if not loose:
            return
        victim = self.random.choice(loose)
        position = wait_for(lambda: self.world.log.position_of(self.starts[victim])).position
        size = len(self.batches[victim])

        def tear(data: bytearray) -> None:
            at = position + self.random.randrange(size)
            match self.random.randrange(3):
                case 0:
                    del data[at:]
                case 1:
                    data[at:] = bytes(len(data) - at)
                case _:
                    flips.append(position + 16 + (at - position) % (size - 16))
                    data[flips[0]] ^= 0x10

        flips: list[int] = []
        self.world.damage(names[-1], tear)
        if flips and victim < len(self.batches) - 1:
            # No write that was cut short: good batches follow.
            with pytest.raises(StorageFault, match="good batches follow"):
                self.world.reopen()
            self.world.damage(names[-1], lambda data: operator.setitem(data, flips[0], data[flips[0]] ^ 0x10))
            victim = len(self.batches)
        self.reopen_at_last()
        self.check(at_least=victim)

    def reopen_at_last(self) -> None:
        """Recovery dies on the way a few times, and is run again (S7)."""
        for _ in range(self.random.randint(0, 2)):
            operation = self.random.choice(["remove", "truncate", "sync", "write", "sync_directory", "rename"])
            self.world.files.fail_next(operation, errno.EIO)
            with contextlib.suppress(StorageFault, OSError):
                self.world.reopen()
            self.world.files.fail_nothing()
        self.world.reopen()

    def check(self, at_least: int) -> None:
        """The log is a prefix of what was written, at least so many batches long, and all of it can be read."""
        log = self.world.log
        kept = next((at for at, start in enumerate(self.starts) if start >= log.log_end_offset), len(self.batches))
        assert kept >= at_least, f"{kept} batches are left of {len(self.batches)}, {at_least} were promised"
        del self.batches[kept:], self.starts[kept:]
        self.flushed = kept  # recovery makes what it leaves durable
        assert log.log_end_offset == self.end
        assert log.recovery_point == log.log_end_offset
        live = [batch for batch in self.batches if parse_header(batch).next_offset > log.log_start_offset]
        assert self.world.read_all() == live
        assert all(checksum_matches(batch, 0, parse_header(batch)) for batch in live)
        self.check_timestamps(live)
        self.check_producers()

    def check_timestamps(self, live: list[bytes]) -> None:
        log = self.world.log
        records = [record for batch in live for record in decode_records(batch)]
        records = [record for record in records if record.offset >= log.log_start_offset]
        if not records:
            return
        for _ in range(3):
            target = self.random.choice(records).timestamp + self.random.randint(-2, 2)
            expected = next(((each.offset, each.timestamp) for each in records if each.timestamp >= target), None)
            found = wait_for(partial(log.find_timestamp, target))
            assert (found and first_record_at(found.read(), target, log.log_start_offset)) == expected

    def check_producers(self) -> None:
        """The last batch of each producer is known for what it is, and only the next one follows it."""
        log = self.world.log
        headers = [header for batch in self.batches if (header := parse_header(batch)).producer_id > 0]
        last = {header.producer_id: header for header in headers}
        for producer_id in self.sequences:
            header = last.get(producer_id)
            if header is None or log.producers.get(producer_id) is None:
                assert header is None or header.last_offset < log.segments[0].base_offset
                self.sequences[producer_id] = 0
                continue
            self.sequences[producer_id] = header.base_sequence + header.record_count
            sent, offset = self.last_sent[producer_id]
            if offset == header.base_offset:
                assert log.append(sent, leader_epoch=0)[:2] == (offset, header.last_offset)
            with pytest.raises(ApiError) as refused:
                self.world.append(
                    producer_id=producer_id, producer_epoch=0, base_sequence=self.sequences[producer_id] + 7
                )
            assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_log_keeps_its_promises_through_any_history(make_world: Callable[[], Any], seed: int) -> None:
    history = History(make_world(), seed)
    steps = [
        (history.append, 40),
        (history.flush, 12),
        (history.checkpoint, 6),
        (history.delete_records, 3),
        (history.kill, 3),
        (history.lose_power, 3),
        (history.tear_tail, 3),
        (history.stop_cleanly, 2),
    ]
    for step in history.random.choices(*zip(*steps, strict=True), k=STEPS):  # type: ignore[arg-type]
        history.world.clock.advance(0.5)
        step()
    history.stop_cleanly()
