"""The broker's log on standard error, one line per event: time, level, logger, message.

A message may have text that clients chose, such as the user name of a failed login. Control characters and the line
separators of Unicode are written as `\\uXXXX`, so that no client can forge a line or send sequences to a terminal.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime

FORMATS = ("text", "json")
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
LEVELS = ("debug", "info", "warning", "error")


class _LineFormatter(logging.Formatter):
    """Formatter of a log record as one line; the lines of a traceback are joined by a visible \n."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {record.name} {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return _without_controls(line.replace("\r", "\\r").replace("\n", "\\n"))


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return _without_controls(json.dumps(event, ensure_ascii=False))


def _without_controls(text: str) -> str:
    return _CONTROLS.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def set_up_logging(log_format: str, level: str) -> None:
    """Send all records at or above `level` to standard error; only for a process of its own."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.raiseExceptions = False  # standard error may be closed; the broker continues
