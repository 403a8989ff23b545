"""A share session of as many partitions as it may have does not hold the event loop, whatever it does.

`make test` opens one of a thousand partitions, FLOWSTONE_HOSTILE_LONG=1 one of ten thousand.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from flowstone.broker.sharing.share_sessions import SESSION_PARTITIONS_MAX
from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client

from .loop_watch import LoopWatch, Stretch
from .stretches.search import (
    IS_LONG,
    STRETCH_S_MAX,
    TIMEOUT_S,
    TRIES,
    Searched,
    collector_of_a_broker,
    searched,
)

TOPIC = "shared"
COUNT = SESSION_PARTITIONS_MAX if IS_LONG else 1_000
GROUP, VERSION = "sharing", 2
LOADED_S_MAX = 60.0


@pytest.fixture(scope="module", autouse=True)
def collector() -> Iterator[None]:
    with collector_of_a_broker():
        yield


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    data = str(tmp_path_factory.mktemp("shared"))
    with RunningApp(data, max_partitions="60000") as running:
        with Client(running.app.addresses["PLAINTEXT"], TIMEOUT_S) as client:
            assert client.create_topic(TOPIC, COUNT) == 0
        yield running


class Member:
    """A member of a share group that asks for every partition."""

    def __init__(self, client: Client, member_id: str) -> None:
        self.client, self.member_id, self.epoch = client, member_id, 0
        topics = [m.MetadataRequestTopic(name=TOPIC)]
        self.topic_id = client.ask(12, m.MetadataRequest(topics=topics)).topics[0].topic_id

    def fetch(self, **fields: Any) -> Any:
        limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}
        return self._ask(m.ShareFetchRequest, forgotten_topics_data=[], **limits | fields)

    def acknowledge(self, topics: list[Any]) -> Any:
        return self._ask(m.ShareAcknowledgeRequest, topics=topics)

    def _ask(self, request: Any, **fields: Any) -> Any:
        response = self.client.ask(
            VERSION,
            request(group_id=GROUP, member_id=self.member_id, share_session_epoch=self.epoch, **fields),
        )
        assert response.error_code == ErrorCode.NONE
        self.epoch += 1
        return response

    def fetched_topics(self, *, accepts: bool = False) -> list[m.ShareFetchRequestTopic]:
        batches = (
            [m.ShareFetchRequestAcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[1])]
            if accepts
            else []
        )
        partitions = [
            m.ShareFetchRequestPartition(partition_index=each, acknowledgement_batches=batches) for each in range(COUNT)
        ]
        return [m.ShareFetchRequestTopic(topic_id=self.topic_id, partitions=partitions)]

    def acknowledged_topics(self) -> list[m.ShareAcknowledgeRequestTopic]:
        batches = [m.ShareAcknowledgeRequestAcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[1])]
        partitions = [
            m.ShareAcknowledgeRequestPartition(partition_index=each, acknowledgement_batches=batches)
            for each in range(COUNT)
        ]
        return [m.ShareAcknowledgeRequestTopic(topic_id=self.topic_id, partitions=partitions)]


def session(client: Client, member_id: str) -> Iterator[str]:
    """The steps of a session, each named before it is done."""
    member = Member(client, member_id)
    yield "opening the session"
    member.fetch(topics=member.fetched_topics())
    yield "waiting while the state of all partitions is loaded"
    member.fetch(topics=[], max_wait_ms=1000)
    yield "acknowledging with a fetch"
    member.fetch(topics=member.fetched_topics(accepts=True))
    yield "acknowledging"
    member.acknowledge(member.acknowledged_topics())
    yield "closing the session"
    member.epoch = -1
    member.fetch(topics=[])


def test_a_share_session_of_many_partitions_does_not_hold_the_loop(app: RunningApp) -> None:
    stretches: dict[str, list[Stretch]] = {}
    for number in range(TRIES):
        with Client(app.app.addresses["PLAINTEXT"], TIMEOUT_S) as client:
            steps = session(client, f"m{number}")
            step = next(steps)
            while step:
                with LoopWatch(app) as watch:
                    following = next(steps, "")
                stretches.setdefault(step, []).append(watch.longest)
                step = following
        until_s = time.monotonic() + LOADED_S_MAX
        while app.call(lambda: len(app.app.services.sharing.sessions)):
            assert time.monotonic() < until_s
        if max(each[-1].held_s for each in stretches.values()) < STRETCH_S_MAX:
            break
    results = [Searched(f"share session: {step}", each) for step, each in stretches.items()]
    searched.extend(results)
    assert not [str(each) for each in results if each.shortest.held_s >= STRETCH_S_MAX]
