"""Requests to leaders of partitions."""

from __future__ import annotations

import pytest

from flowstone.broker.handlers import describe_producers
from flowstone.cli.common.errors import CommandError
from flowstone.cli.txn import leaders as module
from flowstone.cli.txn.broker_link import BrokerLink
from flowstone.cli.txn.facts import OpenTransaction, PartitionProducer
from flowstone.cli.txn.leaders import NO_LEADER, PartitionLeaders
from flowstone.types import TopicPartition
from tests.unit.cli.txn.conftest import Plant

PRODUCER, OTHER = 92_001, 92_002


def test_partitions_that_are_too_much_for_one_request_are_asked_about_alone(
    link: BrokerLink, plant: Plant, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(PRODUCER).write(OTHER, b"x")
    leaders = PartitionLeaders(link)
    monkeypatch.setattr(describe_producers, "PRODUCERS_DESCRIBED_MAX", 2)
    partitions = {TopicPartition(topic, 1): 1, **leaders.partitions()}
    found = leaders.producers(partitions)
    assert set(found) == set(partitions)
    assert {each.producer_id for each in found[TopicPartition(topic, 0)]} == {PRODUCER, OTHER}
    monkeypatch.setattr(module, "PARTITIONS_AT_ONCE", 1)
    assert leaders.producers(partitions) == found


def test_a_partition_without_a_leader_is_left_out(link: BrokerLink, topic: str) -> None:
    assert PartitionLeaders(link).producers({TopicPartition(topic, 0): NO_LEADER}) == {}


def test_the_limit_of_transactions_is_that_of_the_broker(link: BrokerLink) -> None:
    assert PartitionLeaders(link).max_timeout_ms() == module.MAX_TIMEOUT_MS_DEFAULT


def test_a_marker_of_an_epoch_that_has_been_replaced_is_told(link: BrokerLink, plant: Plant, topic: str) -> None:
    plant(PRODUCER, epoch=5)
    where = TopicPartition(topic, 0)
    old = OpenTransaction(where, PartitionProducer(PRODUCER, 4, -1, 0, 0, 0), 0)
    leaders = PartitionLeaders(link)
    assert leaders.alive() == [1]
    with pytest.raises(CommandError, match=f"the transaction of producer {PRODUCER} in .* has been ended meanwhile"):
        leaders.write_abort_marker(old, 1)
