"""Requests to the share coordinator of another broker, for one share partition each, and what its response says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from flowstone.coordinator.share.messages import (
    NO_EPOCH,
    InitialState,
    StateRead,
    StateResult,
    StateSummary,
    StateWrite,
)
from flowstone.coordinator.share.record_format import (
    decode_delays,
    decode_letters,
    decode_ranges,
    encode_delays,
    encode_letters,
    encode_ranges,
)
from flowstone.coordinator.share.records import ShareKey, StateBatch
from flowstone.errors import ErrorCode
from flowstone.wire import messages as wire
from flowstone.wire.message import Message

Answer = TypeVar("Answer", StateResult, StateRead, StateSummary)


@dataclass(frozen=True, slots=True)
class RemoteCall(Generic[Answer]):
    """One request to another broker."""

    request: Message
    response: type[Any]
    # From the response to the answer, and from an error code and message to an answer.
    answer: Callable[[Any], Answer]
    failed: Callable[[ErrorCode, str | None], Answer]


def initialize(state: InitialState) -> RemoteCall[StateResult]:
    partition = wire.InitializeShareGroupStateRequestPartition(
        partition=state.key.partition, state_epoch=state.state_epoch, start_offset=state.start_offset
    )
    topic = wire.InitializeShareGroupStateRequestTopic(topic_id=state.key.topic_id, partitions=[partition])
    request = wire.InitializeShareGroupStateRequest(group_id=state.key.group_id, topics=[topic])
    return RemoteCall(request, wire.InitializeShareGroupStateResponse, _result, StateResult)


def read(key: ShareKey, leader_epoch: int) -> RemoteCall[StateRead]:
    partition = wire.ReadShareGroupStateRequestPartition(partition=key.partition, leader_epoch=leader_epoch)
    topic = wire.ReadShareGroupStateRequestTopic(topic_id=key.topic_id, partitions=[partition])
    request = wire.ReadShareGroupStateRequest(group_id=key.group_id, topics=[topic])
    return RemoteCall(request, wire.ReadShareGroupStateResponse, _read, StateRead)


def write(change: StateWrite) -> RemoteCall[StateResult]:
    partition = wire.WriteShareGroupStateRequestPartition(
        partition=change.key.partition,
        state_epoch=change.state_epoch,
        leader_epoch=change.leader_epoch,
        start_offset=change.start_offset,
        delivery_complete_count=change.delivery_complete_count,
        state_batches=[
            wire.WriteShareGroupStateRequestStateBatch(
                first_offset=first, last_offset=last, delivery_state=state, delivery_count=count
            )
            for first, last, state, count in change.batches
        ],
        flowstone_delays=encode_delays(change.delays) if change.delays else None,
        flowstone_letters=None if change.letters is None else encode_letters(change.letters),
        flowstone_given_up=encode_ranges(change.given_up) if change.given_up else None,
    )
    topic = wire.WriteShareGroupStateRequestTopic(topic_id=change.key.topic_id, partitions=[partition])
    request = wire.WriteShareGroupStateRequest(group_id=change.key.group_id, topics=[topic])
    return RemoteCall(request, wire.WriteShareGroupStateResponse, _result, StateResult)


def delete(key: ShareKey) -> RemoteCall[StateResult]:
    partition = wire.DeleteShareGroupStateRequestPartition(partition=key.partition)
    topic = wire.DeleteShareGroupStateRequestTopic(topic_id=key.topic_id, partitions=[partition])
    request = wire.DeleteShareGroupStateRequest(group_id=key.group_id, topics=[topic])
    return RemoteCall(request, wire.DeleteShareGroupStateResponse, _result, StateResult)


def summarize(key: ShareKey) -> RemoteCall[StateSummary]:
    partition = wire.ReadShareGroupStateSummaryRequestPartition(partition=key.partition, leader_epoch=NO_EPOCH)
    topic = wire.ReadShareGroupStateSummaryRequestTopic(topic_id=key.topic_id, partitions=[partition])
    request = wire.ReadShareGroupStateSummaryRequest(group_id=key.group_id, topics=[topic])
    return RemoteCall(request, wire.ReadShareGroupStateSummaryResponse, _summary, StateSummary)


def _only(response: Any) -> Any | None:
    """Return the result of the only share partition that was asked for, or None if the response lacks it."""
    return next((partition for topic in response.results for partition in topic.partitions), None)


def _result(response: Any) -> StateResult:
    found = _only(response)
    if found is None:
        return StateResult(ErrorCode.UNKNOWN_SERVER_ERROR)
    return StateResult(ErrorCode(found.error_code), found.error_message)


def _read(response: wire.ReadShareGroupStateResponse) -> StateRead:
    found = _only(response)
    if found is None:
        return StateRead(ErrorCode.UNKNOWN_SERVER_ERROR)
    batches = tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in found.state_batches
    )
    code = ErrorCode(found.error_code)
    delays, letters, given_up = found.flowstone_delays, found.flowstone_letters, found.flowstone_given_up
    return StateRead(
        code,
        found.error_message,
        found.state_epoch,
        found.start_offset,
        batches,
        () if delays is None else decode_delays(bytes(delays)),
        None if letters is None else decode_letters(bytes(letters)),
        () if given_up is None else decode_ranges(bytes(given_up)),
    )


def _summary(response: wire.ReadShareGroupStateSummaryResponse) -> StateSummary:
    found = _only(response)
    if found is None:
        return StateSummary(ErrorCode.UNKNOWN_SERVER_ERROR)
    epochs = found.state_epoch, found.leader_epoch
    code = ErrorCode(found.error_code)
    return StateSummary(code, found.error_message, *epochs, found.start_offset, found.delivery_complete_count)
