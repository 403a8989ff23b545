"""The audit log: one line of JSON for each denial, login, and change of access rules, users, quotas or tokens.

`services.audit(event, **fields)` adds a line; it never waits and never fails. Worker threads write the lines in order
to `audit.jsonl` in the directory of `audit.log.directory`. A full file is renamed to `audit.jsonl.1`, an earlier one to
`.2`, and so on; the oldest is removed. The file is made with the first line.

Lines that clients can cause in any number (denials, failed logins) are limited to `LIMITED_LINES_PER_S_MAX`, and all
lines to what `LINES_QUEUED_MAX` can hold while the disk does not keep up: a line then says how many are missing.
Callers put no secrets into fields.
"""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from flowstone.broker.requests.permissions import Permission
from flowstone.broker.requests.session import ClientSession

if TYPE_CHECKING:
    from flowstone.broker.loop.workers import Workers
    from flowstone.config import BrokerConfig
    from flowstone.ports.clock import Clock
    from flowstone.ports.files import Files

logger = logging.getLogger(__name__)

FILE_NAME = "audit.jsonl"
OFF = "off"
DENIED, LOGIN_FAILED = "authorization.denied", "login.failed"
LIMITED_EVENTS = frozenset((DENIED, LOGIN_FAILED))
LIMITED_LINES_PER_S_MAX = 1_000
LINES_QUEUED_MAX = 20_000
REPORT_MISSING_AFTER_S = 1.0
# Longer values, which clients choose, are cut.
VALUE_CHARACTERS_MAX = 512


class AuditLog:
    """Writes audit lines; an audit log without files writes nothing."""

    def __init__(self, clock: Clock, workers: Workers, writer: AuditFiles | None) -> None:
        self._clock, self._workers, self._writer = clock, workers, writer
        self._lines: list[bytes] = []
        self._under_way: list[bytes] = []  # of the worker that has not begun yet
        self._writing: asyncio.Future[None] | None = None
        self._missing = 0
        self._window_ends_s, self._left = 0.0, LIMITED_LINES_PER_S_MAX

    def __call__(self, event: str, **fields: Any) -> None:
        """Add a line with the time, the event and these fields."""
        if self._writer is None:
            return
        if (event in LIMITED_EVENTS and self._is_over_limit()) or len(self._lines) >= LINES_QUEUED_MAX:
            self._missing += 1
            if self._missing == 1:
                self._clock.call_later(REPORT_MISSING_AFTER_S, self._add_missing)
            return
        self._add_missing()
        self._add(event, fields)

    def denied(self, session: ClientSession, permission: Permission, name: str) -> None:
        """Add a line about a client that lacks a permission."""
        if self._writer is None:
            return
        self(
            DENIED,
            **client_fields(session),
            operation=permission.operation.name,
            resource_type=permission.resource_type.name,
            resource=name,
        )

    def close(self) -> None:
        """Write the lines that are left: the broker stops, and its workers have ended."""
        self._under_way += self._lines
        self._lines = []
        if self._writer is not None:
            if self._under_way:
                self._write(self._writer)
            self._writer.close()

    def _is_over_limit(self) -> bool:
        now = self._clock.monotonic()
        if now >= self._window_ends_s:
            self._window_ends_s, self._left = now + 1, LIMITED_LINES_PER_S_MAX
        self._left -= 1
        return self._left < 0

    def _add_missing(self) -> None:
        missing, self._missing = self._missing, 0
        if missing:
            self._add("audit.lines_missing", {"count": missing})

    def _add(self, event: str, fields: dict[str, Any]) -> None:
        time = datetime.fromtimestamp(self._clock.time_ms() / 1000, UTC)
        values = {"time": time.isoformat(timespec="milliseconds"), "event": event, **fields}
        self._lines.append(
            json.dumps({name: _cut(value) for name, value in values.items()}, default=str).encode() + b"\n"
        )
        if self._writing is None and self._writer is not None:
            self._start(self._writer)

    def _start(self, writer: AuditFiles) -> None:
        """Let a worker write the collected lines; lines that are added meanwhile are written next."""
        self._under_way += self._lines
        self._lines = []
        self._writing = self._workers.read(lambda: self._write(writer))
        self._writing.add_done_callback(self._written)

    def _write(self, writer: AuditFiles) -> None:
        lines, self._under_way = self._under_way, []
        try:
            writer.append(lines)
        except OSError as error:  # the broker serves on: a full disk must not lock out its administrators
            logger.error(
                "%d audit lines cannot be written (%s): check that %s has free space", len(lines), error, writer.path
            )

    def _written(self, _: asyncio.Future[None]) -> None:
        self._writing = None
        if self._lines and self._writer is not None:
            self._start(self._writer)


class AuditFiles:
    """The audit log's files; its functions are called by one thread at a time."""

    def __init__(self, files: Files, directory: str, file_bytes_max: int, files_max: int) -> None:
        self._files, self.path = files, f"{directory}/{FILE_NAME}"
        self._directory, self._file_bytes_max, self._files_max = directory, file_bytes_max, files_max
        self._file: Any = None
        self._size_bytes = 0

    def append(self, lines: list[bytes]) -> None:
        """Write the lines, and begin a new file whenever one is full. Raises OSError."""
        part: list[bytes] = []
        part_bytes = 0
        for line in lines:
            if part and self._position() + part_bytes + len(line) > self._file_bytes_max:
                self._append(part)
                part, part_bytes = [], 0
            if not part and self._position() and self._position() + len(line) > self._file_bytes_max:
                self._rotate()
            part.append(line)
            part_bytes += len(line)
        self._append(part)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _position(self) -> int:
        if self._file is None:
            self._files.make_directory(self._directory)
            self._file = self._files.open(self.path, create=True)
            self._size_bytes = self._file.size()
        return self._size_bytes

    def _append(self, lines: list[bytes]) -> None:
        position = self._position()
        self._size_bytes += self._file.write(position, [b"".join(lines)])

    def _rotate(self) -> None:
        self.close()
        names = [self.path, *(f"{self.path}.{number}" for number in range(1, self._files_max))]
        if self._files.exists(names[-1]):
            self._files.remove(names[-1])
        for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
            if self._files.exists(newer):
                self._files.rename(newer, older)


def open_audit(config: BrokerConfig, files: Files, clock: Clock, workers: Workers) -> AuditLog:
    """Return the audit log that the settings configure: in the first data directory if they name no other one."""
    directory = config.audit_log_directory or f"{config.log_directories[0]}/audit"
    writer = None
    if directory != OFF:
        writer = AuditFiles(files, directory, config.audit_log_max_bytes, config.audit_log_max_files)
    return AuditLog(clock, workers, writer)


def client_fields(session: ClientSession) -> dict[str, Any]:
    """Return what an audit line says about a client."""
    return {
        "principal": str(session.principal),
        "host": session.host,
        "client_id": session.client_id,
        "listener": session.listener_name,
    }


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > VALUE_CHARACTERS_MAX:
        return f"{value[:VALUE_CHARACTERS_MAX]}…"
    return value
