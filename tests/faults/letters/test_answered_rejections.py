"""A rejection that was answered is never delivered again, wherever the broker is killed afterwards, and has one letter.

The record waits for its letter then: that it was given up is durable before the answer, its letter maybe not yet.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from flowstone.wire.record_batch import Record
from tests.support.broker_process import UP
from tests.support.sharing.share_client import ACCEPT, REJECT, Sharer, topic_id_of
from tests.support.wire_client import Client, Closed

from .sabotaged_letters import forget_what_was_given_up
from .test_letter_kills import RECORDS, TOPIC, killed_at, letters_so_far, prepare, start

REJECTED = (0, 5)
# The write that stores the first letter's plan: the one before it says that its record was given up.
PLAN_WRITE = 2
# More writes than a life has in which two records are rejected.
WRITES_MAX = 20
LETTERS_TIMEOUT_S = 5.0


class Rejections:
    """A member that rejects records one by one, over several lives of the broker."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.answered: set[int] = set()
        self.again: set[int] = set()  # delivered after the answer to their rejection

    def live(self, program: list[str]) -> bool:
        """Work on a broker until it is killed, or there is nothing left; return whether it was killed."""
        try:
            with start(self._data, program) as broker, Client(broker.address) as client:
                self._work(client)
                return False
        except (Closed, OSError):
            return True

    def _work(self, client: Client) -> None:
        member = Sharer(client, topic_id_of(client, TOPIC))
        quiet = 0
        while quiet < 3:
            got = [each.offset for each in member.take(wait_ms=150)]
            quiet = 0 if got else quiet + 1
            self.again |= self.answered.intersection(got)
            for offset in got:
                kind = REJECT if offset in REJECTED else ACCEPT
                answer = member.acknowledge((offset, offset, kind))
                assert not [part for topic in answer.responses for part in topic.partitions if part.error_code]
                if kind == REJECT:
                    self.answered.add(offset)

    def letters(self) -> list[Record]:
        with start(self._data) as broker, Client(broker.address) as client:
            Sharer(client, topic_id_of(client, TOPIC)).take(wait_ms=100)  # so that the state is loaded
            return letters_so_far(client, len(REJECTED), LETTERS_TIMEOUT_S)


@pytest.mark.timeout(300)
def test_an_answered_rejection_is_not_delivered_again_whenever_the_broker_is_killed(tmp_path: Path) -> None:
    for number in itertools.count(1):
        assert number < WRITES_MAX
        data = tmp_path / str(number)
        prepare(data)
        rejections = Rejections(data)
        was_killed = rejections.live([*killed_at(number, "before")])
        assert not rejections.live([*UP])
        assert not rejections.again, f"killed before write {number}: delivered after its rejection was answered"
        offsets = [int(dict(record.headers)["__dlq.errors.offset"] or b"") for record in rejections.letters()]
        assert Counter(offsets) == Counter(REJECTED), f"killed before write {number}: letters of {offsets}"
        if not was_killed:
            break
    assert number > RECORDS  # each acknowledgement is a write of its own, so that there were many


def test_a_leader_that_forgets_what_was_given_up_is_found(tmp_path: Path) -> None:
    bug = forget_what_was_given_up.__name__
    prepare(tmp_path)
    rejections = Rejections(tmp_path)
    assert rejections.live([*killed_at(PLAN_WRITE, "before", bug)])
    assert not rejections.live([*killed_at(0, "never", bug)])
    assert rejections.again
