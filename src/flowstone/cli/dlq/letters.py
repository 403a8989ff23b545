"""A dead letter: a record of a dead letter queue, with what its headers say of the record that it stands for.

The history is after the record's own headers. If a name is there twice, the last one counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from confluent_kafka import Message

from flowstone.cli.common.numbers import OFFSET_MAX, PARTITION_MAX
from flowstone.cli.txn.places import place_text
from flowstone.types import TopicPartition

PREFIX = "__dlq.errors."
RETRIED_FROM, RETRIED_COUNT = "flowstone.retried-from", "flowstone.retried-count"
RETRIED_ORIGIN, RETRIED_GROUP = "flowstone.retried-origin", "flowstone.retried-group"
RETRIED_CAUSE = "flowstone.retried-cause"
_DIGITS_MAX = 19

Headers = tuple[tuple[str, bytes | None], ...]


class Content(NamedTuple):
    """The key, value and headers of a record that is written back."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class Letter(NamedTuple):
    partition: TopicPartition  # of the dead letter queue
    offset: int
    timestamp_ms: int
    content: Content  # without the history
    origin: tuple[TopicPartition, int] | None  # None: the headers do not say where the record is from
    group: str | None
    deliveries: int | None
    cause: str | None

    @classmethod
    def of(cls, message: Message) -> Self:
        content, history = _content(message), {}
        for name, value in content.headers:
            if name.startswith(PREFIX):
                history[name.removeprefix(PREFIX)] = _text(value)
        own = tuple(each for each in content.headers if not each[0].startswith(PREFIX))
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        return cls(
            TopicPartition(topic, partition),
            offset,
            message.timestamp()[1],
            content._replace(headers=own),
            _origin(history),
            history.get("group"),
            _number(history.get("delivery.count"), OFFSET_MAX),
            history.get("message"),
        )

    @property
    def place(self) -> str:
        return place_text(self.partition, self.offset)

    @property
    def origin_place(self) -> str | None:
        return place_text(*self.origin) if self.origin is not None else None

    @property
    def has_content(self) -> bool:
        """True if the letter has the record's content; a letter without key, value and headers has none."""
        return self.content != (None, None, ())

    def retried(self, content: Content) -> Content:
        """Return the record as it is written back: with headers that say where it has been, and how often."""
        own = tuple(each for each in content.headers if each[0] != RETRIED_COUNT)
        counts = [_number(_text(value), OFFSET_MAX) or 0 for name, value in content.headers if name == RETRIED_COUNT]
        told = [
            (RETRIED_FROM, self.place),
            (RETRIED_ORIGIN, self.origin_place),
            (RETRIED_GROUP, self.group),
            (RETRIED_CAUSE, self.cause),
            (RETRIED_COUNT, str(max(counts, default=0) + 1)),
        ]
        history = tuple((name, text.encode(errors="replace")) for name, text in told if text is not None)
        return content._replace(headers=(*own, *history))

    def document(self, *, is_open: bool) -> dict[str, Any]:
        key, value, headers = self.content
        return {
            "letter": self.place,
            "open": is_open,
            "time": self.timestamp_ms,
            "origin": self.origin_place,
            "group": self.group,
            "delivery_count": self.deliveries,
            "cause": self.cause,
            "copied": self.has_content,
            "headers": [[name, _text(each)] for name, each in headers],
            "key": _text(key),
            "value": _text(value),
            "value_hex": None if value is None else value.hex(),
        }


def content_of(message: Message) -> Content:
    """Return the record of a source topic as it can be written again, without a history of dead letters."""
    content = _content(message)
    return content._replace(headers=tuple(each for each in content.headers if not each[0].startswith(PREFIX)))


def _content(message: Message) -> Content:
    headers = message.headers() or []
    assert isinstance(headers, list)
    return Content(
        _bytes(message.key()), _bytes(message.value()), tuple((name, _bytes(value)) for name, value in headers)
    )


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _origin(history: dict[str, str | None]) -> tuple[TopicPartition, int] | None:
    topic = history.get("topic")
    partition = _number(history.get("partition"), PARTITION_MAX)
    offset = _number(history.get("offset"), OFFSET_MAX)
    if not topic or partition is None or offset is None:
        return None
    return TopicPartition(topic, partition), offset


def _number(text: str | None, maximum: int) -> int | None:
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS_MAX or int(text) > maximum:
        return None
    return int(text)
