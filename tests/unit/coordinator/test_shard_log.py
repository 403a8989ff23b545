"""A shard's log: what is appended is replayed, whatever compaction took of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from flowstone.coordinator.effects import TransactionalProducer
from flowstone.coordinator.shard_log import ProducerFenced, ShardLog
from flowstone.coordinator.skipped_records import SkippedRecords
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition.producers.producer_state import TRANSACTIONS_V2
from flowstone.ports.clock import SimulatedClock
from flowstone.wire.end_markers import EndMarker
from flowstone.wire.record_batch import Record, build_batch, encode_record, parse_header
from tests.support.internal_log import MemoryInternalLog

PADDING = b"." * 1000
PRODUCER = TransactionalProducer(7, 3)
COMMIT = EndMarker(True, 5)

Pair = tuple[str, int | None]


class PairCodec:
    """A record is a name and a number, padded so that a few hundred fill a log; None removes the name."""

    def encode_all(self, records: Sequence[Pair]) -> list[bytes]:
        return [
            encode_record(delta, 0, name.encode(), None if value is None else str(value).encode() + PADDING)
            for delta, (name, value) in enumerate(records)
        ]

    def decode(self, key: bytes, value: bytes | None) -> Pair | None:
        if key.startswith(b"new"):
            return None
        return key.decode(), None if value is None else int(value.removesuffix(PADDING))


class Numbers(dict[str, int]):
    def __init__(self) -> None:
        super().__init__()
        self.transactions: list[tuple[Pair, ...] | EndMarker] = []

    def replay(self, records: Iterable[Pair], producer: TransactionalProducer | None = None) -> None:
        if producer is not None:
            assert producer == PRODUCER
            self.transactions.append(tuple(records))
            return
        for name, value in records:
            if value is None:
                self.pop(name, None)
            else:
                self[name] = value

    def replay_marker(self, producer: TransactionalProducer, marker: EndMarker) -> None:
        assert producer == PRODUCER
        self.transactions.append(marker)


def shard_log(memory: MemoryInternalLog) -> ShardLog:
    return ShardLog("pairs-0", memory, PairCodec(), SkippedRecords())


class Bench:
    def __init__(self) -> None:
        self.memory, self.clock, self.state = MemoryInternalLog(), SimulatedClock(), Numbers()
        self.log = shard_log(self.memory)

    def put(self, *records: Pair) -> None:
        self.log.append(records, self.clock.time_ms())
        self.state.replay(records)

    def write_transaction(self, *records: Pair, marker: EndMarker | None = None) -> None:
        now_ms = self.clock.time_ms()
        self.log.append_batches(self.log.transaction_batches(PRODUCER, records, marker, now_ms, 0))


def replayed(memory: MemoryInternalLog) -> dict[str, int]:
    return dict(loaded(memory))


def loaded(memory: MemoryInternalLog) -> Numbers:
    state = Numbers()
    asyncio.run(shard_log(memory).load(state))
    return state


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
    assert [parse_header(batch).record_count for batch in bench.memory.batches] == [2, 1, 2]


def test_a_damaged_batch_is_not_replayed() -> None:
    bench = Bench()
    bench.put(("a", 1))
    bench.memory.batches[0] = bench.memory.batches[0][:-1] + b"!"
    with pytest.raises(StorageFault, match="checksum"):
        replayed(bench.memory)


def test_a_log_that_was_compacted_is_replayed_to_the_same_state() -> None:
    bench = Bench()
    for number in range(10):
        bench.put((f"n{number % 3}", number))
    del bench.memory.batches[2:5]  # what compaction does to batches of which no record is left
    del bench.memory.batches[0]
    assert replayed(bench.memory) == dict(bench.state)


def test_records_below_the_logs_start_are_not_replayed() -> None:
    bench = Bench()
    bench.put(("a", 1), ("b", 2))
    bench.memory.log_start_offset = 1
    assert replayed(bench.memory) == {"b": 2}


def test_what_is_written_in_a_transaction_is_replayed_with_its_producer_and_then_its_marker() -> None:
    bench = Bench()
    bench.put(("a", 1))
    bench.write_transaction(("a", 2), ("b", 3))
    bench.write_transaction(marker=COMMIT)
    bench.put(("c", 4))
    state = loaded(bench.memory)
    assert (state.transactions, dict(state)) == ([(("a", 2), ("b", 3)), COMMIT], {"a": 1, "c": 4})


def test_the_header_of_a_transactional_batch_names_its_producer_and_no_sequence() -> None:
    bench = Bench()
    bench.write_transaction(("a", 2))
    header = parse_header(bench.memory.batches[0])
    assert (header.is_transactional, header.is_control) == (True, False)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)


def test_a_control_batch_that_is_no_marker_is_passed_over() -> None:
    bench = Bench()
    leader_change = Record(0, 0, b"\x00\x00\x00\x02", b"\x00\x00")
    bench.memory.append(build_batch([leader_change], is_control=True))
    bench.put(("a", 1))
    state = loaded(bench.memory)
    assert (state.transactions, dict(state)) == ([], {"a": 1})


def test_a_marker_below_the_logs_start_is_not_replayed() -> None:
    bench = Bench()
    bench.write_transaction(marker=COMMIT)
    bench.put(("a", 1))
    bench.memory.log_start_offset = 1
    assert loaded(bench.memory).transactions == []


def test_records_of_an_unknown_kind_are_passed_over_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.put(("new-1", 1), ("a", 2), ("new-2", 1))
    bench.put(("new-3", 1), ("b", 5))
    assert replayed(bench.memory) == {"a": 2, "b": 5}
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["pairs-0"]


def test_a_transaction_of_an_older_producer_epoch_is_fenced_before_anything_is_appended() -> None:
    bench = Bench()
    bench.write_transaction(("a", 1))
    older = PRODUCER._replace(producer_epoch=PRODUCER.producer_epoch - 1)
    with pytest.raises(ProducerFenced) as raised:
        bench.log.transaction_batches(older, [("a", 2)], None, bench.clock.time_ms(), 0)
    assert raised.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(bench.memory.batches) == 1


def test_a_marker_is_fenced_by_the_rules_of_its_transaction_version() -> None:
    bench = Bench()
    bench.write_transaction(("a", 1))
    now_ms = bench.clock.time_ms()
    assert bench.log.transaction_batches(PRODUCER, (), COMMIT, now_ms, 1)
    with pytest.raises(ProducerFenced):
        bench.log.transaction_batches(PRODUCER, (), COMMIT, now_ms, TRANSACTIONS_V2)


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_commit_is_waited_for_and_its_failure_raised(code: ErrorCode) -> None:
    async def run() -> None:
        memory = MemoryInternalLog(commits_at_once=False)
        log = shard_log(memory)
        log.append([("a", 1)], 0)
        assert not log.is_committed
        waiting = asyncio.ensure_future(log.wait_committed())
        await asyncio.sleep(0)
        assert not waiting.done()
        if code is ErrorCode.NONE:
            memory.commit()
            await waiting
            assert log.is_committed
            return
        memory.fail(code)
        with pytest.raises(ApiError) as error:
            await waiting
        assert error.value.code is code

    asyncio.run(run())
