"""The result of a call of a coordinator's state machine: records to append, replies to send and tasks to perform.

A state machine is pure. It gets the time with every call, returns `Effects`, and says through `next_deadline` when it
must be called again. The runtime encodes the records, appends them to the internal topic, applies them with `replay`
before its next call, and sends the replies, those of reads included, only once everything the state machine had seen is
committed. When an append fails the runtime discards the state machine and replays the log into a new one: there is no
undo.

The exception is a producer that the log has fenced: only its request is refused, and its effects are dropped. A call
that writes in a transaction therefore changes the state machine by `replay` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from flowstone.wire.end_markers import EndMarker

Record = TypeVar("Record")


# An encoded record of the internal topic: key and value. A null value is a tombstone, which deletes the key's state.
CoordinatorRecord = tuple[bytes, bytes | None]


class TransactionalProducer(NamedTuple):
    """The producer in whose transaction a batch is written; the records take effect with its commit marker."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class Effects(Generic[Record]):
    """The records, replies and tasks that one call of a state machine produces.

    Records are the state machine's own typed records; the runtime knows their encodings.

    Replies are pairs of the token a request came with and its response; a request may be replied to much later.

    Tasks are the state machine's own typed work items that need IO, such as requests to other brokers. The runtime
    starts them like replies: only once everything the state machine had seen is committed. They are lost when the state
    machine is discarded: replaying its log must show what is still to be done.
    """

    records: list[Record] = field(default_factory=list)
    replies: list[tuple[Any, Any]] = field(default_factory=list)
    can_wait: bool = False  # whether the append may be delayed by a few milliseconds, to share it with other shards
    tasks: list[Any] = field(default_factory=list)
    producer: TransactionalProducer | None = None  # if set, the records are appended in its transaction, at once
    marker: EndMarker | None = None  # if set, ends the producer's transaction after the records
    transaction_version: int = 0  # the rules by which the marker is fenced
