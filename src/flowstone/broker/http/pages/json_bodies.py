"""JSON that clients post to pages."""

from __future__ import annotations

import json
from typing import Any


def read_json(body: bytes) -> Any:
    """Return what the JSON in `body` says. Raises ValueError if it is none, or nested more deeply than can be read."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
