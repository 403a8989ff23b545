"""What is known of a move while it runs, where partitions are to be created, and how a log without files moves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from flowstone.config import LONG_MAX, BrokerConfig
from flowstone.errors import StorageFault
from flowstone.log.directories import replica_moves
from flowstone.log.directories.replica_moves import ROUND_BYTES_MAX, ReplicaMove, ReplicaMoves
from flowstone.ports.clock import SimulatedClock
from tests.support.managed_logs import FIRST, SECOND, Broker, run


def noted() -> tuple[ReplicaMoves, Any, Any]:
    """Moves of a broker, of which none was interrupted, and two directories."""
    directory: Any = SimpleNamespace(path="/a")
    other: Any = SimpleNamespace(path="/b")
    files: Any = None
    return ReplicaMoves(SimulatedClock(), files, {}), directory, other


def test_a_partition_that_comes_later_is_created_where_the_client_has_chosen_once() -> None:
    moves, directory, other = noted()
    assert moves.take_wanted(FIRST) is None
    moves.want_in(FIRST, other)
    moves.want_in(FIRST, directory)
    assert moves.take_wanted(SECOND) is None
    assert moves.take_wanted(FIRST) is directory
    assert moves.take_wanted(FIRST) is None


def test_the_directories_of_as_many_partitions_are_noted_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_moves, "WANTED_MAX", 1)
    moves, directory, other = noted()
    moves.want_in(FIRST, directory)
    with pytest.raises(StorageFault, match="1 partitions are noted"):
        moves.want_in(SECOND, directory)
    moves.want_in(FIRST, other)  # it has a place already
    assert moves.take_wanted(FIRST) is other


def two_directories() -> Broker:
    broker = Broker()
    broker.config = BrokerConfig(log_dirs="/a,/b")
    return broker


async def finish(broker: Broker) -> None:
    for _ in range(20_000):
        if not broker.logs.moves.all():
            return
        broker.clock.advance(0.001)
        await asyncio.sleep(0.0001)
    raise AssertionError("the move does not end")


def test_a_log_without_files_moves_at_once_and_its_first_record_is_in_the_new_directory() -> None:
    async def body() -> None:
        broker = two_directories()
        logs = broker.open()
        log = broker.log()
        source = logs.directory_of(log)
        target = next(each for each in logs.directories if each is not source)
        moved_to: list[object] = []
        logs.moves.start(log, source, target, moved_to.append)
        await finish(broker)
        assert moved_to == [target.flusher]
        assert logs.directory_of(log) is target
        assert FIRST not in source.logs
        assert log.path.startswith(target.path)
        broker.append(log)
        assert [each.log.path.startswith(target.path) for each in log.segments] == [True]
        assert broker.files.exists(f"{target.path}/{FIRST}")
        assert not broker.files.exists(f"{source.path}/{FIRST}")
        await broker.settle()
        assert [name for name in broker.files.names(target.path) if "future" in name] == []
        logs.abort()

    run(body)


def test_a_move_to_the_directory_in_which_the_log_is_does_nothing() -> None:
    async def body() -> None:
        broker = two_directories()
        logs = broker.open()
        log = broker.log()
        source = logs.directory_of(log)
        logs.moves.start(log, source, source, lambda flusher: None)
        assert logs.moves.all() == ()
        assert logs.moves.find(FIRST) is None
        assert logs.moves.ending(FIRST) is None
        logs.abort()

    run(body)


def test_as_many_moves_run_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_moves, "MOVES_MAX", 1)

    async def body() -> None:
        broker = two_directories()
        logs = broker.open()
        first, second = broker.log(), broker.log(SECOND, b"2" * 16)
        for log in (first, second):
            broker.append(log)
        source = logs.directory_of(first)
        target = next(each for each in logs.directories if each is not source)
        logs.moves.start(first, source, target, lambda flusher: None)
        with pytest.raises(StorageFault, match="1 replicas are being moved"):
            logs.moves.start(second, source, target, lambda flusher: None)
        found = logs.moves.find(FIRST)
        assert found is not None
        logs.moves.start(first, source, target, lambda flusher: None)  # in place of the one before
        assert logs.moves.find(FIRST) is not found
        assert len(logs.moves.all()) == 1
        logs.abort()

    run(body)


def test_how_much_a_move_has_copied_and_how_far_it_lags_is_known() -> None:
    async def body() -> None:
        broker = two_directories()
        logs = broker.open()
        log = broker.log()
        for _ in range(20):
            broker.append(log)
        source, target = logs.directories
        move = ReplicaMove(log, source, target, lambda flusher: None)
        assert (move.size_bytes, move.offset_lag, move.is_over, move.home) == (0, 20, False, logs.directory_of(log))
        first, second = log.segments[0], log.segments[1]
        move.copied = {first: 300, second: 45}
        move.copied_to = 12
        assert (move.size_bytes, move.offset_lag) == (345, 8)
        move.copied_to = 21
        assert move.offset_lag == 0
        del logs.directory_of(log).logs[FIRST]
        assert move.home is None
        logs.abort()

    run(body)


@pytest.mark.parametrize(
    ("missing_indexes", "missing_bytes", "is_almost_done"),
    [
        (0, 0, True),
        (replica_moves.TAIL_INDEXES_MAX, replica_moves.TAIL_BYTES_MAX, True),
        (replica_moves.TAIL_INDEXES_MAX + 1, 0, False),
        (0, replica_moves.TAIL_BYTES_MAX + 1, False),
    ],
)
def test_a_move_is_almost_done_when_little_is_left(
    missing_indexes: int, missing_bytes: int, is_almost_done: bool
) -> None:
    sealed = [SimpleNamespace(size_bytes=1000, number=number) for number in range(3)]
    active = SimpleNamespace(size_bytes=10 + missing_bytes)
    log: Any = SimpleNamespace(segments=[*map(_Hashable, [*sealed, active])], log_start_offset=0)
    directory: Any = None
    move = ReplicaMove(log, directory, directory, lambda flusher: None)
    segments: Any = log.segments
    move.copied = dict.fromkeys(segments[:-1], 1000) | {segments[-1]: 10}
    move.indexes = {segment: [] for segment in segments[missing_indexes:-1]}
    assert move.is_almost_done is is_almost_done


class _Hashable:
    def __init__(self, segment: Any) -> None:
        self.size_bytes = segment.size_bytes


@pytest.mark.parametrize(
    ("bytes_per_s", "delay_s"),
    [(LONG_MAX, 0.0), (ROUND_BYTES_MAX, 1.0), (ROUND_BYTES_MAX // 4, 4.0), (0, float(ROUND_BYTES_MAX))],
)
def test_the_rate_of_moves_sets_the_pause_after_a_round(bytes_per_s: int, delay_s: float) -> None:
    asked: list[float] = []

    class Clock(SimulatedClock):
        def call_later(self, delay_s: float, callback: Any) -> Any:
            asked.append(delay_s)
            callback()

    async def body() -> None:
        files: Any = None
        moves = ReplicaMoves(Clock(), files, {})
        moves.bytes_per_s = bytes_per_s
        move: Any = None
        await moves._pause(move)

    run(body)
    assert asked == [delay_s]
