"""One transactional producer without a library, and what it was told: each transaction writes to three partitions.

Transaction N writes the value N to every partition and commits the offset N for a group. So a look at the partitions
and the group says which transactions are visible, and whether any is visible in part.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from flowstone.wire.record_batch import decode_records, parse_header
from tests.chaos.replicas import committed_records
from tests.support.transactions import BUSY, TransactionClient
from tests.support.wire_client import Client, batch_of, whole_batches

TOPIC, PARTITIONS = "accounts", 3
GROUP = "tellers"
TRANSACTION_TIMEOUT_MS = 5_000
OPEN_S_MAX = TRANSACTION_TIMEOUT_MS / 1000 + 10.0
PAUSE_S = 0.005
READ_COMMITTED = 1
# What a client asks again after: the former transaction is not complete, or the coordinator is not there yet.
LATER = (*BUSY, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
FETCH_BYTES = 8 << 20
# By the protocol of the client: versions of Produce, TxnOffsetCommit and EndTxn.
VERSIONS = {1: (10, 3, 4), 2: (12, 5, 5)}


class RawBank:
    """Survives the broker: `connect` gives it the next one. It knows of each transaction what it was told."""

    def __init__(self) -> None:
        self.begun = 0
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self._sequence = 0
        self._client: Client
        self._producer: TransactionClient

    def connect(self, client: Client) -> None:
        self._client, self._producer = client, TransactionClient(client, "raw")
        self._retried(lambda: self._producer.find_coordinator().error_code)
        request = m.FindCoordinatorRequest(key=GROUP, coordinator_keys=[GROUP])
        self._retried(lambda: client.ask(4, request).coordinators[0].error_code)

    # A transaction

    def begin(self) -> None:
        """Become the producer; what a former one has left open is aborted."""
        deadline_s = time.monotonic() + OPEN_S_MAX
        while (answer := self._producer.init(timeout_ms=TRANSACTION_TIMEOUT_MS)).error_code in LATER:
            assert time.monotonic() < deadline_s, "the transaction of the former producer does not end"
            time.sleep(PAUSE_S)
        assert answer.error_code == ErrorCode.NONE, answer
        self._take(answer)

    def _take(self, answer: Any) -> None:
        self._producer.producer_id, self._producer.producer_epoch = answer.producer_id, answer.producer_epoch
        self._sequence = 0

    def write(self, protocol: int) -> None:
        """Everything of the next transaction but its end."""
        self.begun += 1
        produce_version, commit_version, _ = VERSIONS[protocol]
        producer = self._producer
        if protocol == 1:
            self._retried(lambda: max(producer.add((TOPIC, range(PARTITIONS)))))
            self._retried(lambda: producer.add_offsets(GROUP))
        for index in range(PARTITIONS):
            self._retried(lambda each=index: self._produce(each, produce_version))  # type: ignore[misc]
        self._sequence += 1
        self._retried(lambda: self._commit_offset(commit_version))

    def _retried(self, ask: Any) -> None:
        """Ask until it succeeds."""
        deadline_s = time.monotonic() + OPEN_S_MAX
        while (code := ask()) != ErrorCode.NONE:
            assert code in LATER, ErrorCode(code)
            assert time.monotonic() < deadline_s, f"{ErrorCode(code)} for too long"
            time.sleep(PAUSE_S)

    def _produce(self, index: int, version: int) -> int:
        producer_id, epoch = self._producer.pair
        batch = batch_of(
            b"%d" % self.begun,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequence,
            is_transactional=True,
        )
        data = m.ProduceRequestTopic(name=TOPIC, partition_data=[m.ProduceRequestPartition(index=index, records=batch)])
        name = self._producer.transactional_id
        request = m.ProduceRequest(transactional_id=name, acks=-1, timeout_ms=10_000, topic_data=[data])
        return int(self._client.ask(version, request).responses[0].partition_responses[0].error_code)

    def _commit_offset(self, version: int) -> int:
        place = m.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=self.begun, committed_metadata="", committed_leader_epoch=-1
        )
        request = m.TxnOffsetCommitRequest(
            transactional_id=self._producer.transactional_id,
            group_id=GROUP,
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.producer_epoch,
            topics=[m.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[place])],
        )
        return int(self._client.ask(version, request).topics[0].partitions[0].error_code)

    def end(self, protocol: int, *, commit: bool) -> None:
        answer = self._producer.end(commit=commit, version=VERSIONS[protocol][2])
        assert answer.error_code == ErrorCode.NONE, answer
        (self.committed if commit else self.aborted).add(self.begun)
        if protocol == 2:
            self._take(answer)

    def wait_complete(self) -> None:
        """Until the coordinator has no transaction that is open or decided."""
        deadline_s = time.monotonic() + OPEN_S_MAX
        while (state := self._producer.describe().transaction_state) in ("Ongoing", "PrepareCommit", "PrepareAbort"):
            assert time.monotonic() < deadline_s, f"the transaction stays {state}"
            time.sleep(PAUSE_S)

    # What is there

    def check(self, *, waits: bool) -> None:
        """Everything committed is visible in every partition, and in the group; nothing aborted is, and no part.

        What was left open is aborted by time if the check `waits`, and otherwise by a new producer.
        """
        self._retried(lambda: self._producer.describe().error_code)
        if not waits:
            self.begin()
        self.wait_complete()
        read = [self._visible(index) for index in range(PARTITIONS)]
        assert all(each == read[0] for each in read), f"torn: {[sorted(set(read[0]) ^ set(each)) for each in read]}"
        assert len(read[0]) == len(set(read[0])), f"duplicates: {read[0]}"
        visible = set(read[0])
        assert self.committed <= visible, f"lost: {sorted(self.committed - visible)}"
        assert not self.aborted & visible, f"aborted, and visible: {sorted(self.aborted & visible)}"
        assert visible <= set(range(1, self.begun + 1))
        assert self._committed_offset() == max(visible, default=-1)

    def _visible(self, index: int) -> list[int]:
        """What a read_committed consumer shows of a partition, which has to be what the markers say."""
        deadline_s = time.monotonic() + OPEN_S_MAX
        while (answer := self._fetch(index, 0)).last_stable_offset < answer.high_watermark:
            assert time.monotonic() < deadline_s, f"{TOPIC}-{index} is stable up to {answer.last_stable_offset} only"
            time.sleep(PAUSE_S)
        shown: list[int] = []
        batches: list[bytes] = []
        offset, end_offset = 0, answer.last_stable_offset
        while offset < end_offset:
            answer = self._fetch(index, offset)
            found = [bytes(each) for each in whole_batches(bytes(answer.records))]
            aborted = [(each.first_offset, each.producer_id) for each in answer.aborted_transactions]
            shown += _shown(found, aborted)
            batches += found
            offset = parse_header(found[-1]).next_offset
        stored, left_open = committed_records(batches)
        assert not left_open
        assert shown == [int(value) for _, value in sorted(stored.items())], "not what the markers say"
        return shown

    def _fetch(self, index: int, offset: int) -> Any:
        wanted = m.FetchRequestPartition(partition=index, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = m.FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=READ_COMMITTED,
            topics=[m.FetchRequestTopic(topic=TOPIC, partitions=[wanted])],
            session_epoch=-1,
        )
        (answer,) = self._client.ask(11, request).responses[0].partitions
        assert answer.error_code == ErrorCode.NONE
        return answer

    def _committed_offset(self) -> int:
        topics = [m.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
        request = m.OffsetFetchRequest(group_id=GROUP, topics=topics, require_stable=True)
        deadline_s = time.monotonic() + OPEN_S_MAX
        while (answer := self._client.ask(7, request)).error_code in LATER and time.monotonic() < deadline_s:
            time.sleep(PAUSE_S)
        assert answer.error_code == ErrorCode.NONE, answer
        (place,) = answer.topics[0].partitions
        assert place.error_code == ErrorCode.NONE, place
        return int(place.committed_offset)


def _shown(batches: Sequence[bytes], aborted: Sequence[tuple[int, int]]) -> list[int]:
    """The values of one response, without those of the transactions that it names as aborted."""
    left, aborting, shown = sorted(aborted), set[int](), list[int]()
    for batch in batches:
        header = parse_header(batch)
        while left and left[0][0] <= header.last_offset:
            aborting.add(left.pop(0)[1])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif header.producer_id not in aborting:
            shown += [int(each.value or b"") for each in decode_records(batch)]
    return shown
