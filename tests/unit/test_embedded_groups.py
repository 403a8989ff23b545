"""What a program that embeds a broker sees of consumer groups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from flowstone.embedded import Broker, NotInProcessMode
from tests.support.polling_member import SESSION_S, PollingMember

PARTITIONS = 4


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("orders", partitions=PARTITIONS)
        yield broker


def test_a_broker_without_groups_has_none(broker: Broker) -> None:
    assert broker.groups() == {}


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_group_is_waited_for_until_all_its_partitions_are_shared_out(broker: Broker, assignor: str) -> None:
    first = PollingMember(broker, "readers", "orders", partition_assignment_strategy=assignor)
    assert len(broker.wait_for_group("readers").members) == 1
    second = PollingMember(broker, "readers", "orders", partition_assignment_strategy=assignor)
    group = broker.wait_for_group("readers", members=2)
    assert [len(member.partitions) for member in group.members] == [PARTITIONS // 2, PARTITIONS // 2]
    first.leave()
    (left,) = broker.wait_for_group("readers", members=1).members
    assert len(left.partitions) == PARTITIONS
    second.leave()


def test_a_group_that_does_not_come_is_not_waited_for_for_ever(broker: Broker) -> None:
    with pytest.raises(TimeoutError, match=r"^group 'nobody' is not stable after 0\.1 s: there is no such group$"):
        broker.wait_for_group("nobody", timeout=0.1)


def test_a_group_that_is_too_small_says_so(broker: Broker) -> None:
    member = PollingMember(broker, "readers", "orders")
    broker.wait_for_group("readers")
    expected = r"^group 'readers' is not stable with 2 members after 0\.1 s: it is Stable, with 1 members$"
    with pytest.raises(TimeoutError, match=expected):
        broker.wait_for_group("readers", members=2, timeout=0.1)
    member.leave()


def test_lag_goes_to_zero_as_a_group_reads(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(100):
        producer.produce("orders", str(number))
    assert producer.flush(10) == 0
    member = PollingMember(broker, "readers", "orders")
    broker.wait_for_group("readers")
    while sum(each.committed_offset or 0 for each in broker.groups()["readers"].partitions) < 100:
        broker.wait_for("__consumer_offsets", len(broker.records("__consumer_offsets")) + 1)
    group = broker.groups()["readers"]
    assert (group.lag, group.lag_seconds, group.headroom_seconds) == (0, 0, None)
    member.leave()


def test_a_member_whose_session_ends_gives_its_partitions_to_the_others(broker: Broker) -> None:
    # A static member does not say that it leaves: the broker hears of it only when its session is over.
    lost = PollingMember(broker, "readers", "orders", session_timeout_ms=SESSION_S * 500, group_instance_id="lost")
    stays = PollingMember(broker, "readers", "orders")
    broker.wait_for_group("readers", members=2)
    lost.leave()
    assert len(broker.groups()["readers"].members) == 2
    broker.clock.advance(seconds=SESSION_S / 2 + 1)
    group = broker.wait_for_group("readers", members=1)
    assert [len(member.partitions) for member in group.members] == [PARTITIONS]
    assert "lost" in group.rebalance_reason
    stays.leave()


def test_a_broker_in_another_process_shows_no_groups() -> None:
    with Broker(mode="process") as broker:
        with pytest.raises(NotInProcessMode):
            broker.groups()
        with pytest.raises(NotInProcessMode):
            broker.wait_for_group("readers")
