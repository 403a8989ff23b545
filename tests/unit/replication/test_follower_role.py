"""A partition that follows another broker's."""

from __future__ import annotations

import asyncio

import pytest

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition.replica_append import UnfitRecords
from flowstone.replication.readers import Reader
from flowstone.replication.state import DivergingEpoch
from flowstone.wire.record_batch import PREFIX_BYTES, parse_header, prefix
from tests.support.partitions import IN_PAGE_CACHE, a_batch
from tests.unit.replication.replicas import ReplicaWorld, Watcher, leader_bytes


@pytest.fixture
def world() -> ReplicaWorld:
    return ReplicaWorld(leader=2)


def test_what_the_leader_sent_is_stored_as_it_is(world: ReplicaWorld):
    sent = leader_bytes(2, 3)
    world.follow(sent)
    stored = world.log.read(0, 1 << 20, world.log.end, at_least_one=True)
    assert stored is not None
    assert stored.read() == sent
    assert (world.log.log_end_offset, world.log.epochs.latest) == (5, 3)


def test_a_follower_refuses_produce_requests(world: ReplicaWorld):
    with pytest.raises(ApiError) as refused:
        world.partition.append(a_batch(), 1)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_waits_for_its_disk_before_it_asks_for_more(world: ReplicaWorld):
    outcome: list[ErrorCode] = []
    world.follow(leader_bytes(2))
    assert world.flusher.asked == [world.log]
    world.partition.local.when_flushed(2, outcome.append)
    assert outcome == []
    world.flush()
    assert outcome == [ErrorCode.NONE]


def test_without_flushing_a_follower_asks_for_more_at_once():
    world = ReplicaWorld(IN_PAGE_CACHE, leader=2)
    outcome: list[ErrorCode] = []
    world.follow(leader_bytes(2))
    world.partition.local.when_flushed(2, outcome.append)
    assert outcome == [ErrorCode.NONE]
    assert world.flusher.appended_records == 2


def test_its_high_watermark_is_the_leaders_as_far_as_its_own_disk_reaches(world: ReplicaWorld):
    world.follow(leader_bytes(2, 2), high_watermark=2)
    assert world.high_watermark == 0
    world.flush()
    assert world.high_watermark == 2
    world.follow(b"", high_watermark=9)
    assert world.high_watermark == 4


def test_consumers_read_from_a_follower_up_to_its_high_watermark(world: ReplicaWorld):
    consumer = Watcher()
    world.partition.local.watchers(Reader.UNCOMMITTED).watch(consumer)
    sent = leader_bytes(2, 2)
    world.follow(sent, high_watermark=2)
    world.flush()
    seen = world.partition.local.read_as(Reader.UNCOMMITTED, 0, 1 << 20, at_least_one=True)
    assert seen is not None
    assert seen.read() == sent[: len(a_batch(2))]
    assert consumer.size_bytes >= len(a_batch(2))


def test_the_leaders_log_start_is_taken_over_as_far_as_it_is_committed_here(world: ReplicaWorld):
    world.follow(leader_bytes(2, 2), high_watermark=4, log_start=3)
    assert world.log.log_start_offset == 0
    world.flush()
    assert world.log.log_start_offset == 3
    world.follow(b"", high_watermark=4, log_start=2)
    assert world.log.log_start_offset == 3


def test_a_follower_that_cannot_copy_still_takes_over_the_leaders_log_start(world: ReplicaWorld):
    world.follow(leader_bytes(2, 2), high_watermark=4)
    world.flush()
    assert world.following.follow_log_start(3)
    assert world.log.log_start_offset == 3


def test_a_log_start_beyond_what_is_committed_here_is_taken_over_up_to_there(world: ReplicaWorld):
    world.follow(leader_bytes(2, 2), high_watermark=2)
    world.flush()
    assert world.following.follow_log_start(4)
    assert world.log.log_start_offset == 2


def test_a_follower_that_had_no_space_is_no_longer_full_once_it_copies_again(world: ReplicaWorld):
    world.partition.local.append_refused(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no space is left"))
    assert world.partition.local.is_full
    world.follow(leader_bytes(2))
    assert not world.partition.local.is_full


def test_a_log_start_that_the_follower_has_reached_moves_nothing(world: ReplicaWorld):
    world.follow(leader_bytes(2, 2), high_watermark=4, log_start=3)
    world.flush()
    assert not world.following.follow_log_start(3)
    assert world.log.log_start_offset == 3


def test_a_follower_that_is_offline_keeps_its_log_start(world: ReplicaWorld):
    world.follow(leader_bytes(2, 2), high_watermark=4)
    world.flush()
    world.partition.local.failed(StorageFault("the disk is gone"))
    assert not world.following.follow_log_start(3)
    assert world.log.log_start_offset == 0


@pytest.mark.parametrize("epoch", [2, 4])
def test_an_answer_of_another_epoch_is_not_taken(world: ReplicaWorld, epoch: int):
    with pytest.raises(ApiError) as refused:
        world.follow(leader_bytes(2), epoch=epoch)
    assert refused.value.code is ErrorCode.FENCED_LEADER_EPOCH
    assert world.log.log_end_offset == 0


def test_a_replica_that_has_become_leader_ignores_a_fetch_response(world: ReplicaWorld):
    world.decide(leader=1)
    with pytest.raises(ApiError) as refused:
        world.follow(leader_bytes(2))
    assert refused.value.code is ErrorCode.FENCED_LEADER_EPOCH


def test_a_damaged_answer_is_counted_and_nothing_of_it_stored(world: ReplicaWorld):
    sent = bytearray(leader_bytes(2, 2))
    sent[-1] ^= 1
    with pytest.raises(UnfitRecords):
        world.follow(bytes(sent))
    assert world.following.refused_answers == 1
    assert world.log.log_end_offset == 0


def test_a_follower_that_is_elected_leads_from_its_end_on(world: ReplicaWorld):
    waiting: list[ErrorCode] = []
    world.follow(leader_bytes(2, 2), high_watermark=2)
    world.partition.local.when_flushed(4, waiting.append)
    world.decide(leader=1, leader_epoch=4, isr=(1, 3))
    assert waiting == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert (world.partition.is_leader, world.partition.epoch_start_offset) == (True, 4)
    outcome = world.append()
    world.flush()
    world.fetch(3, 5, last_epoch=4)
    assert outcome == [ErrorCode.NONE]
    assert world.log.epochs.entries() == [(3, 0), (4, 4)]


@pytest.mark.parametrize(("high_watermark", "marks"), [(11, 1), (12, 0)], ids=["caught up", "not yet"])
def test_a_follower_that_has_caught_up_marks_a_hole_before_its_last_batch(
    world: ReplicaWorld, high_watermark: int, marks: int
):
    batch = leader_bytes(2)
    after_a_hole = prefix(9, parse_header(batch).batch_length, 3) + batch[PREFIX_BYTES:]
    world.follow(leader_bytes(2), high_watermark=high_watermark)
    world.follow(after_a_hole, high_watermark=high_watermark)
    assert sum(name.endswith(".hole") for name in world.log.files.names(world.log.path)) == marks


# Parting ways


def test_a_follower_drops_what_its_leader_does_not_have(world: ReplicaWorld):
    world.follow(leader_bytes(2, 2, 2, epochs=(1, 3)), high_watermark=2)
    world.flush()
    world.decide(leader=3, leader_epoch=5)
    asyncio.run(world.following.truncate(DivergingEpoch(1, 2)))
    assert (world.log.log_end_offset, world.log.epochs.latest, world.high_watermark) == (2, 1, 2)


def test_a_truncation_below_the_high_watermark_is_logged(world: ReplicaWorld, caplog: pytest.LogCaptureFixture):
    world.follow(leader_bytes(2, 2), high_watermark=4)
    world.flush()
    world.decide(leader=3, leader_epoch=5)
    asyncio.run(world.following.truncate(DivergingEpoch(3, 2)))
    assert world.high_watermark == 2
    assert "were committed" in caplog.text


def test_a_follower_elected_while_it_waits_for_the_disk_keeps_its_log(world: ReplicaWorld):
    world.follow(leader_bytes(2, 2))
    world.flush()
    world.cutting.before_cut = lambda: world.decide(leader=1, leader_epoch=4)
    with pytest.raises(ApiError) as refused:
        asyncio.run(world.following.truncate(DivergingEpoch(3, 2)))
    assert refused.value.code is ErrorCode.FENCED_LEADER_EPOCH
    assert world.log.log_end_offset == 4


def test_a_follower_that_is_deleted_while_it_waits_for_the_disk_is_left_alone(world: ReplicaWorld):
    world.follow(leader_bytes(2, 2))
    world.flush()
    world.cutting.before_cut = lambda: world.partition.close(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with pytest.raises(ApiError) as refused:
        asyncio.run(world.following.truncate(DivergingEpoch(3, 2)))
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.log.log_end_offset == 4


def test_a_follower_far_behind_starts_over_where_the_leaders_log_begins(world: ReplicaWorld):
    world.follow(leader_bytes(2, 2), high_watermark=4)
    world.flush()

    async def reset() -> None:
        task = asyncio.ensure_future(world.following.reset(100))
        await asyncio.sleep(0)
        assert not task.done()  # until its new names are on disk
        world.flush()
        await task

    asyncio.run(reset())
    assert (world.log.log_start_offset, world.log.log_end_offset, world.high_watermark) == (100, 100, 100)
    assert world.log.epochs.latest == -1


def test_a_divergence_before_the_log_start_starts_the_log_over(world: ReplicaWorld):
    world.follow(leader_bytes(2, 2, 2), high_watermark=6, log_start=4)
    world.flush()
    world.follow(b"", high_watermark=6, log_start=4)

    async def truncate() -> None:
        task = asyncio.ensure_future(world.following.truncate(DivergingEpoch(3, 2)))
        await asyncio.sleep(0)
        world.flush()
        await task

    asyncio.run(truncate())
    assert (world.log.log_start_offset, world.log.log_end_offset) == (2, 2)


def test_a_follower_lags_by_the_committed_records_that_it_lacks(world: ReplicaWorld):
    world.follow(leader_bytes(2, 3), high_watermark=9)
    assert world.following.lag == 4
    world.follow(b"", high_watermark=3)
    assert world.following.lag == 0


def test_a_follower_that_is_elected_follows_no_more(world: ReplicaWorld):
    world.follow(leader_bytes(2, 3), high_watermark=9)
    world.decide(leader=1, leader_epoch=4)
    assert world.partition.following is None


def test_a_log_that_cannot_be_cut_takes_the_replica_offline(world: ReplicaWorld):
    world.follow(leader_bytes(2, 2))
    world.flush()
    world.decide(leader=3, leader_epoch=5)

    def fail() -> None:
        raise StorageFault("the disk is gone")

    world.cutting.before_cut = fail
    with pytest.raises(ApiError) as refused:
        asyncio.run(world.following.truncate(DivergingEpoch(3, 2)))
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert str(world.partition.fault) == "the disk is gone"
    assert world.log.log_end_offset == 4
