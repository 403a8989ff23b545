"""A partition that leads others: what it takes, commits and tells its followers."""

from __future__ import annotations

import pytest

from flowstone.config import TopicConfig
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.replication.readers import Reader
from flowstone.replication.state import DivergingEpoch
from tests.support.partitions import IN_PAGE_CACHE, ON_DISK, a_batch, a_partition
from tests.unit.replication.replicas import LEASE_S, ReplicaWorld, Watcher


@pytest.fixture
def world() -> ReplicaWorld:
    return ReplicaWorld()


def refusal(world: ReplicaWorld, *arguments: int, **more: int) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        world.fetch(*arguments, **more)  # type: ignore[arg-type]
    return refused.value.code


# Committing


def test_records_are_committed_once_all_in_sync_replicas_have_them_on_disk(world: ReplicaWorld):
    outcome = world.append(3)
    world.flush()
    world.fetch(2, 3)
    assert outcome == []
    world.fetch(3, 3)
    assert outcome == [ErrorCode.NONE]
    assert world.high_watermark == 3


def test_the_leaders_own_flush_may_come_last(world: ReplicaWorld):
    outcome = world.append()
    world.fetch(2, 1)
    world.fetch(3, 1)
    assert outcome == []
    world.flush()
    assert outcome == [ErrorCode.NONE]


def test_without_flushing_the_leaders_end_counts_as_soon_as_it_is_written():
    world = ReplicaWorld(IN_PAGE_CACHE)
    outcome = world.append()
    world.fetch(2, 1)
    world.fetch(3, 1)
    assert outcome == [ErrorCode.NONE]


def test_consumers_see_what_is_committed_and_no_more(world: ReplicaWorld):
    world.append(2)
    world.append(2)
    world.flush()
    world.fetch(2, 2)
    world.fetch(3, 4)
    seen = world.partition.local.read_as(Reader.UNCOMMITTED, 0, 1 << 20, at_least_one=True)
    assert seen is not None
    assert seen.read() == world.fetch(2, 0)[: len(a_batch(2))]
    assert world.partition.local.read_as(Reader.UNCOMMITTED, 2, 1 << 20, at_least_one=True) is None


def test_a_high_watermark_without_a_known_position_is_looked_up_by_the_reader(world: ReplicaWorld):
    for _ in range(3):
        world.append(2)
    world.flush()
    world.partition.local._positions.forget()
    world.fetch(2, 4)
    world.fetch(3, 6)
    seen = world.partition.local.read_as(Reader.UNCOMMITTED, 0, 1 << 20, at_least_one=True)
    assert seen is not None
    assert len(seen) == 2 * len(a_batch(2))


def test_consumers_hear_of_commits_and_followers_of_appends(world: ReplicaWorld):
    consumer, follower = Watcher(), Watcher()
    world.partition.local.watchers(Reader.UNCOMMITTED).watch(consumer)
    world.partition.local.watchers(Reader.REPLICA).watch(follower)
    world.append()
    assert (consumer.size_bytes, follower.size_bytes) == (0, len(a_batch()))
    world.flush()
    world.fetch(2, 1)
    world.fetch(3, 1)
    assert (consumer.size_bytes, follower.size_bytes) == (len(a_batch()), len(a_batch()))
    world.partition.local.watchers(Reader.REPLICA).unwatch(follower)
    world.append()
    assert follower.size_bytes == len(a_batch())


# In-sync replicas


def test_too_few_in_sync_replicas_refuse_acks_all_and_nothing_else():
    world = ReplicaWorld(TopicConfig(min_insync_replicas=2), isr=(1,))
    with pytest.raises(ApiError) as refused:
        world.append()
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.log.log_end_offset == 0
    assert world.partition.append(a_batch(), 1).base_offset == 0


def test_a_minimum_beyond_the_number_of_replicas_means_all_of_them():
    world = ReplicaWorld(TopicConfig(min_insync_replicas=2), replicas=(1,), isr=(1,))
    outcome = world.append()
    world.flush()
    assert outcome == [ErrorCode.NONE]


def test_a_waiting_produce_is_answered_retriably_when_the_isr_shrinks_below_the_minimum():
    world = ReplicaWorld(TopicConfig(min_insync_replicas=2))
    outcome = world.append()
    world.decide(isr=(1, 2))
    assert outcome == []
    world.decide(isr=(1,))
    assert outcome == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    world.flush()
    assert world.high_watermark == 0


def test_a_minimum_that_is_raised_counts_at_once():
    world = ReplicaWorld(isr=(1, 2))
    outcome = world.append()
    world.log.configure(TopicConfig(min_insync_replicas=3))
    world.partition.configured()
    assert outcome == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]


def test_a_lagging_follower_is_proposed_to_leave_and_nothing_is_committed_before_that_is_decided(world: ReplicaWorld):
    outcome = world.append()
    world.flush()
    world.wait(31)
    world.fetch(2, 1)
    world.leading.check_in_sync()
    assert world.proposals == [((1, -1), (2, 7))]
    assert outcome == []
    world.decide(isr=(1, 2))
    assert outcome == [ErrorCode.NONE]


def test_a_follower_that_has_caught_up_is_proposed_with_its_fetch():
    world = ReplicaWorld(isr=(1, 2))
    world.fetch(3, 0, broker_epoch=9)
    assert world.proposals == [((1, -1), (2, -1), (3, 9))]


def test_a_proposal_that_failed_may_be_made_again():
    world = ReplicaWorld(isr=(1, 2))
    world.fetch(3, 0)
    world.leading.isr_change_failed()
    world.leading.check_in_sync()
    assert len(world.proposals) == 2


def test_the_end_of_a_proposal_that_a_decision_has_overtaken_says_nothing_of_the_next():
    world = ReplicaWorld(isr=(1, 2))
    proposed_at = world.partition.partition_epoch
    world.fetch(3, 0)
    world.decide(isr=(1,))
    world.leading.check_in_sync()
    world.leading.isr_change_failed(proposed_at)
    world.partition.append(a_batch(), 1)
    world.flush()
    world.wait(2)
    world.fetch(3, 0)
    assert world.high_watermark == 0  # broker 3 may be in the ISR any moment
    assert len(world.proposals) == 2


def test_the_same_decision_again_leaves_a_proposal_under_way():
    world = ReplicaWorld(isr=(1, 2))
    world.fetch(3, 0)
    world.partition.update(world.state, 1)
    world.leading.check_in_sync()
    assert len(world.proposals) == 1


def test_without_a_lease_nothing_is_proposed():
    world = ReplicaWorld(isr=(1, 2))
    world.clock.advance(LEASE_S)
    world.fetch(3, 0)
    assert world.proposals == []


# The lease


def test_without_a_lease_nothing_is_taken_but_reads_go_on(world: ReplicaWorld):
    world.append()
    world.flush()
    world.fetch(2, 1)
    world.fetch(3, 1)
    world.clock.advance(LEASE_S)
    with pytest.raises(ApiError) as refused:
        world.partition.append(a_batch(), 1)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.partition.local.read_as(Reader.UNCOMMITTED, 0, 1000, at_least_one=True) is not None


def test_without_a_lease_nothing_is_acknowledged_until_it_holds_again(world: ReplicaWorld):
    outcome = world.append()
    world.clock.advance(LEASE_S)
    world.flush()
    world.fetch(2, 1)
    world.fetch(3, 1)
    assert outcome == []
    world.lease.extend(world.clock.monotonic() + LEASE_S)
    assert outcome == [ErrorCode.NONE]


def test_a_single_replica_needs_a_lease_too_where_there_are_other_brokers():
    world = ReplicaWorld(replicas=(1,), isr=(1,))
    outcome = world.append()
    world.clock.advance(LEASE_S)
    world.flush()
    assert outcome == []
    world.wait(0)
    assert outcome == [ErrorCode.NONE]


# Followers' fetches


def test_a_follower_reads_what_is_not_committed(world: ReplicaWorld):
    world.append(2)
    records = world.fetch(2, 0)
    assert isinstance(records, bytes)
    assert len(records) == len(a_batch(2))
    assert world.high_watermark == 0


@pytest.mark.parametrize(("epoch", "code"), [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_a_follower_of_another_leader_epoch_is_refused(world: ReplicaWorld, epoch: int, code: ErrorCode):
    assert refusal(world, 2, 0, epoch=epoch) is code


def test_a_broker_without_a_replica_should_try_again(world: ReplicaWorld):
    assert refusal(world, 9, 0) is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_follower_serves_no_followers():
    world = ReplicaWorld(leader=2)
    assert refusal(world, 3, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_whose_log_is_another_hears_where_the_leaders_ends_and_moves_nothing(world: ReplicaWorld):
    world.append(3)
    world.flush()
    assert world.fetch(2, 5, last_epoch=2) == DivergingEpoch(2, 0)
    assert world.fetch(2, 5, last_epoch=3) == DivergingEpoch(3, 3)
    world.fetch(3, 3, last_epoch=3)
    assert world.high_watermark == 0


def test_a_follower_below_the_log_start_is_out_of_range(world: ReplicaWorld):
    world.append(3)
    world.flush()
    for replica in (2, 3):
        world.fetch(replica, 3)
    world.log.advance_log_start(3)
    assert refusal(world, 2, 1, last_epoch=3) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_an_offline_leader_serves_no_follower(world: ReplicaWorld):
    world.partition.local.fail(StorageFault("the disk is gone"))
    assert refusal(world, 2, 0) is ErrorCode.KAFKA_STORAGE_ERROR


# New epochs


def test_a_leader_that_is_replaced_answers_all_waiting_requests(world: ReplicaWorld):
    consumer, follower = Watcher(), Watcher()
    world.partition.local.watchers(Reader.UNCOMMITTED).watch(consumer)
    world.partition.local.watchers(Reader.REPLICA).watch(follower)
    outcome = world.append()
    world.decide(leader=2, leader_epoch=4)
    assert outcome == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert (consumer.interruptions, follower.interruptions) == (1, 1)
    with pytest.raises(ApiError) as refused:
        world.partition.append(a_batch(), 1)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_records_appended_in_an_earlier_epoch_may_be_lost(world: ReplicaWorld):
    world.append()
    world.flush()
    world.decide(leader=2, leader_epoch=4)
    world.decide(leader=1, leader_epoch=5, isr=(1,))
    outcome: list[ErrorCode] = []
    world.partition.when_committed(1, outcome.append, leader_epoch=3)
    assert outcome == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_positions_of_an_earlier_epoch_do_not_count(world: ReplicaWorld):
    world.append(2)
    world.fetch(2, 2)
    world.fetch(3, 2)
    world.decide(leader_epoch=4)
    world.flush()
    assert world.high_watermark == 0
    world.fetch(2, 2)
    world.fetch(3, 2)
    assert world.high_watermark == 2


def test_a_new_leader_knows_when_its_high_watermark_is_current(world: ReplicaWorld):
    world.append(2)
    world.flush()
    world.decide(leader_epoch=4)
    assert not world.partition.is_high_watermark_current
    world.fetch(2, 2)
    world.fetch(3, 2)
    assert world.partition.is_high_watermark_current


def test_a_leader_that_gets_its_first_followers_keeps_what_is_committed():
    world = ReplicaWorld(replicas=(1,), isr=(1,))
    world.append(2)
    world.flush()
    assert world.high_watermark == 2
    world.decide(replicas=(1, 2))
    world.fetch(2, 2)
    assert world.proposals == [((1, -1), (2, 7))]


def test_the_high_watermark_starts_where_it_was_stored():
    world = ReplicaWorld()
    world.append(2)
    world.append(2)
    world.flush()
    world.log.stored_high_watermark = 2
    again = type(world.partition)(world.log, world.flusher, world.state, 1, world.partition._services)
    assert again.high_watermark.offset == 2
    seen = again.local.read_as(Reader.UNCOMMITTED, 0, 1000, at_least_one=True)
    assert seen is not None
    assert len(seen) == len(a_batch(2))


def test_a_partition_that_was_closed_takes_nothing_more():
    partition, _ = a_partition(ON_DISK)
    partition.close(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with pytest.raises(ApiError) as refused:
        partition.append(a_batch(), 1)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert partition.log.log_end_offset == 0
