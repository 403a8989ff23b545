"""Additions to a transaction that wait until the one before is complete, and how long they may."""

from __future__ import annotations

import pytest

from flowstone.broker.coordinators import waiting_additions
from flowstone.broker.coordinators.waiting_additions import WAIT_MS_MAX, WaitingAdditions
from flowstone.coordinator.runtime import Token
from flowstone.coordinator.transactions.messages import AddPartitionsRequest, AddPartitionsResponse
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import SimulatedClock
from flowstone.promise import Promise
from flowstone.types import TopicPartition

ENDING = ErrorCode.CONCURRENT_TRANSACTIONS


class Shard:
    """A shard whose answers the test gives: to each request in order, now or later."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.additions = WaitingAdditions(self.clock, self._ask)
        self.asked: list[str] = []
        self.tokens: list[Token] = []
        self.at_once: ErrorCode | None = None

    def _ask(self, request: AddPartitionsRequest) -> Token:
        token: Token = Promise()
        self.asked.append(request.transactional_id)
        self.tokens.append(token)
        if self.at_once is not None:
            token.set_result(AddPartitionsResponse(self.at_once))
        return token

    def add(self, transactional_id: str = "x") -> Token:
        request = AddPartitionsRequest(transactional_id, 1, 0, frozenset([TopicPartition("t", 0)]))
        return self.additions.add(request)

    def answer(self, code: ErrorCode) -> None:
        """Answer the newest request."""
        self.tokens[-1].set_result(AddPartitionsResponse(code))


@pytest.fixture
def shard() -> Shard:
    return Shard()


def code_of(token: Token) -> ErrorCode | None:
    return token.result().error_code if token.done() else None


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.PRODUCER_FENCED])
def test_other_answers_do_not_wait(shard: Shard, code: ErrorCode) -> None:
    shard.at_once = code
    assert code_of(shard.add()) is code
    shard.at_once = None
    later = shard.add()
    assert code_of(later) is None
    shard.answer(code)
    assert code_of(later) is code


def test_a_request_is_asked_again_once_the_transaction_before_is_complete(shard: Shard) -> None:
    shard.at_once = ENDING
    waiting = shard.add()
    assert code_of(waiting) is None
    shard.additions.ended("another")
    assert shard.asked == ["x"]
    shard.at_once = ErrorCode.NONE
    shard.additions.ended("x")
    assert (shard.asked, code_of(waiting)) == (["x", "x"], ErrorCode.NONE)


def test_a_transaction_that_completes_before_the_refusal_is_committed_is_not_waited_for(shard: Shard) -> None:
    waiting = shard.add()
    shard.additions.ended("x")
    assert shard.asked == ["x"], "it may be added already"
    shard.answer(ENDING)
    assert shard.asked == ["x", "x"]
    shard.answer(ErrorCode.NONE)
    assert code_of(waiting) is ErrorCode.NONE


def test_a_request_that_has_waited_for_too_long_is_told_so(shard: Shard) -> None:
    shard.at_once = ENDING
    waiting = shard.add()
    shard.clock.advance(WAIT_MS_MAX / 2000)
    shard.additions.ended("x")  # and the next transaction is ended by now
    shard.clock.advance(WAIT_MS_MAX / 1000 - 0.001)
    assert code_of(waiting) is ENDING
    shard.additions.ended("x")
    assert shard.asked == ["x", "x"], "who was answered is not asked for again"


def test_a_shard_that_is_gone_ends_the_wait(shard: Shard) -> None:
    shard.at_once = ENDING
    waiting = shard.add()
    shard.at_once = None
    shard.additions.ended("x")
    shard.tokens[-1].set_exception(ApiError(ErrorCode.NOT_COORDINATOR))
    with pytest.raises(ApiError, match="NOT_COORDINATOR"):
        waiting.result()


def test_a_request_that_nobody_waits_for_is_not_asked_again(shard: Shard) -> None:
    shard.at_once = ENDING
    shard.add().cancel()
    shard.additions.ended("x")
    assert shard.asked == ["x"]


def test_more_requests_than_the_limit_are_answered_at_once(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_additions, "WAITING_MAX", 2)
    shard.at_once = ENDING
    waiting = [shard.add(name) for name in "xyz"]
    assert [code_of(each) for each in waiting] == [None, None, ENDING]
    shard.clock.advance(WAIT_MS_MAX / 1000)
    assert code_of(shard.add("z")) is None, "those that were answered are not counted"
