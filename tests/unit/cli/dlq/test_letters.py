"""The headers of a record that is written back."""

from __future__ import annotations

import pytest

from flowstone.cli.dlq.letters import Content, Headers, Letter
from flowstone.types import TopicPartition


def letter(content: Content) -> Letter:
    return Letter(TopicPartition("dlq.t", 0), 5, 1, content, (TopicPartition("t", 2), 7), "g", 3, None)


def test_each_retry_adds_its_history_and_counts() -> None:
    once = letter(Content(b"k", None, (("h", None),))).retried(Content(b"k", None, (("h", None),)))
    twice = letter(once).retried(once)
    history = (
        ("flowstone.retried-from", b"dlq.t/0@5"),
        ("flowstone.retried-origin", b"t/2@7"),
        ("flowstone.retried-group", b"g"),
    )
    assert once == (b"k", None, (("h", None), *history, ("flowstone.retried-count", b"1")))
    assert twice.headers == (("h", None), *history, *history, ("flowstone.retried-count", b"2"))


@pytest.mark.parametrize("value", [None, b"", b"-3", b"\xff", b"9" * 5000, b"1_0"])
def test_a_count_that_is_none_begins_anew(value: bytes | None) -> None:
    headers: Headers = (("flowstone.retried-count", value),)
    content = Content(None, b"v", headers)
    assert dict(letter(content).retried(content).headers)["flowstone.retried-count"] == b"1"


def test_only_a_letter_without_anything_of_its_record_counts_as_not_copied() -> None:
    assert not letter(Content(None, None, ())).has_content
    assert letter(Content(b"k", None, ())).has_content
    assert letter(Content(None, None, (("h", None),))).has_content
