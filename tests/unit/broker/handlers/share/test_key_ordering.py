"""`share.ordering=key` and delays over a socket, with an ordinary member of a share group."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowstone.wire import messages as m
from flowstone.wire.record_batch import Record, build_batch
from tests.support.running_app import RunningApp
from tests.support.sharing.share_client import ACCEPT, RELEASE, Sharer, begin, topic_id_of
from tests.support.wire_client import Client

TOPIC = "t"
GROUP_RESOURCE = 32


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path)) as app:
        yield app


def begun(client: Client, **settings: str) -> Sharer:
    client.create_topic(TOPIC)
    configs = [
        m.IncrementalAlterConfigsRequestConfig(name=name.replace("_", "."), config_operation=0, value=value)
        for name, value in settings.items()
    ]
    resource = m.IncrementalAlterConfigsRequestResource(
        resource_type=GROUP_RESOURCE, resource_name="g", configs=configs
    )
    answer = client.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message
    topic_id = topic_id_of(client, TOPIC)
    begin(client, topic_id, start_offset=0)
    return Sharer(client, topic_id)


def produce(client: Client, *keys: bytes | None, deliver_after_ms: int | None = None, **options: int) -> None:
    now_ms = int(time.time() * 1000)
    headers = () if deliver_after_ms is None else (("flowstone.deliver-after", b"%d" % deliver_after_ms),)
    records = [Record(index, now_ms, key, b"v", headers) for index, key in enumerate(keys)]
    assert client.produce(TOPIC, build_batch(records, **options)).error_code == 0


def offsets(member: Sharer, *acks: tuple[int, int, int], wait_ms: int = 500) -> list[int]:
    return [each.offset for each in member.take(*acks, wait_ms=wait_ms)]


def test_a_key_has_one_record_in_delivery_and_others_go_on(app: RunningApp) -> None:
    with app.client() as client:
        member = begun(client, share_ordering="key")
        produce(client, b"a", b"b", b"a", b"c", None, None)
        produce(client, b"b", b"a", b"")
        assert offsets(member) == [0, 1, 3, 4, 5, 8]
        assert offsets(member, (0, 0, ACCEPT), (3, 3, ACCEPT)) == [2]
        assert offsets(member, (1, 1, RELEASE)) == [1]
        assert offsets(member, (1, 1, ACCEPT), (2, 2, ACCEPT)) == [6, 7]


def test_key_order_survives_a_restart(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as app, app.client() as client:
        member = begun(client, share_ordering="key")
        produce(client, b"a", b"a", b"b")
        assert offsets(member) == [0, 2]
        member.accept((2, 2))
    with RunningApp(str(tmp_path)) as app, app.client() as client:
        member = Sharer(client, topic_id_of(client, TOPIC))
        assert [(each.offset, each.delivery_count) for each in member.take()] == [(0, 2)]
        assert offsets(member, (0, 0, ACCEPT)) == [1]


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_released_record_comes_back_after_its_backoff(app: RunningApp, ordering: str) -> None:
    with app.client() as client:
        member = begun(client, share_ordering=ordering, share_redelivery_backoff_ms="400")
        produce(client, b"a")
        assert offsets(member) == [0]
        released_s = time.monotonic()
        assert offsets(member, (0, 0, RELEASE), wait_ms=0) == []
        assert offsets(member, wait_ms=8000) == [0]
        assert 0.35 < time.monotonic() - released_s < 2


@pytest.mark.parametrize("codec", [0, 3])
@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_delayed_record_is_delivered_when_its_time_has_come(app: RunningApp, ordering: str, codec: int) -> None:
    with app.client() as client:
        member = begun(client, share_ordering=ordering)
        due_s = time.time() + 1.0
        produce(client, b"a", b"b", deliver_after_ms=int(due_s * 1000), codec=codec)
        produce(client, b"c")
        assert offsets(member) == [2]
        assert offsets(member, wait_ms=8000) == [0, 1]
        assert -0.001 <= time.time() - due_s < 0.5
