"""The sweep over a server's connections, with a clock that the test moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowstone.broker.requests.context import Handler, RequestContext, Services
from flowstone.broker.requests.session import ClientSession
from flowstone.ports.clock import VirtualClock
from flowstone.wire.messages import ListOffsetsRequest, MetadataRequest
from tests.support.running_app import RunningApp
from tests.support.wire_client import frame

IDLE_MS, MUTE_MS = 1_000, 20_000
VERSION = 5


def throttle_metadata(api_name: str, handler: Handler) -> Handler:
    def handle(services: Services, context: RequestContext, request: Any) -> Any:
        if api_name == "Metadata":
            context.session.throttle(services.clock.monotonic(), MUTE_MS)
        return handler(services, context, request)

    return handle


def test_a_muted_client_counts_neither_as_silent_nor_as_late(tmp_path: Path) -> None:
    clock = VirtualClock()
    with (
        RunningApp(
            str(tmp_path),
            clock=clock,
            intercept=throttle_metadata,
            connections_max_idle_ms=str(IDLE_MS),
            connection_frame_timeout_ms=str(IDLE_MS),
        ) as app,
        app.client() as client,
    ):
        client.ask(VERSION, MetadataRequest(topics=[]))
        client.send(frame(VERSION, ListOffsetsRequest(replica_id=-1, topics=[])))
        app.run(clock.advance(MUTE_MS - 2 * IDLE_MS))
        (session,) = sessions(app)
        assert session.throttle_ms(clock.monotonic()) > 0, "the mute is not over yet"
        app.run(clock.advance(3 * IDLE_MS))
        assert client.receive()


def test_a_client_that_was_muted_is_closed_when_it_is_silent_afterwards(tmp_path: Path) -> None:
    clock = VirtualClock()
    with (
        RunningApp(
            str(tmp_path), clock=clock, intercept=throttle_metadata, connections_max_idle_ms=str(IDLE_MS)
        ) as app,
        app.client() as client,
    ):
        client.ask(VERSION, MetadataRequest(topics=[]))
        app.run(clock.advance(MUTE_MS))
        assert sessions(app)
        app.run(clock.advance(4 * IDLE_MS))
        client.closed_after_s()


def sessions(app: RunningApp) -> list[ClientSession]:
    return app.call(lambda: [connection.session for connection in app.app._server._connections])
