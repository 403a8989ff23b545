"""What a coordinator's state machine gives back: records to append, replies to release and tasks to hand over.

A state machine is pure. It is given the time with every call, answers with `Effects`, and says through `next_deadline`
when it wants to be called again. The runtime encodes the records, appends them to the internal topic, applies them with
`replay` before its next call, and releases the replies, those of reads included, only once everything the state machine
had seen is committed. When an append fails the runtime throws the state machine away and replays the log into a new
one: there is no undo.

The exception is a producer that the log has fenced: only its request is refused, and its effects are dropped. A call
that writes in a transaction therefore changes the state machine by `replay` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from flowstone.wire.end_markers import EndMarker

Record = TypeVar("Record")


# A record of the internal topic, encoded: key and value. A null value is a tombstone: the key's state is gone.
CoordinatorRecord = tuple[bytes, bytes | None]


class TransactionalProducer(NamedTuple):
    """The producer in whose transaction a batch is written: its records count once its marker says commit."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class Effects(Generic[Record]):
    """Records are the state machine's own typed records; the runtime knows their encodings.

    Replies are pairs of the token a request came with and its response; a request may be replied to much later.

    Tasks are the state machine's own typed work items for the world outside, such as requests to other brokers. The
    runtime hands them over like replies: only once everything the state machine had seen is committed. They are lost
    when the state machine is thrown away: whoever replays its log into a new one finds there what is still to be done.
    """

    records: list[Record] = field(default_factory=list)
    replies: list[tuple[Any, Any]] = field(default_factory=list)
    can_wait: bool = False  # a few milliseconds, to be appended together with others
    tasks: list[Any] = field(default_factory=list)
    producer: TransactionalProducer | None = None  # the records are appended in its transaction, and cannot wait
    marker: EndMarker | None = None  # ends the producer's transaction, after the records
    transaction_version: int = 0  # by whose rules the marker is fenced
