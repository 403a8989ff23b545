"""The record of a dead letter (KIP-1191): what it copies, and the headers that say where it comes from. Pure."""

from __future__ import annotations

from flowstone.broker.sharing.share_changes import Reason
from flowstone.coordinator.share.records import LetterRange
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record

PREFIX = "__dlq.errors."
MESSAGES: dict[int, str] = {
    Reason.REJECTED: "The record was rejected.",
    Reason.DELIVERED_TOO_OFTEN: "The record was delivered too often without being accepted.",
}


def letter_record(
    delta: int,
    time_ms: int,
    source: TopicPartition,
    group_id: str,
    offset: int,
    letter: LetterRange,
    original: Record | None,
) -> Record:
    """Return the letter for the record at `offset`; only the headers of its history if there is no original."""
    told = {
        "topic": source.topic,
        "partition": source.partition,
        "offset": offset,
        "group": group_id,
        "delivery.count": letter.delivery_count,
        "message": MESSAGES.get(letter.reason, MESSAGES[Reason.REJECTED]),
    }
    history = tuple((PREFIX + name, str(value).encode()) for name, value in told.items())
    if original is None:
        return Record(delta, time_ms, None, None, history)
    return Record(delta, time_ms, original.key, original.value, (*original.headers, *history))
