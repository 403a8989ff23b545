"""A client of event streams."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.running_app import TIMEOUT_S

Event = tuple[str, dict[str, Any]]


class EventReader:
    def __init__(self, connection: http.client.HTTPConnection) -> None:
        connection.request("GET", "/events")
        self.response = connection.getresponse()

    def line(self) -> bytes:
        return self.response.readline()

    def next(self) -> Event:
        """The next event; heartbeats are passed over."""
        while (line := self.line()).startswith(b":") or line == b"\n":
            pass
        assert line.startswith(b"event: "), line
        data = self.line()
        return line[7:].decode().rstrip(), json.loads(data.removeprefix(b"data: "))

    def until(self, name: str) -> dict[str, Any]:
        """The document of the next event of that name."""
        while (event := self.next())[0] != name:
            pass
        return event[1]


@contextmanager
def reading_events(address: str) -> Iterator[EventReader]:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        yield EventReader(connection)
    finally:
        connection.close()
