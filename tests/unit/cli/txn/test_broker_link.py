"""Retries of requests of `flowstone txn`."""

from __future__ import annotations

import pytest

from flowstone.cli.common.errors import CommandError
from flowstone.cli.txn import broker_link
from flowstone.cli.txn.broker_link import BrokerLink, chunks
from flowstone.client import Refused, UnknownTopic
from flowstone.client.errors import LeaderMoved
from flowstone.errors import ErrorCode


def test_a_passing_failure_is_tried_again(link: BrokerLink) -> None:
    asked: list[float] = []

    def ask(left_s: float) -> str:
        asked.append(left_s)
        if len(asked) < 3:
            raise LeaderMoved("moved")
        return "answer"

    assert link.retry(ask) == "answer"
    assert len(asked) == 3
    assert asked == sorted(asked, reverse=True)


def test_a_failure_that_does_not_pass_ends_in_one_sentence(link: BrokerLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_link, "REQUEST_TIMEOUT_S", 0.1)

    def ask(_left_s: float) -> None:
        raise LeaderMoved("orders/0 has moved")

    with pytest.raises(CommandError, match=r"no answer from .* in time \(orders/0 has moved\)"):
        link.retry(ask)


def test_a_topic_that_stays_unknown_is_no_missing_answer(link: BrokerLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_link, "REQUEST_TIMEOUT_S", 0.1)

    def ask(_left_s: float) -> None:
        raise UnknownTopic("there is no topic x")

    with pytest.raises(CommandError, match=r"^there is no topic x$"):
        link.retry(ask)


def test_a_refusal_is_not_tried_again(link: BrokerLink) -> None:
    asked = []

    def ask(left_s: float) -> None:
        asked.append(left_s)
        raise Refused(ErrorCode.INVALID_REQUEST, "no")

    with pytest.raises(Refused):
        link.retry(ask)
    assert len(asked) == 1


def test_nothing_that_listens_is_told_at_once() -> None:
    with pytest.raises(CommandError, match=r"cannot reach a broker at 127\.0\.0\.1:1"):
        BrokerLink("127.0.0.1:1")


def test_chunks_are_whole_but_for_the_last() -> None:
    assert list(chunks(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(chunks([], 2)) == []
