"""The states of share partitions in a broker: created on demand, there again after a restart, fenced."""

from __future__ import annotations

import time
from pathlib import Path

from flowstone.cluster.decisions.topic_names import SHARE_GROUP_STATE
from flowstone.coordinator.share.messages import InitialState, StateRead, StateResult, StateWrite
from flowstone.coordinator.share.records import ShareKey, StateBatch
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from tests.support.running_app import RunningApp

KEY = ShareKey("g", bytes(15) + b"t", 0)
OTHER = KEY._replace(partition=1)
SMALL = {"share_coordinator_state_topic_num_partitions": "3", "flush_messages": "1"}
DONE = StateResult()


def log_start(app: RunningApp) -> int:
    partition = app.app.services.partitions.find(TopicPartition(SHARE_GROUP_STATE, 0))
    assert partition is not None
    return partition.log.log_start_offset


def test_obsolete_records_of_the_topic_are_deleted_and_the_states_remain(tmp_path: Path) -> None:
    settings = {
        "share_coordinator_state_topic_num_partitions": "1",
        "share_coordinator_state_topic_prune_interval_ms": "100",
    }
    with RunningApp(str(tmp_path), **settings) as app:
        states = app.app.services.share_states
        app.run(states.initialize([InitialState(KEY, 0, 0), InitialState(OTHER, 0, 5)]))

        async def fill() -> None:
            for offset in range(1, 1200):
                await states.write(StateWrite(KEY, 0, 0, offset, (StateBatch(offset + 2, offset + 2, 2, 1),)))

        app.run(fill())
        deadline = time.monotonic() + 10
        while not app.call(lambda: log_start(app)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert app.call(lambda: log_start(app)) >= 1000
    with RunningApp(str(tmp_path), **settings) as app:
        states = app.app.services.share_states
        assert app.run(states.read({KEY: 1}))[KEY].batches == (StateBatch(1199, 1201, 2, 1),)
        assert app.run(states.read({OTHER: 1}))[OTHER].start_offset == 5


async def write(app: RunningApp, change: StateWrite) -> StateResult:
    return await app.app.services.share_states.write(change)


def test_a_single_broker_stores_states_out_of_the_box_and_has_them_after_a_restart(tmp_path: Path) -> None:
    batch = StateBatch(12, 14, 2, 1)
    with RunningApp(str(tmp_path)) as app:
        states = app.app.services.share_states
        assert app.run(states.summarize([KEY]))[KEY].start_offset == -1
        assert app.run(states.delete([KEY])) == {KEY: DONE}
        begun = app.run(states.initialize([InitialState(KEY, 0, 10), InitialState(OTHER, 0)]))
        assert begun == {KEY: DONE, OTHER: DONE}
        assert app.run(write(app, StateWrite(KEY, 0, 0, -1, (batch,)))) == DONE
    with RunningApp(str(tmp_path)) as app:
        states = app.app.services.share_states
        assert app.run(states.read({KEY: 1}))[KEY] == StateRead(ErrorCode.NONE, None, 0, 10, (batch,))
        refused = app.run(write(app, StateWrite(KEY, 0, 0, 13, ())))
        assert refused.error_code == ErrorCode.FENCED_LEADER_EPOCH
        summaries = app.run(states.summarize([KEY, OTHER]))
        assert [summaries[key].start_offset for key in (KEY, OTHER)] == [10, -1]
        assert app.run(states.delete([KEY])) == {KEY: DONE}
        assert app.run(states.read({KEY: 1}))[KEY].error_code == ErrorCode.INVALID_REQUEST
