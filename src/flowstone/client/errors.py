"""The errors that the client raises: one sentence for people, and a type for programs.

A `Retriable` stays inside the package until the deadline: it is caught, and the call is retried (`retry_deadline`). The
other errors are final. `refusal` turns an error code of the cluster into one or the other, so that every caller retries
the same errors.
"""

from __future__ import annotations

from math import inf

from flowstone.errors import ErrorCode, FlowstoneError
from flowstone.types import TopicPartition

# A new topic may not have reached every broker; one that is still unknown after this time does not exist.
UNKNOWN_TOPIC_RETRY_S_MAX = 3.0


class ClientError(FlowstoneError):
    """The cluster did not do what was requested.

    Spark pickles errors between processes: `args` are the constructor's arguments.
    """


class BadAddress(ClientError):
    """The address of the brokers is not HOST:PORT, or several with commas."""


class GaveUp(ClientError):
    """A call was retried until the deadline without success; the cause is the last failure."""


class BadAnswer(ClientError):
    """The server is not a broker, or its release is too old."""


class LoginFailed(BadAnswer):
    """The broker refused the login, or its certificate is not trusted: trying again would not help."""


class Refused(ClientError):
    """The cluster refused a request, and a retry would not help."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return self.message


class OffsetsLost(ClientError):
    """The log starts after an offset to be read: retention or a deletion removed the records."""

    def __init__(self, partition: TopicPartition, start: int, log_start: int) -> None:
        super().__init__(partition, start, log_start)
        self.partition, self.start, self.log_start = partition, start, log_start

    def __str__(self) -> str:
        return (
            f"{self.partition}: offsets {self.start} to {self.log_start - 1} are gone, the log now starts at "
            f"{self.log_start} (retention, or records were deleted): read from there on, and keep records longer "
            "(retention.ms, retention.bytes) than readers take"
        )


class OffsetsNotWritten(ClientError):
    """The log ends before an offset to be read: the topic was created again, or the log lost its end."""

    def __init__(self, partition: TopicPartition, start: int, log_end: int) -> None:
        super().__init__(partition, start, log_end)
        self.partition, self.start, self.log_end = partition, start, log_end

    def __str__(self) -> str:
        return (
            f"{self.partition}: offset {self.start} was asked for, but the log ends at {self.log_end}: the topic was "
            "deleted and created again, or records were lost; choose the offsets anew"
        )


class TopicRecreated(ClientError):
    """The topic was deleted and created again, so the records that were to be read no longer exist."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return (
            f"topic {self.topic} was deleted and created again since its offsets were looked up: the records to be "
            "read are gone; look the offsets up again"
        )


class DeliveryFailed(ClientError):
    """A batch, and the batches after it, may not have been written. The producer accepts no more records."""

    def __init__(self, partition: TopicPartition, reason: str) -> None:
        super().__init__(partition, reason)
        self.partition, self.reason = partition, reason

    def __str__(self) -> str:
        return f"{self.partition}: {self.reason}"


class Retriable(ClientError):
    """A failure that may pass: the call is retried, for at most `retry_s_max`."""

    retry_s_max = inf


class Disconnected(Retriable):
    """A connection could not be made, broke, or had no answer in time."""


class LeaderMoved(Retriable):
    """The broker does not lead the partition, or no longer does."""


class UnknownTopic(Retriable):
    retry_s_max = UNKNOWN_TOPIC_RETRY_S_MAX


_MOVED = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
_BUSY = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.CORRUPT_MESSAGE,  # usually damaged in the network: the broker verifies what arrives
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
_FENCED = "another producer uses this transactional id now"
_ADVICE = {
    ErrorCode.PRODUCER_FENCED: _FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH: _FENCED,
    ErrorCode.INVALID_TXN_STATE: "the transaction has ended: it was aborted, or took longer than its timeout",
    ErrorCode.TRANSACTION_ABORTABLE: "the transaction has ended: it was aborted, or took longer than its timeout",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "its timeout is longer than the brokers allow (transaction.max.timeout.ms)",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this client may not use the transactional id: ask for the right",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this client may not use the topic: ask for the right to",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "this client may not use the group: ask for the right to",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has live members, and only they may commit: choose another group",
    ErrorCode.ILLEGAL_GENERATION: "the group has live members, and only they may commit: choose another group",
    ErrorCode.INVALID_GROUP_ID: "that is no name for a group: choose another",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the text committed with the offsets is too long: shorten it",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "that is no topic that can be written to or read: check its name",
    ErrorCode.MESSAGE_TOO_LARGE: "a batch is larger than the topic's max.message.bytes: raise it, or send smaller ones",
    ErrorCode.RECORD_LIST_TOO_LARGE: "a batch is larger than the topic's segment.bytes: raise it, or send smaller ones",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (
        "the broker misses records that were acknowledged before: its log lost its end; see its log, then write again"
    ),
    ErrorCode.INVALID_TIMESTAMP: "a timestamp is too far from the broker's clock (message.timestamp.after.max.ms)",
}


def refusal(code: int, what: object, message: str | None = None) -> Retriable | Refused:
    """Return the error for an error code other than NONE; `what` it concerns begins the sentence."""
    try:
        error_code = ErrorCode(code)
    except ValueError:
        return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what}: error {code}, which this version does not know")
    if error_code in _MOVED:
        return LeaderMoved(f"{what}: {error_code.name}")
    if error_code in _BUSY:
        return Retriable(f"{what}: {error_code.name}")
    if error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(f"{what}: there is no such topic or partition; check the name, or create it first")
    reason = _ADVICE.get(error_code) or message or "the cluster refused"
    return Refused(error_code, f"{what}: {reason} ({error_code.name})")
