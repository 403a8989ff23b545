"""Dead letter queues of share groups over a socket: copies, headers, and the agreement of both sides."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowstone.broker.sharing.letters import dead_letters
from flowstone.broker.sharing.reads.keyed_reads import read_spans
from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import (
    HEADER_BYTES,
    Record,
    build_batch,
    decode_records,
    encode_header,
    parse_header,
)
from tests.support.running_app import RunningApp
from tests.support.sharing.share_client import ACCEPT, REJECT, RELEASE, Sharer, begin, topic_id_of
from tests.support.wire_client import Client, whole_batches

TOPIC, QUEUE = "t", "dlq.t"
GROUP_RESOURCE = 32
NAME, COPY = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path), group_share_delivery_count_limit="2") as app:
        yield app


def set_group(client: Client, settings: dict[str, str]) -> int:
    configs = [
        m.IncrementalAlterConfigsRequestConfig(name=name, config_operation=0, value=value)
        for name, value in settings.items()
    ]
    resource = m.IncrementalAlterConfigsRequestResource(
        resource_type=GROUP_RESOURCE, resource_name="g", configs=configs
    )
    answer = client.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    return int(answer.responses[0].error_code)


def begun(client: Client, settings: dict[str, str], validation: str = "records", **queue: str) -> Sharer:
    client.create_topic(TOPIC, flowstone_validation=validation)
    client.create_topic(QUEUE, **queue)
    assert set_group(client, settings) == 0
    begin(client, topic_id_of(client, TOPIC), start_offset=0)
    records = [Record(each, 1, b"k%d" % each, b"v%d" % each, (("h", b"x"),)) for each in range(5)]
    client.produce(TOPIC, build_batch(records))
    return Sharer(client, topic_id_of(client, TOPIC))


def letters(client: Client, count: int) -> list[Record]:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        data = bytes(client.fetch(QUEUE, 0).records)
        found = [record for batch in whole_batches(data) for record in decode_records(batch)]
        if len(found) >= count:
            return found
        time.sleep(0.02)
    raise AssertionError(f"fewer than {count} dead letters")


def is_drained(member: Sharer) -> bool:
    return member.take(wait_ms=300) == []


def test_rejected_and_failing_records_are_copied_with_their_history(app: RunningApp) -> None:
    with app.client() as client:
        member = begun(client, {NAME: QUEUE, COPY: "true"}, errors_deadletterqueue_group_enable="true")
        assert len(member.take()) == 5
        got = member.take((0, 0, ACCEPT), (1, 1, REJECT), (2, 2, ACCEPT), (3, 3, RELEASE), (4, 4, ACCEPT))
        assert [(each.offset, each.delivery_count) for each in got] == [(3, 2)]
        member.acknowledge((3, 3, RELEASE))
        found = letters(client, 2)
        assert [(record.key, record.value) for record in found] == [(b"k1", b"v1"), (b"k3", b"v3")]
        headers = dict(found[1].headers)
        assert headers.pop("__dlq.errors.message").startswith(b"The record was delivered too often")
        counts = app.app.services.sharing.counts
        assert (counts.deliveries, counts.redeliveries, counts.dead_letters) == (6, 1, 2)
        assert headers == {
            "h": b"x",
            "__dlq.errors.topic": b"t",
            "__dlq.errors.partition": b"0",
            "__dlq.errors.offset": b"3",
            "__dlq.errors.group": b"g",
            "__dlq.errors.delivery.count": b"2",
        }
        assert is_drained(member)


def test_only_headers_are_copied_unless_the_group_says_so(app: RunningApp) -> None:
    with app.client() as client:
        member = begun(client, {NAME: QUEUE}, errors_deadletterqueue_group_enable="true")
        member.take()
        member.acknowledge((0, 4, REJECT))
        found = letters(client, 5)
        assert {(record.key, record.value) for record in found} == {(None, None)}
        assert [dict(record.headers)["__dlq.errors.offset"] for record in found] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_topic_that_does_not_allow_it_gets_no_copies_and_the_records_are_archived(app: RunningApp) -> None:
    with app.client() as client:
        member = begun(client, {NAME: QUEUE})
        member.take()
        member.acknowledge((0, 4, REJECT))
        assert is_drained(member)
        assert bytes(client.fetch(QUEUE, 0).records) == b""


def test_a_mistake_while_records_are_copied_loses_none_of_them(
    app: RunningApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = dead_letters.DeadLetterQueues.plan

    async def fail_once(*arguments: Any) -> Any:
        monkeypatch.setattr(dead_letters.DeadLetterQueues, "plan", plan)
        raise RuntimeError("a mistake")

    monkeypatch.setattr(dead_letters.DeadLetterQueues, "plan", fail_once)
    with app.client() as client:
        member = begun(client, {NAME: QUEUE}, errors_deadletterqueue_group_enable="true")
        member.take()
        member.acknowledge((0, 4, REJECT))
        until = time.monotonic() + 5
        while "copying to the dead letter queue failed" not in caplog.text and time.monotonic() < until:
            time.sleep(0.02)
        assert "share partition g:" in caplog.text
        assert not member.take()  # the state is loaded again, which says that they were given up
        assert len(letters(client, 5)) == 5
        assert is_drained(member)


@pytest.mark.parametrize("name", ["letters", "__consumer_offsets", "__dlq.x"])
def test_a_queue_has_the_brokers_prefix(app: RunningApp, name: str) -> None:
    with app.client() as client:
        assert set_group(client, {NAME: name}) == ErrorCode.INVALID_CONFIG


def test_a_batch_that_cannot_be_decoded_gets_letters_of_headers_and_is_archived(app: RunningApp) -> None:
    batch = build_batch([Record(each, 1, None, b"v%d" % each) for each in range(2)], codec=Codec.GZIP)
    damaged = bytes((0x7F,)) * (len(batch) - HEADER_BYTES)
    batch = encode_header(parse_header(batch), damaged) + damaged
    with app.client() as client:
        member = begun(client, {NAME: QUEUE, COPY: "true"}, "header", errors_deadletterqueue_group_enable="true")
        member.acknowledge((0, len(member.take()) - 1, ACCEPT))
        assert client.produce(TOPIC, batch).error_code == ErrorCode.NONE
        (acquired,) = member.fetch().responses[0].partitions[0].acquired_records
        assert (acquired.first_offset, acquired.last_offset) == (5, 6)
        member.acknowledge((5, 6, REJECT))
        assert [(record.key, record.value) for record in letters(client, 2)] == [(None, None)] * 2
        assert is_drained(member)


def test_large_records_are_read_a_few_times_each(app: RunningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    value, read_bytes = bytes(300_000), 0

    def counting(*arguments: Any) -> Any:
        nonlocal read_bytes
        found = read_spans(*arguments)
        read_bytes += len(found[0])
        return found

    monkeypatch.setattr(dead_letters, "read_spans", counting)
    with app.client() as client:
        member = begun(client, {NAME: QUEUE, COPY: "true"}, errors_deadletterqueue_group_enable="true")
        for _ in range(20):
            client.produce(TOPIC, build_batch([Record(0, 1, None, value)]))
        got = []
        while len(got) < 25:
            got += member.take()
        member.acknowledge((0, 24, REJECT))
        until = time.monotonic() + 10
        while client.end_offset(QUEUE) < 25 and time.monotonic() < until:
            time.sleep(0.05)
        assert client.end_offset(QUEUE) == 25
    assert read_bytes < 5 * 20 * len(value)
