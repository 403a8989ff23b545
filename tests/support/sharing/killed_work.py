"""Work of a share group on a broker that is killed again and again: accepted stays accepted, and nothing is lost.

A broker is killed after a random time, or kills itself if it is started by a program that does.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from flowstone.wire import messages as m
from flowstone.wire.record_batch import Record, build_batch
from tests.support.broker_process import UP, BrokerDied, BrokerProcess
from tests.support.sharing.share_client import ACCEPT, RELEASE, Delivered, Sharer, begin, topic_id_of
from tests.support.wire_client import Client, Closed

TOPIC, GROUP_RESOURCE = "t", 32
KEYS = 7
# A broker that does not come to the call at which it kills itself is killed after so long.
LIFE_S_MAX = 1.5
BATCH = 20
SETTINGS = {"share.coordinator.state.topic.num.partitions": "1"}


class Work:
    def __init__(self, data: Path, seed: int, ordering: str) -> None:
        self.data, self.random, self.ordering = data, Random(seed), ordering
        self.produced = 0
        self.accepted: set[int] = set()
        self.asked: set[int] = set()  # accepted, maybe
        self.seen: set[int] = set()
        self.last_of_key: dict[int, int] = {}

    def run(self, lives: Sequence[Sequence[str]]) -> None:
        """Have a broker killed in each life, which has the program that it is started with; then take all records."""
        with self.broker(UP) as broker, Client(broker.address) as client:
            self.begin(client)
        for program in lives:
            with suppress(Closed, OSError, BrokerDied):
                self.live(program)
        with self.broker(UP) as broker, Client(broker.address) as client:
            self.topic_id = topic_id_of(client, TOPIC)
            self.drain(Sharer(client, self.topic_id))

    def live(self, program: Sequence[str]) -> None:
        with self.broker(program) as broker, Client(broker.address) as client:
            killer = threading.Timer(self.random.uniform(0.02, 0.5) if program is UP else LIFE_S_MAX, broker.kill)
            killer.start()
            try:
                self.topic_id = topic_id_of(client, TOPIC)
                self.work(client)
            finally:
                killer.cancel()
                killer.join()

    def broker(self, program: Sequence[str]) -> BrokerProcess:
        return BrokerProcess(self.data, settings=SETTINGS, program=program)

    def begin(self, client: Client) -> None:
        client.create_topic(TOPIC)
        config = m.IncrementalAlterConfigsRequestConfig(name="share.ordering", config_operation=0, value=self.ordering)
        resource = m.IncrementalAlterConfigsRequestResource(
            resource_type=GROUP_RESOURCE, resource_name="g", configs=[config]
        )
        client.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
        begin(client, topic_id_of(client, TOPIC), start_offset=0)

    def work(self, client: Client) -> None:
        self.produced = client.end_offset(TOPIC)  # a batch may be there whose response was lost
        members = [Sharer(client, self.topic_id, name) for name in ("a", "b")]
        while True:
            offset = self.produced
            records = [Record(each, 1, b"%d" % ((offset + each) % KEYS), b"v") for each in range(BATCH)]
            answer = client.produce(TOPIC, build_batch(records))
            self.produced = answer.base_offset + BATCH
            for member in members:
                self.handle(member, member.take(wait_ms=20, max_records=15))

    def handle(self, member: Sharer, got: list[Delivered], *, always: bool = False) -> None:
        acks = []
        for each in got:
            assert each.offset not in self.accepted, f"{each.offset} was accepted and is delivered again"
            assert each.delivery_count <= 5
            self.seen.add(each.offset)
            if self.ordering == "key":
                key = each.offset % KEYS
                lower = range(each.offset - KEYS, -1, -KEYS)
                assert all(one in self.accepted | self.asked for one in lower), f"key {key}: {each.offset} is too early"
            keep = always or each.delivery_count > 2 or self.random.random() < 0.8
            acks.append((each.offset, each.offset, ACCEPT if keep else RELEASE))
        if acks:
            accepted = {first for first, _, kind in acks if kind == ACCEPT}
            self.asked |= accepted
            answer = member.acknowledge(*acks)
            ((partition,),) = (topic.partitions for topic in answer.responses)
            assert (answer.error_code, partition.error_code) == (0, 0)
            self.accepted |= accepted

    def drain(self, member: Sharer) -> None:
        end = member.client.end_offset(TOPIC)
        empty = 0
        while empty < 3:
            got = member.take(wait_ms=200)
            empty = 0 if got else empty + 1
            self.handle(member, got, always=True)
        assert self.seen >= set(range(self.produced)), "a record was never delivered"
        lost = set(range(end)) - self.accepted - self.asked
        assert not lost, f"not accepted, and not delivered any more: {sorted(lost)[:10]}"
