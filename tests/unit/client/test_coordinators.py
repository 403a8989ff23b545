"""Finding the coordinator of a group or of a transactional id, and asking it again after it has moved."""

from __future__ import annotations

import pytest

from flowstone.client import Cluster, GaveUp, Refused
from flowstone.client.coordinators import CoordinatorKind, Coordinators, check
from flowstone.client.errors import Disconnected, LeaderMoved, Retriable
from flowstone.client.retry_deadline import RetryDeadline
from flowstone.embedded import Broker
from flowstone.errors import ErrorCode
from flowstone.wire.messages import InitProducerIdRequest, InitProducerIdResponse

REQUEST = InitProducerIdRequest(transactional_id="a", transaction_timeout_ms=60_000)


def ask(coordinators: Coordinators) -> InitProducerIdResponse:
    """Ask until the coordinator has loaded its state."""
    deadline = RetryDeadline(10)
    while True:
        try:
            answer = coordinators.ask("a", REQUEST, InitProducerIdResponse, deadline)
            check(answer.error_code, "a")
            return answer
        except Retriable as error:
            coordinators.retry_after("a", error, deadline)


@pytest.mark.parametrize("error", [LeaderMoved("moved"), Disconnected("gone"), Retriable("busy")])
def test_a_coordinator_is_found_once_and_again_after_it_moved(
    broker: Broker, cluster: Cluster, error: Retriable
) -> None:
    coordinators = Coordinators(cluster.brokers, CoordinatorKind.TRANSACTION)
    ask(coordinators)
    with broker.fault("FindCoordinator", delay_ms=1) as fault:
        ask(coordinators)
        assert fault.hits == 0
        coordinators.retry_after("a", error, RetryDeadline(10))
        ask(coordinators)
        assert fault.hits == (0 if type(error) is Retriable else 1)


def test_retries_end_at_the_deadline(cluster: Cluster) -> None:
    coordinators = Coordinators(cluster.brokers, CoordinatorKind.GROUP)
    with pytest.raises(GaveUp, match="it is busy; gave up after trying for 0 s"):
        coordinators.retry_after("g", Retriable("it is busy"), RetryDeadline(0))


def test_an_error_code_is_raised_with_what_it_concerns() -> None:
    check(ErrorCode.NONE, "group g")
    with pytest.raises(Refused, match="group g: that is no name for a group") as refused:
        check(ErrorCode.INVALID_GROUP_ID, "group g")
    assert refused.value.code == ErrorCode.INVALID_GROUP_ID
