"""A graceful stop over real sockets: what was asked is answered before the connections close."""

from pathlib import Path

from tests.support.running_app import RunningApp
from tests.support.wire_client import fetch_request, frame

LONG_WAIT_MS = 30_000


def test_a_stop_answers_what_waits_although_an_earlier_client_has_left(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path / "data")) as running:
        with running.client() as earlier:
            earlier.create_topic("orders")
        while running.call(lambda: running.app._server.connection_count):
            pass
        later = running.client()
        later.send(frame(11, fetch_request("orders", 0, max_wait_ms=LONG_WAIT_MS)))
        while not running.call(lambda: len(running.app.services.waiting.fetches)):
            pass
    with later:
        assert later.receive()
