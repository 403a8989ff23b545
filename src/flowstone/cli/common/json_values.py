"""Values of Arrow tables as JSON."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any


def plain_value(value: Any, *, assume_utc: bool = False) -> Any:
    """Return `value` in a form that JSON can represent.

    Other types become text (times as ISO 8601, decimals in full, bytes as base64), seconds (time spans), or null (NaN
    and infinities). `assume_utc`: a time without a zone is one of UTC.
    """
    match value:
        case float() if not math.isfinite(value):
            return None
        case datetime() if assume_utc and value.tzinfo is None:
            return value.replace(tzinfo=UTC).isoformat()
        case date() | time():  # datetime is a date
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case Mapping():
            return {str(name): plain_value(each, assume_utc=assume_utc) for name, each in value.items()}
        case list() | tuple():
            return [plain_value(each, assume_utc=assume_utc) for each in value]
        case _:
            return value
