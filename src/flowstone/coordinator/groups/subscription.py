"""The one thing a coordinator reads in a client's own bytes: which topics a consumer's subscription names.

Assignors' metadata passes through untouched. Every version of the consumer protocol's subscription starts with
version 0: int16 version, then an array of topic names. Anything that does not read so is simply not known.
"""

from __future__ import annotations

import struct

CONSUMER_PROTOCOL_TYPE = "consumer"

_HEADER = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics, or None if these bytes are not a consumer's subscription."""
    try:
        _, count = _HEADER.unpack_from(subscription)
        position = _HEADER.size
        # Every name takes two bytes at least: a count beyond that is a lie, and would be a long loop.
        if not 0 <= count <= (len(subscription) - position) // _LENGTH.size:
            return None
        topics = set()
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(subscription, position)
            start, position = position + _LENGTH.size, position + _LENGTH.size + length
            if length < 0 or position > len(subscription):
                return None
            topics.add(subscription[start:position].decode())
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
