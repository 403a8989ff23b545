"""The typed records of `__transaction_state`.

A record replaces everything known about its transactional id. The field names are those of Kafka's TransactionLogValue.
The binary form is in `record_format`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1
NO_TIMEOUT_MS = 2**31 - 1  # of a two-phase commit (KIP-939): such a transaction is never aborted by time
PRODUCER_EPOCH_MAX = 2**15 - 1
# Clients never get the last epoch: it is left to fence the producer that has the one before.
LAST_CLIENT_EPOCH = PRODUCER_EPOCH_MAX - 1


class TransactionState(IntEnum):
    """The states of a transactional id, with the numbers under which they are stored."""

    EMPTY = 0  # has a producer id and epoch, and never had a transaction with them
    ONGOING = 1  # has partitions
    PREPARE_COMMIT = 2  # is decided; markers are being written
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4  # all markers are written
    COMPLETE_ABORT = 5

    @property
    def is_prepared(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    @property
    def is_commit(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    @property
    def label(self) -> str:
        """Return Kafka's name of the state."""
        return self.name.title().replace("_", "")


class TransactionStored(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    last_update_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID  # the id before this record
    next_producer_id: int = NO_PRODUCER_ID  # in Prepare*: the id that the producer goes on with, at epoch 0
    last_producer_epoch: int = NO_PRODUCER_EPOCH  # the epoch that a lost answer has replaced; it may be asked for again
    client_version: int = 0  # of the protocol: 2 raises the epoch with every transaction

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    def check_producer(self, producer_id: int, producer_epoch: int) -> ErrorCode:
        """Return the error code for a request with this producer id and epoch: NONE if they are the current ones.

        For the producer of an exhausted id Kafka returns INVALID_PRODUCER_ID_MAPPING, which is fatal to it. Here it is
        fenced like any producer whose transaction timed out, and can continue after EndTxn 5.
        """
        if producer_id != self.producer_id and not self.has_rolled_over_from(producer_id, producer_epoch):
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        is_current = producer_id == self.producer_id and producer_epoch == self.producer_epoch
        return ErrorCode.NONE if is_current else ErrorCode.PRODUCER_FENCED

    def has_rolled_over_from(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether this record replaced an exhausted producer id with a new one."""
        is_exhausted = producer_epoch == LAST_CLIENT_EPOCH and producer_id == self.previous_producer_id
        return is_exhausted and self.producer_epoch == 0 and producer_id != self.producer_id


class TransactionRemoved(NamedTuple):
    """The tombstone of TransactionStored."""

    transactional_id: str


TransactionRecord = TransactionStored | TransactionRemoved
