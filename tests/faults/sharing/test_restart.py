"""A broker with 100 share partitions that is killed delivers from all of them again two seconds after it is started.

What was accepted before the kill does not come again.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flowstone.wire import messages as m
from flowstone.wire.record_batch import Record, build_batch
from tests.support.broker_process import BrokerProcess
from tests.support.sharing.share_client import ACCEPT, GROUP, Sharer, begin, topic_id_of
from tests.support.wire_client import Client, Closed

pytestmark = pytest.mark.measures_time

TOPIC, PARTITIONS = "t", 100
RECORDS, ACCEPTED = 20, 7  # of each partition
RESTART_S_MAX = 2.0
ATTEMPT_PAUSE_S = 0.02


class Member:
    """A member that fetches from all partitions in one session, and notes the offsets that it gets."""

    def __init__(self, client: Client, name: str) -> None:
        self._sharer = Sharer(client, topic_id_of(client, TOPIC), name)
        self.first: dict[int, int] = {}  # by partition, the first offset that was delivered

    def fetch(self, wait_ms: int) -> None:
        sharer = self._sharer
        places = [m.ShareFetchRequestPartition(partition_index=each) for each in range(PARTITIONS)]
        request = m.ShareFetchRequest(
            group_id=GROUP,
            member_id=sharer.member,
            share_session_epoch=sharer.epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=PARTITIONS * RECORDS,
            batch_size=RECORDS,
            topics=[m.ShareFetchRequestTopic(topic_id=sharer.topic_id, partitions=places if not sharer.epoch else [])],
        )
        answer = sharer._next(sharer.client.ask(2, request))
        assert answer.error_code == 0, (answer.error_code, answer.error_message)
        for found in (each for topic in answer.responses for each in topic.partitions):
            for each in found.acquired_records:
                self.first.setdefault(found.partition_index, each.first_offset)

    def fetch_all(self) -> None:
        while len(self.first) < PARTITIONS:
            self.fetch(wait_ms=100)


def prepare(client: Client) -> None:
    client.create_topic(TOPIC, partitions=PARTITIONS)
    batch = build_batch([Record(each, 1, b"k", b"v" * 100) for each in range(RECORDS)])
    for partition in range(PARTITIONS):
        assert client.produce(TOPIC, batch, partition=partition).error_code == 0
    topic_id = topic_id_of(client, TOPIC)
    begin(client, topic_id, partitions=PARTITIONS, start_offset=0)
    member = Member(client, "before")
    member.fetch_all()
    for partition in range(PARTITIONS):
        answer = member._sharer.acknowledge((0, ACCEPTED - 1, ACCEPT), partition=partition)
        assert not [each for topic in answer.responses for each in topic.partitions if each.error_code], answer


def restarted_s(data: Path) -> float:
    """Start the broker, fetch from all partitions, and return how long both took together."""
    started_s = time.monotonic()
    with BrokerProcess(data) as broker, Client(broker.address) as client:
        member = Member(client, "after")
        while True:
            try:
                member.fetch_all()
                break
            except (Closed, AssertionError):
                assert time.monotonic() - started_s < 10 * RESTART_S_MAX
                time.sleep(ATTEMPT_PAUSE_S)
        took_s = time.monotonic() - started_s
        assert set(member.first.values()) == {ACCEPTED}
        return took_s


@pytest.mark.timeout(180)
def test_a_killed_broker_delivers_from_a_hundred_share_partitions_after_two_seconds(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with Client(broker.address) as client:
            prepare(client)
        broker.kill()
    took_s = min(restarted_s(tmp_path) for _ in range(3))
    print(f"a restart with {PARTITIONS} share partitions takes {took_s:.2f} s")
    assert took_s <= RESTART_S_MAX
