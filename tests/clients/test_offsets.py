"""Where reading begins: any offset, either end, a time; and what the ends are."""

from __future__ import annotations

import time

import pytest

from flowstone.errors import ErrorCode
from tests.clients.driver import Driver, Refused, Sent

# A fixed past: far enough back that the broker's clock cannot matter, for it limits only times ahead of it.
START_MS = 1_700_000_000_000
STEP_MS = 1000


def fill(client: Driver, topic: str) -> None:
    """Ten records, a second apart, two to a batch."""
    client.create_topic(topic, 1)
    for first in range(0, 10, 2):
        client.produce(
            topic,
            [Sent(b"%d" % number, timestamp_ms=START_MS + number * STEP_MS) for number in (first, first + 1)],
        )


@pytest.fixture(scope="module")
def filled_topics() -> dict[str, str]:
    return {}


@pytest.fixture
def filled(client: Driver, filled_topics: dict[str, str], topic_name: str) -> str:
    """A topic that this client has filled, for all tests that only read it."""
    if client.name not in filled_topics:
        fill(client, topic_name)
        filled_topics[client.name] = topic_name
    return filled_topics[client.name]


def test_a_consumer_starts_at_the_offset_it_names(client: Driver, filled: str) -> None:
    # 5 is in the middle of a batch: the broker sends the whole of it and the client leaves out what comes before.
    assert [record.value for record in client.consume(filled, 0, 5, 3)] == [b"5", b"6", b"7"]


def test_a_consumer_at_the_end_stands_after_the_last_record(client: Driver, filled: str) -> None:
    assert client.position_at_end(filled, 0) == 10


def test_an_offset_beyond_the_end_is_out_of_range(client: Driver, filled: str) -> None:
    with pytest.raises(Refused) as refused:
        client.consume(filled, 0, 1000, 1)

    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_watermarks_are_the_first_offset_and_the_next_one(client: Driver, filled: str) -> None:
    assert client.watermarks(filled, 0) == (0, 10)


def test_an_empty_partition_begins_and_ends_at_zero(client: Driver, topic: str) -> None:
    assert client.watermarks(topic, 0) == (0, 0)


@pytest.mark.parametrize(
    ("timestamp_ms", "offset"),
    [
        pytest.param(0, 0, id="before-the-first"),
        pytest.param(START_MS + 3 * STEP_MS, 3, id="exact"),
        pytest.param(START_MS + 3 * STEP_MS + 1, 4, id="between"),
        pytest.param(START_MS + 9 * STEP_MS, 9, id="the-last"),
        pytest.param(START_MS + 9 * STEP_MS + 1, None, id="after-the-last"),
    ],
)
def test_a_time_leads_to_the_first_record_not_older(
    client: Driver, filled: str, timestamp_ms: int, offset: int | None
) -> None:
    assert client.offset_for_time(filled, 0, timestamp_ms) == offset


def test_a_record_keeps_the_time_its_producer_gave_it(client: Driver, filled: str) -> None:
    received = client.consume(filled, 0, 0, 2)

    assert [record.timestamp_ms for record in received] == [START_MS, START_MS + STEP_MS]


def test_the_broker_gives_the_time_where_the_topic_says_so(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 1, {"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)

    client.produce(topic_name, [Sent(b"value", timestamp_ms=START_MS)])

    (received,) = client.consume_from_beginning(topic_name, 0, 1)
    assert before_ms <= received.timestamp_ms <= int(time.time() * 1000)


def test_a_time_too_far_ahead_is_refused(client: Driver, topic: str) -> None:
    tomorrow_ms = int(time.time() * 1000) + 24 * 3600 * 1000

    with pytest.raises(Refused) as refused:
        client.produce(topic, [Sent(b"value", timestamp_ms=tomorrow_ms)])

    assert refused.value.code == ErrorCode.INVALID_TIMESTAMP


def test_deleted_records_are_gone_and_the_offsets_go_on(client: Driver, topic_name: str) -> None:
    fill(client, topic_name)

    assert client.delete_records(topic_name, 0, 4) == 4

    assert client.watermarks(topic_name, 0) == (4, 10)
    assert [record.offset for record in client.consume_from_beginning(topic_name, 0, 6)] == [4, 5, 6, 7, 8, 9]
    assert client.produce(topic_name, [Sent(b"next")]) == [(0, 10)]


def test_records_beyond_the_end_cannot_be_deleted(client: Driver, filled: str) -> None:
    with pytest.raises(Refused) as refused:
        client.delete_records(filled, 0, 11)

    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
