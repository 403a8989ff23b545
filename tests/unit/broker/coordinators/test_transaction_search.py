"""The transactional id of a producer id is found at whichever broker coordinates it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import confluent_kafka as ck
import pytest

import flowstone
from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.broker.coordinators.transaction_search import FoundTransaction, search
from flowstone.client.errors import Disconnected
from flowstone.errors import ApiError, ErrorCode
from flowstone.promise import Promise
from tests.support.running_app import get

TIMEOUT_S = 20


def test_the_id_of_a_producer_is_found_at_another_broker() -> None:
    """Each of two brokers explains a record that it leads, and coordinates only some of the transactional ids."""
    with flowstone.Cluster(2, http=True, settings={"transaction.state.log.num.partitions": "4"}) as cluster:
        cluster.create_topic("orders", partitions=2, replication_factor=2)
        producers = []
        for number in range(4):
            name = f"tx-{number}"
            producer = ck.Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "log_level": 0})
            producer.init_transactions(TIMEOUT_S)
            producer.begin_transaction()
            for partition in (0, 1):
                producer.produce("orders", b"v", partition=partition)
            assert producer.flush(TIMEOUT_S) == 0
            producers.append(producer)
            leaders = producer.list_topics("__transaction_state", TIMEOUT_S).topics["__transaction_state"].partitions
            for broker in cluster.brokers.values():
                told = [(each["transactional_id"], each["is_hanging"]) for each in explanations(broker)]
                assert told
                assert set(told) == {(name, False)}
            producer.abort_transaction(TIMEOUT_S)
        assert len({each.leader for each in leaders.values()}) == 2


def explanations(broker: Any) -> list[dict[str, Any]]:
    """What holds back the last record of each partition that the broker has."""
    found = []
    for partition in (0, 1):
        for offset in range(100):
            status, body = get(
                broker.http.removeprefix("http://"), f"/explain?topic=orders&partition={partition}&offset={offset}"
            )
            if status != 200:
                break
            if (holder := json.loads(body)["transaction"]["held_by"]) is not None:
                found.append(holder)
    return found


class Peers(BrokerPeers):
    """Other brokers that do not answer."""

    def __init__(self) -> None:
        pass

    async def ask(self, *_asked: Any) -> Any:
        raise Disconnected("gone")


def kept(outcome: Any) -> Promise[Any]:
    token: Promise[Any] = Promise()
    if isinstance(outcome, ApiError):
        token.set_exception(outcome)
    else:
        token.set_result(outcome)
    return token


def test_a_coordinator_that_cannot_be_asked_is_no_proof_that_nobody_knows_the_id() -> None:
    async def ask(*outcomes: Any, others: tuple[int, ...] = ()) -> FoundTransaction | None:
        return await search([kept(each) for each in outcomes], Peers(), others, 7)

    nothing = type("Listed", (), {"transactions": ()})()
    assert asyncio.run(ask(nothing)) is None
    for outcomes, others in (((ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), nothing), ()), ((nothing,), (2,))):
        with pytest.raises(ApiError) as refused:
            asyncio.run(ask(*outcomes, others=others))
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("state", "is_open"), [("Ongoing", True), ("PrepareAbort", True), ("CompleteCommit", False), ("Empty", False)]
)
def test_only_what_its_coordinator_will_end_is_open(state: str, is_open: bool) -> None:
    assert FoundTransaction("tx", state).is_open is is_open
