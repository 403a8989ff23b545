"""A small schema registry over HTTP with Confluent's API, which can be told to fail.

For what no real registry does when asked: errors, delays, GUIDs. Schemas are not checked.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Status and body of an answer instead of the right one; a status of 0 closes the connection.
Failure = tuple[int, str]


@dataclass
class SchemaRegistry:
    url: str = ""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    fail: Callable[[str], Failure | None] = lambda path: None
    schemas: list[dict[str, Any]] = field(default_factory=list)  # by id, from 1
    subjects: dict[str, list[int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, subject: str, document: dict[str, Any]) -> int:
        stored = {each: document[each] for each in ("schema", "schemaType", "references") if each in document}
        with self.lock:
            if stored not in self.schemas:
                self.schemas.append(stored)
            id = self.schemas.index(stored) + 1
            versions = self.subjects.setdefault(subject, [])
            if id not in versions:
                versions.append(id)
            return id

    def guid(self, id: int) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, str(id)))

    def shown(self, id: int) -> dict[str, Any]:
        return {**self.schemas[id - 1], "id": id, "guid": self.guid(id)}

    def get(self, parts: list[str]) -> dict[str, Any] | list[str] | None:
        match parts:
            case ["subjects"]:
                return list(self.subjects)
            case ["schemas", "ids", id] if 0 < int(id) <= len(self.schemas):
                return self.shown(int(id))
            case ["schemas", "guids", guid]:
                found = [n for n in range(1, len(self.schemas) + 1) if self.guid(n) == guid]
                return self.shown(found[0]) if found else None
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                ids = self.subjects[subject]
                return {**self.shown(ids[-1 if version == "latest" else int(version) - 1]), "subject": subject}
        return None


@contextmanager
def running() -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(registry))
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(registry: SchemaRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(lambda path: registry.get(path))

        def do_POST(self) -> None:
            document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(lambda path: registry.shown(registry.add(path[1], document)))

        def _answer(self, find: Callable[[list[str]], Any]) -> None:
            path = self.path.partition("?")[0]
            registry.requests.append((self.command, path, dict(self.headers)))
            failure = registry.fail(path)
            if failure is not None and failure[0] == 0:
                self.close_connection = True
                return
            found = find(path.strip("/").split("/")) if failure is None else None
            if failure is not None:
                status, body = failure
            elif found is None:
                status, body = 404, json.dumps({"error_code": 40403, "message": "not found"})
            else:
                status, body = 200, json.dumps(found)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    return Handler
