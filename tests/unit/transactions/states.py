"""Transactional ids of a running broker, brought into any state by requests, and asked every transactional request.

A producer is asked about as one of these identities:

    current    the producer id and epoch that the coordinator has
    before     the epoch before: a fenced producer, or one whose last answer was lost
    after      the epoch after it, which nobody has
    stranger   another producer id
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from flowstone.broker.coordinators.local_markers import Marker
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.types import TopicPartition
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import transactional_batch
from tests.support.transactions import TransactionClient
from tests.support.wire_client import Client

TOPIC, GROUP = "t", "g"
STRANGER_ID = 987_654_321
SETTINGS = {"transaction_state_log_num_partitions": "2", "offsets_topic_num_partitions": "2"}
NONE = ErrorCode.NONE
_FIRST_WITH_TOPIC_IDS = 13
_numbers = itertools.count()


def prepare(client: Client) -> None:
    """Create the topic, and the internal topics of both coordinators."""
    assert client.create_topic(TOPIC) == NONE
    TransactionClient(client).begin()
    assert client.ask(0, m.FindCoordinatorRequest(key=GROUP)).error_code == NONE


class HeldMarkers:
    """Stands before the leaders of a broker's partitions: markers wait there until they are released.

    A transaction whose markers wait stays in its Prepare state.
    """

    def __init__(self, app: RunningApp) -> None:
        self._app, self._local = app, app.app.services.transactions.local_markers
        self._write = self._local.write
        self.waiting: list[tuple[TopicPartition, Marker, Promise[None]]] = []
        self.is_holding = False
        self._local.write = self._take  # type: ignore[method-assign]

    def _take(self, where: TopicPartition, marker: Marker) -> Promise[None]:
        if not self.is_holding:
            return self._write(where, marker)
        held: Promise[None] = Promise()
        self.waiting.append((where, marker, held))
        return held

    def release(self) -> None:
        """Have all markers that wait written, and hold no more."""
        self.is_holding = False
        self._app.call(self._write_waiting)

    def _write_waiting(self) -> None:
        waiting, self.waiting = self.waiting, []
        for where, marker, held in waiting:
            self._write(where, marker).add_done_callback(lambda written, held=held: _pass_on(written, held))


def _pass_on(written: Promise[None], held: Promise[None]) -> None:
    error = written.exception()
    if error is None:
        held.set_result(None)
    else:
        held.set_exception(error)


class States:
    """Makes producers in each state, on one connection to the broker that has everything."""

    NAMES = (
        "unknown",
        "empty",
        "ongoing",
        "prepare commit",
        "prepare abort",
        "complete commit",
        "complete abort",
    )

    def __init__(self, client: Client, held: HeldMarkers) -> None:
        self.client, self._held = client, held

    def make(self, state: str, end_version: int = 5) -> TransactionClient:
        """Return the producer of a new transactional id in this state; `end_version` is that of its last EndTxn."""
        producer = TransactionClient(self.client, f"id-{next(_numbers)}")
        if state == "unknown":
            producer.producer_id, producer.producer_epoch = STRANGER_ID, 1
            return producer
        producer.begin()
        producer.begin()  # at epoch 1, so that there is an epoch before it
        if state == "empty":
            return producer
        assert producer.add_as_broker((TOPIC, [0]), verify_only=False) == [NONE]
        assert producer.add_offsets(GROUP) == NONE
        if state == "ongoing":
            return producer
        kind, outcome = state.split()
        self._held.is_holding = kind == "prepare"
        try:
            answer = producer.end(commit=outcome == "commit", version=end_version)
            assert answer.error_code == NONE
            producer.wait_for_state(f"{kind.capitalize()}{outcome.capitalize()}")
        finally:
            self._held.is_holding = False
        if end_version >= 5:
            producer.producer_id, producer.producer_epoch = answer.producer_id, answer.producer_epoch
        return producer


def identify(producer: TransactionClient, identity: str) -> TransactionClient:
    """Return a producer of the same transactional id that gives itself out as this identity."""
    other = TransactionClient(producer.client, producer.transactional_id)
    other.producer_id, other.producer_epoch = producer.pair
    if identity == "stranger":
        other.producer_id = STRANGER_ID + 1
    other.producer_epoch += {"before": -1, "after": 1}.get(identity, 0)
    return other


# What is asked. Each returns the error code.


def initialize(producer: TransactionClient, version: int) -> int:
    return int(producer.init(version).error_code)


def initialize_again(producer: TransactionClient, version: int) -> int:
    given = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    return int(producer.init(version, **given).error_code)


def add(producer: TransactionClient, version: int) -> int:
    return producer.add((TOPIC, [0]), version=version)[0]


def add_as_broker(producer: TransactionClient, version: int) -> int:
    return producer.add_as_broker((TOPIC, [0]), verify_only=False, version=version)[0]


def verify(producer: TransactionClient, version: int) -> int:
    return producer.add_as_broker((TOPIC, [0]), verify_only=True, version=version)[0]


def add_offsets(producer: TransactionClient, version: int) -> int:
    return producer.add_offsets(GROUP, version)


def commit(producer: TransactionClient, version: int) -> int:
    return int(producer.end(commit=True, version=version).error_code)


def abort(producer: TransactionClient, version: int) -> int:
    return int(producer.end(commit=False, version=version).error_code)


def produce(producer: TransactionClient, version: int) -> int:
    return produce_to(producer, version).error_code


def produce_to(
    producer: TransactionClient,
    version: int,
    value: bytes = b"v",
    sequence: int = 0,
    topic: str = TOPIC,
    topic_id: bytes = b"",
) -> Any:
    """Write one record to partition 0; return the partition's answer."""
    batch = transactional_batch(value, producer.producer_id, producer.producer_epoch, sequence)
    data = m.ProduceRequestTopic(
        name=topic,
        topic_id=(topic_id or _topic_id(producer.client, topic)) if version >= _FIRST_WITH_TOPIC_IDS else bytes(16),
        partition_data=[m.ProduceRequestPartition(index=0, records=batch)],
    )
    request = m.ProduceRequest(
        transactional_id=producer.transactional_id, acks=-1, timeout_ms=10_000, topic_data=[data]
    )
    return producer.client.ask(version, request).responses[0].partition_responses[0]


def _topic_id(client: Client, topic: str) -> bytes:
    answer = client.ask(12, m.MetadataRequest(topics=[m.MetadataRequestTopic(name=topic)]))
    return bytes(answer.topics[0].topic_id)


def commit_offset(
    producer: TransactionClient, version: int, group_id: str = GROUP, offset: int = 5, **more: Any
) -> int:
    partition = m.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    request = m.TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[m.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
        **more,
    )
    return int(producer.client.ask(version, request).topics[0].partitions[0].error_code)


EVENTS: dict[str, Callable[[TransactionClient, int], int]] = {
    "InitProducerId": initialize,
    "InitProducerId again": initialize_again,
    "AddPartitionsToTxn": add,
    "AddPartitionsToTxn of a broker": add_as_broker,
    "AddPartitionsToTxn, verify only": verify,
    "AddOffsetsToTxn": add_offsets,
    "EndTxn, commit": commit,
    "EndTxn, abort": abort,
    "Produce": produce,
    "TxnOffsetCommit": commit_offset,
}
