"""The page `/events` of a running broker, read by an HTTP client while Kafka clients change things."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flowstone.broker.http.pages import event_feed
from flowstone.wire.messages import DeleteTopicsRequest
from tests.support.group_commits import commit
from tests.support.running_app import RunningApp
from tests.support.wire_client import batch_of
from tests.unit.broker.http.event_reader import EventReader, reading_events


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path), http_listener="127.0.0.1:0", offsets_topic_num_partitions="1") as running:
        yield running


@pytest.fixture
def events(broker: RunningApp) -> Iterator[EventReader]:
    assert broker.app.http_address is not None
    with reading_events(broker.app.http_address) as reader:
        yield reader


def test_the_first_event_says_what_the_later_ones_add_to(broker: RunningApp, events: EventReader) -> None:
    name, document = events.next()
    assert name == "state"
    assert (document["broker"], document["cluster_id"]) == (1, broker.app._logs.identity.cluster_id)
    assert document["metadata_version"] == broker.app.services.metadata.image.version


def test_topics_are_told_when_they_come_and_go(broker: RunningApp, events: EventReader) -> None:
    with broker.client() as client:
        client.create_topic("orders", partitions=3)
        assert events.until("topic_created") == {"topic": "orders", "partitions": 3}
        client.ask(1, DeleteTopicsRequest(topic_names=["orders"], timeout_ms=1000))
        assert events.until("topic_deleted") == {"topic": "orders"}


def test_a_group_is_told_when_its_lag_changes_and_not_otherwise(broker: RunningApp, events: EventReader) -> None:
    events.until("state")
    with broker.client() as client:
        client.create_topic("orders")
        client.produce("orders", batch_of(b"1", b"2", b"3"))
        commit(client, "billing", "orders", 1)
        broker.run(broker.app.survey.look())
        (group,) = events.until("groups")["changed"]
        assert (group["group"], group["lag"]) == ("billing", 2)
        broker.run(broker.app.survey.look())
        commit(client, "billing", "orders", 3)
        broker.run(broker.app.survey.look())
        (group,) = events.until("groups")["changed"]
        assert (group["group"], group["lag"]) == ("billing", 0)


def test_a_change_of_very_many_records_is_a_reset(
    broker: RunningApp, events: EventReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "RECORDS_PER_CHANGE_MAX", 0)
    events.until("state")
    with broker.client() as client:
        client.create_topic("orders")
    assert "reason" in events.until("reset")


def test_a_broker_that_stops_ends_the_stream(tmp_path: Path) -> None:
    with ExitStack() as stack:
        with RunningApp(str(tmp_path), http_listener="127.0.0.1:0") as broker:
            assert broker.app.http_address is not None
            events = stack.enter_context(reading_events(broker.app.http_address))
            events.until("state")
        assert events.next() == ("end", {"reason": "the broker stops"})


def test_groups_beyond_the_limit_of_one_event_are_counted(
    broker: RunningApp, events: EventReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "GROUPS_PER_EVENT_MAX", 1)
    events.until("state")
    with broker.client() as client:
        client.create_topic("orders")
        for group in ("a", "b", "c"):
            commit(client, group, "orders", 0)
    broker.run(broker.app.survey.look())
    told = events.until("groups")
    assert ([each["group"] for each in told["changed"]], told["gone"], told["left_out"]) == (["a"], [], 2)
