"""Small value types that many packages share, and the text form of ids."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import NamedTuple

ZERO_UUID = bytes(16)
# Separates a topic's name from its id in JSON documents of offsets (ADR 0026). No name of a topic has it.
ID_SEPARATOR = "@"

Bytes = bytes | bytearray | memoryview


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def format_uuid(uuid: bytes) -> str:
    """Return a UUID in Kafka's text form: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes | None:
    try:
        uuid = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return uuid if len(uuid) == len(ZERO_UUID) else None


def topic_id_keys(topic_ids: Mapping[str, bytes]) -> list[str]:
    """Return the keys under which a JSON document of offsets has the ids of its topics."""
    return [f"{topic}{ID_SEPARATOR}{format_uuid(topic_id)}" for topic, topic_id in sorted(topic_ids.items())]


def topic_ids_among(keys: Iterable[str]) -> dict[str, bytes]:
    """Return the ids that a JSON document of offsets has among its keys. Raises ValueError if one is none."""
    found = {}
    for key in keys:
        topic, is_id, text = key.partition(ID_SEPARATOR)
        if is_id:
            topic_id = parse_uuid(text)
            if topic_id is None:
                raise ValueError(f"{text!r} is no id of topic {topic}")
            found[topic] = topic_id
    return found
