"""A shard's log: what is appended is replayed, and it does not grow without bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

import pytest

from flowstone.coordinator.effects import CoordinatorRecord
from flowstone.coordinator.shard_log import REWRITE_BYTES_MIN, REWRITE_RATIO, REWRITE_STEP_BYTES, ShardLog
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.ports.clock import SimulatedClock
from flowstone.wire.record_batch import parse_header
from tests.support.internal_log import MemoryInternalLog

PADDING = b"." * 1000

Pair = tuple[str, int | None]


class PairCodec:
    """A record is a name and a number, padded so that a few hundred fill a log; None removes the name."""

    def encode(self, record: Pair) -> CoordinatorRecord:
        name, value = record
        return name.encode(), None if value is None else str(value).encode() + PADDING

    def decode(self, key: bytes, value: bytes | None) -> Pair:
        return key.decode(), None if value is None else int(value.removesuffix(PADDING))


class Numbers(dict[str, int]):
    def replay(self, record: Pair) -> None:
        name, value = record
        if value is None:
            self.pop(name, None)
        else:
            self[name] = value

    def parts(self) -> list[str]:
        return list(self)

    def records_of(self, part: str) -> Iterable[Pair]:
        return [(part, self[part])] if part in self else []


class Bench:
    def __init__(self) -> None:
        self.memory, self.clock, self.state = MemoryInternalLog(), SimulatedClock(), Numbers()
        self.log = ShardLog(self.memory, PairCodec(), self.clock)

    def put(self, *records: Pair) -> None:
        self.log.append(records, self.clock.time_ms())
        for record in records:
            self.state.replay(record)

    def fill(self) -> None:
        """Appends changes of ten numbers until the log should be rewritten."""
        count = 0
        while not self.log.must_be_rewritten:
            self.put((f"n{count % 10}", count))
            count += 1

    def rewrite(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.log.rewrite(self.state, lambda: True, self.clock.time_ms))

    async def finish(self, task: Awaitable[None]) -> None:
        future = asyncio.ensure_future(task)
        while not future.done():
            self.clock.advance(0)
            await asyncio.sleep(0)
        await future


def replayed(memory: MemoryInternalLog) -> dict[str, int]:
    state = Numbers()
    asyncio.run(ShardLog(memory, PairCodec(), SimulatedClock()).load(state))
    return dict(state)


def test_what_is_appended_is_replayed() -> None:
    bench = Bench()
    bench.put(("a", 1), ("b", 2))
    bench.put(("a", 3), ("b", None))
    assert replayed(bench.memory) == {"a": 3}


def test_a_call_that_fits_is_one_batch_and_a_larger_one_is_several() -> None:
    bench = Bench()
    bench.put(*((f"n{number}", number) for number in range(100)))
    assert len(bench.memory.batches) == 1
    bench.memory.batch_bytes_max = 10_000
    bench.put(*((f"m{number}", number) for number in range(100)))
    assert len(bench.memory.batches) > 10
    assert replayed(bench.memory) == dict(bench.state)


def test_a_record_that_no_batch_takes_is_refused_before_anything_is_appended() -> None:
    bench = Bench()
    bench.memory.batch_bytes_max = 500
    with pytest.raises(ApiError) as refused:
        bench.put(("a", 1))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert bench.memory.batches == []


def test_a_batch_may_be_exactly_as_long_as_the_log_takes() -> None:
    bench = Bench()
    bench.put(("a", 1), ("b", 2))
    bench.memory.batch_bytes_max = len(bench.memory.batches[0])
    bench.put(("a", 3), ("b", 4), ("c", 5))
    assert [parse_header(batch).record_count for batch in bench.memory.batches] == [2, 2, 1]


def test_a_damaged_batch_is_not_replayed() -> None:
    bench = Bench()
    bench.put(("a", 1))
    bench.memory.batches[0] = bench.memory.batches[0][:-1] + b"!"
    with pytest.raises(StorageFault, match="checksum"):
        replayed(bench.memory)


def test_a_log_that_is_mostly_history_is_rewritten_to_what_its_state_takes() -> None:
    async def run(bench: Bench) -> None:
        bench.fill()
        end_offset = bench.memory.log_end_offset
        await bench.finish(bench.rewrite())
        assert bench.memory.log_start_offset == end_offset
        assert bench.memory.log_end_offset == end_offset + 10
        assert not bench.log.must_be_rewritten

    bench = Bench()
    asyncio.run(run(bench))
    bench.memory.batches = [
        batch for batch in bench.memory.batches if parse_header(batch).base_offset >= bench.memory.log_start_offset
    ]
    assert replayed(bench.memory) == dict(bench.state)


def test_a_log_that_was_loaded_long_is_rewritten() -> None:
    bench = Bench()
    bench.fill()
    again = ShardLog(bench.memory, PairCodec(), SimulatedClock())
    assert not again.must_be_rewritten
    asyncio.run(again.load(Numbers()))
    assert again.must_be_rewritten


def test_a_log_that_is_all_state_is_left_alone_when_it_is_loaded() -> None:
    bench = Bench()
    bench.put(*((f"n{number}", number) for number in range(2 * REWRITE_BYTES_MIN // len(PADDING))))
    again = ShardLog(bench.memory, PairCodec(), SimulatedClock())
    asyncio.run(again.load(Numbers()))
    assert not again.must_be_rewritten


def test_a_large_state_is_rewritten_only_once_its_log_is_several_times_as_large() -> None:
    async def run(bench: Bench) -> None:
        bench.put(*((f"n{number}", number) for number in range(REWRITE_BYTES_MIN // len(PADDING))))
        await bench.finish(bench.rewrite())
        before = len(bench.memory.batches)
        bench.fill()
        grown = sum(map(len, bench.memory.batches[before:]))
        assert grown >= (REWRITE_RATIO - 1) * REWRITE_BYTES_MIN

    asyncio.run(run(Bench()))


def test_changes_made_during_a_rewrite_are_kept() -> None:
    async def run(bench: Bench) -> None:
        steps = 3 * REWRITE_STEP_BYTES // len(PADDING)
        bench.put(*((f"n{number}", number) for number in range(steps)))
        rewriting = bench.rewrite()
        await asyncio.sleep(0)
        assert not rewriting.done()
        bench.put(("n0", -1), (f"n{steps - 1}", -2), ("n1", None), (f"n{steps - 2}", None), ("new", 7))
        await bench.finish(rewriting)

    bench = Bench()
    asyncio.run(run(bench))
    assert bench.memory.log_start_offset > 0
    assert replayed(bench.memory) == dict(bench.state)


def test_a_rewrite_cut_short_anywhere_loses_nothing() -> None:
    async def run(bench: Bench, batches_left: int) -> None:
        bench.put(*((f"n{number}", number) for number in range(5)))
        whole = len(bench.memory.batches)
        await bench.finish(bench.rewrite())
        del bench.memory.batches[whole + batches_left :]
        bench.memory.log_start_offset = 0  # the crash came before it was moved
        bench.memory.log_end_offset = parse_header(bench.memory.batches[-1]).next_offset
        bench.memory.committed_offset = bench.memory.log_end_offset

    for batches_left in range(6):
        bench = Bench()
        asyncio.run(run(bench, batches_left))
        assert replayed(bench.memory) == dict(bench.state)


def test_a_state_that_is_given_up_is_not_appended_to_the_end() -> None:
    async def run(bench: Bench) -> None:
        bench.put(("a", 1))
        current: list[Any] = []
        await bench.log.rewrite(bench.state, lambda: bool(current), bench.clock.time_ms)
        assert bench.memory.log_start_offset == 0
        assert bench.memory.log_end_offset == 1

    asyncio.run(run(Bench()))
