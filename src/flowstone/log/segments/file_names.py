"""File names that begin with an offset, as most of a partition's files have, with enough digits to sort as offsets
do.
"""

from __future__ import annotations

OFFSET_DIGITS = 20


def offset_name(offset: int, suffix: str = "") -> str:
    return f"{offset:0{OFFSET_DIGITS}d}{suffix}"


def offset_in_name(name: str, suffix: str) -> int | None:
    """Return the offset that a file's name begins with, or None if the name has another form."""
    if len(name) != OFFSET_DIGITS + len(suffix) or not name.endswith(suffix):
        return None
    digits = name[:OFFSET_DIGITS]
    return int(digits) if digits.isdigit() and digits.isascii() else None
