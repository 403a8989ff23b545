"""Kafka's ids: sixteen random bytes, displayed as 22 characters of URL-safe base64."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable

ID_BYTES = 16

# The source of new ids. Decisions take it as an argument, so that a simulation can replay them from a seed.
IdSource = Callable[[], bytes]


def random_id() -> bytes:
    """Return a random UUID whose text does not begin with a dash, which command lines would parse as an option."""
    while True:
        made = uuid.uuid4().bytes
        if not id_text(made).startswith("-"):
            return made


def id_text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode("ascii").rstrip("=")


def parse_id(text: str) -> bytes:
    """Return the sixteen bytes. Raises ValueError if the text is not an id."""
    value = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    if len(value) != ID_BYTES:
        raise ValueError(f"{text!r} is not an id of {ID_BYTES} bytes")
    return value
