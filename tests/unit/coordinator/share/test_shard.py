"""The share coordinator's state machine: fencing, snapshots, pruning, and what is there after a replay."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from flowstone.coordinator.share.config import ShareCoordinatorConfig
from flowstone.coordinator.share.messages import InitialState, StateRead, StateWrite
from flowstone.coordinator.share.records import Delay, ShareKey, ShareRecord, ShareSnapshot, StateBatch
from flowstone.coordinator.share.shard import ShareShard
from flowstone.errors import ErrorCode

KEY = ShareKey("g", bytes(15) + b"t", 0)
NONE = ErrorCode.NONE


class Shard:
    """A shard with its log; every call returns its only reply."""

    def __init__(self, updates_per_snapshot: int = 500) -> None:
        self.config = ShareCoordinatorConfig(updates_per_snapshot)
        self.machine = ShareShard(self.config)
        self.log: list[ShareRecord] = []
        self.now_ms = 0

    def __getattr__(self, name: str) -> Any:
        def call(*asked: Any) -> Any:
            self.now_ms += 1
            effects = getattr(self.machine, name)(self.now_ms, "token", *asked)
            self.machine.replay(effects.records)
            self.log += effects.records
            ((token, reply),) = effects.replies
            assert token == "token"
            return reply

        return call

    def reloaded(self, offset: int = 0) -> ShareShard:
        machine = ShareShard(self.config)
        machine.replay(self.log[offset:])
        return machine


def write(*batches: StateBatch, start: int = -1, state_epoch: int = 0, leader_epoch: int = 0) -> StateWrite:
    return StateWrite(KEY, state_epoch, leader_epoch, start, batches)


def test_a_state_is_initialized_read_written_and_deleted() -> None:
    shard = Shard()
    assert shard.read(KEY, 0).error_code == ErrorCode.INVALID_REQUEST
    assert shard.write(write()).error_code == ErrorCode.INVALID_REQUEST
    assert shard.summarize(KEY).start_offset == -1
    assert shard.initialize(InitialState(KEY, 0, 5)).error_code == NONE
    assert shard.write(write(StateBatch(7, 9, 2, 1))).error_code == NONE
    assert shard.read(KEY, 0) == StateRead(NONE, None, 0, 5, (StateBatch(7, 9, 2, 1),))
    assert shard.write(write(start=8)).error_code == NONE
    assert shard.read(KEY, 0).batches == (StateBatch(8, 9, 2, 1),)
    assert shard.summarize(KEY).start_offset == 8
    assert shard.delete(KEY).error_code == NONE
    assert len(shard.machine) == 0
    assert shard.delete(KEY).error_code == NONE


def test_a_leader_with_an_older_epoch_is_fenced_once_a_newer_one_has_read() -> None:
    shard = Shard()
    shard.initialize(InitialState(KEY, 0, 0))
    assert shard.read(KEY, 3).error_code == NONE
    assert shard.write(write(leader_epoch=2)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert shard.read(KEY, 2).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert shard.write(write(leader_epoch=3)).error_code == NONE
    assert shard.write(write(leader_epoch=-1)).error_code == NONE


def test_a_writer_with_an_older_state_epoch_is_fenced() -> None:
    shard = Shard()
    shard.initialize(InitialState(KEY, 4, 0))
    assert shard.write(write(state_epoch=3)).error_code == ErrorCode.FENCED_STATE_EPOCH
    assert shard.initialize(InitialState(KEY, 3, 0)).error_code == ErrorCode.FENCED_STATE_EPOCH
    assert shard.initialize(InitialState(KEY, 5, 7)).error_code == NONE
    assert shard.read(KEY, 0)[2:4] == (5, 7)


def test_the_start_never_moves_back_within_a_state_epoch() -> None:
    shard = Shard()
    shard.initialize(InitialState(KEY, 0, 0))
    shard.write(write(start=9))
    shard.write(write(start=4))
    assert shard.summarize(KEY).start_offset == 9
    shard.initialize(InitialState(KEY, 1, 4))
    assert shard.summarize(KEY).start_offset == 4


def test_bad_batches_are_refused() -> None:
    shard = Shard()
    shard.initialize(InitialState(KEY, 0, 0))
    for batch in (StateBatch(5, 4, 0, 1), StateBatch(-1, 4, 0, 1), StateBatch(1, 2, 1, 1), StateBatch(1, 2, 3, 1)):
        assert shard.write(write(batch)).error_code == ErrorCode.INVALID_REQUEST


def test_a_delay_is_kept_until_its_record_is_completed() -> None:
    shard = Shard(updates_per_snapshot=1)
    shard.initialize(InitialState(KEY, 0, 0))
    delays = Delay(1, 100), Delay(2, 200), Delay(3, 300)
    shard.write(StateWrite(KEY, 0, 0, -1, (StateBatch(1, 3, 0, 1),), -1, delays))
    assert shard.read(KEY, 0).delays == delays
    shard.write(write(StateBatch(2, 2, 2, 1)))
    assert shard.read(KEY, 0).delays == (Delay(1, 100), Delay(3, 300))
    shard.write(write(start=3))
    assert shard.read(KEY, 0).delays == (Delay(3, 300),)
    assert shard.reloaded().snapshots()[0].delays == (Delay(3, 300),)


def test_after_so_many_updates_a_snapshot_is_written() -> None:
    shard = Shard(updates_per_snapshot=3)
    shard.initialize(InitialState(KEY, 0, 0))
    for offset in range(8):
        shard.write(write(StateBatch(2 * offset, 2 * offset, 2, 1)))
    kinds = "".join("S" if isinstance(record, ShareSnapshot) else "u" for record in shard.log)
    assert kinds == "SuuuSuuuS"


def test_random_histories_are_the_same_after_a_replay_and_after_pruning() -> None:
    random = Random(2)
    for _ in range(60):
        shard = Shard(updates_per_snapshot=random.randrange(5))
        keys = [KEY._replace(partition=index) for index in range(3)]
        begun_at = 0
        for _ in range(40):
            key, action = random.choice(keys), random.random()
            if action < 0.2:
                shard.initialize(InitialState(key, random.randrange(3), random.randrange(10)))
            elif action < 0.7:
                first = random.randrange(20)
                batch = StateBatch(first, first + random.randrange(5), random.choice((0, 2, 4)), 1)
                shard.write(StateWrite(key, -1, random.randrange(3), random.randrange(-1, 20), (batch,)))
            elif action < 0.8:
                shard.read(key, random.randrange(4))
            elif action < 0.85:
                shard.delete(key)
            elif action < 0.95:
                begun_at = len(shard.log)
                assert shard.begin_refresh() is True
        assert shard.reloaded().snapshots() == shard.machine.snapshots()
        assert shard.refresh() is True
        pruned = shard.reloaded(begun_at).snapshots()
        assert sorted(each.key for each in pruned) == sorted(each.key for each in shard.machine.snapshots())
        assert {each.key: each for each in pruned} == {each.key: each for each in shard.machine.snapshots()}


def test_an_initialization_that_is_repeated_late_does_not_reset_a_state_in_use() -> None:
    shard = Shard()
    shard.initialize(InitialState(KEY, 2))
    assert shard.write(write(StateBatch(5, 9, 2, 1), start=5, state_epoch=2)).error_code == NONE
    assert shard.initialize(InitialState(KEY, 2)).error_code == NONE
    assert shard.read(KEY, 0)[2:5] == (2, 5, (StateBatch(5, 9, 2, 1),))
    assert shard.initialize(InitialState(KEY, 3)).error_code == NONE
    assert shard.read(KEY, 0)[2:5] == (3, -1, ())


def test_a_shard_has_nothing_to_do_as_time_passes() -> None:
    machine = Shard().machine
    assert machine.next_deadline() is None
    for effects in (machine.tick(10**9), machine.loaded(10**9)):
        assert (list(effects.records), list(effects.replies), list(effects.tasks)) == ([], [], [])


@pytest.mark.parametrize(("count", "calls"), [(0, [True]), (2, [True]), (3, [False, True]), (5, [False, False, True])])
def test_a_refresh_writes_a_limited_number_of_snapshots_in_a_call(
    monkeypatch: pytest.MonkeyPatch, count: int, calls: list[bool]
) -> None:
    monkeypatch.setattr("flowstone.coordinator.share.shard.SNAPSHOTS_PER_CALL", 2)
    shard = Shard()
    for index in range(count):
        shard.initialize(InitialState(KEY._replace(partition=index), 0, 0))
    begun_at = len(shard.log)
    assert [shard.begin_refresh(), *(shard.refresh() for _ in calls[1:])] == calls
    written = shard.log[begun_at:]
    assert sorted(each.key.partition for each in written) == list(range(count))
    assert shard.refresh() is True
    assert len(shard.log) == begun_at + count
