"""ShareFetch and ShareAcknowledge over a socket: delivery, acknowledgement, and what a restart leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from tests.support.running_app import RunningApp
from tests.support.sharing.share_client import RELEASE, Sharer, begin, topic_id_of
from tests.support.wire_client import Client, batch_of

TOPIC = "t"


@contextmanager
def sharing(app: RunningApp, member: str = "m") -> Iterator[Sharer]:
    with app.client() as client:
        yield Sharer(client, topic_id_of(client, TOPIC), member)


def filled(client: Client, *values: bytes, start_offset: int = 0) -> None:
    client.create_topic(TOPIC)
    begin(client, topic_id_of(client, TOPIC), start_offset=start_offset)
    if values:
        client.produce(TOPIC, batch_of(*values))


def test_records_are_delivered_accepted_and_gone_after_a_restart(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as app, app.client() as client:
        filled(client, b"a", b"b", b"c")
        with sharing(app) as member:
            got = member.take()
            assert [(each.offset, each.delivery_count, each.value) for each in got] == [
                (0, 1, b"a"),
                (1, 1, b"b"),
                (2, 1, b"c"),
            ]
            member.accept((0, 0), (2, 2))
    with RunningApp(str(tmp_path)) as app, sharing(app) as member:
        got = member.take()
        assert [(each.offset, each.delivery_count, each.value) for each in got] == [(1, 2, b"b")]


def test_a_fetch_waits_for_records_and_gets_them_at_once(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as app, app.client() as client:
        filled(client)
        with sharing(app) as member:
            assert member.take(wait_ms=0) == []
            later = Timer(0.2, lambda: client.produce(TOPIC, batch_of(b"x")))
            later.start()
            assert [each.value for each in member.take(wait_ms=8000)] == [b"x"]
            later.join()


def test_a_released_record_is_delivered_again_with_a_higher_count(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as app, app.client() as client:
        filled(client, b"a", b"b")
        with sharing(app) as member:
            assert len(member.take()) == 2
            got = member.take((0, 0, RELEASE), (1, 1, 1))
            assert [(each.offset, each.delivery_count) for each in got] == [(0, 2)]


def test_a_lost_connection_releases_what_its_member_has(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as app, app.client() as client:
        filled(client, b"a")
        with sharing(app, "first") as first:
            assert len(first.take()) == 1
            with sharing(app, "second") as second:
                assert second.take(wait_ms=0) == []
                first.client.close()
                assert [each.delivery_count for each in second.take(wait_ms=5000)] == [2]
