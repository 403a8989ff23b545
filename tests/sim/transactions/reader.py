"""A reader of committed data, as the strictest client would be written.

It leaves out the batches of aborted transactions with nothing but what the broker lists, and takes the list in the
order in which it comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import FetchResponsePartition
from flowstone.wire.record_batch import CorruptBatch, decode_records, parse_header
from tests.sim.client import Client, Unanswered
from tests.sim.consumer import END_ASKED_SHARE, PAUSE_S_MAX, READ_COMMITTED, PartitionFetches
from tests.support.wire_client import whole_batches

from .history import TransactionHistory

# A follower may hear late that something is committed.
WAITS_MAX = 6


class CommittedReader:
    def __init__(
        self,
        client: Client,
        history: TransactionHistory,
        partition: TopicPartition,
        rack: str = "",
        node_id: int | None = None,
    ) -> None:
        """With a rack it reads from the replica there, if the leader says so; with a node id, from that one alone."""
        self.client, self._history, self._partition = client, history, partition
        where = f" in {rack!r}" if rack else f" of b{node_id}" if node_id is not None else ""
        self.name = f"reader{where}"
        self._fetches = PartitionFetches(client, partition, rack, READ_COMMITTED, node_id)
        self.position = self._end_told = 0
        self.is_stopping = False

    async def run(self) -> None:
        while not self.is_stopping:
            try:
                for offset, value in await self.poll():
                    self._history.see(self._partition, offset, value, self.name)
                if self.client.random.random() < END_ASKED_SHARE:
                    await self.stable_offset()
            except Unanswered:
                await self.client.back_off()
            await self.client.clock.sleep(self.client.random.uniform(0, PAUSE_S_MAX))

    async def poll(self) -> list[tuple[int, bytes]]:
        """Return the committed records that come next; the position moves over all others."""
        code, answer, is_from_leader = await self._fetches.fetch(self.position)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and is_from_leader:
            self._complain("taken back", self.position, "the position is out of range")
        if code is not ErrorCode.NONE:
            raise Unanswered(code.name)
        if answer.last_stable_offset > answer.high_watermark:
            self._complain("last stable offset", answer.last_stable_offset, f"is above {answer.high_watermark}")
        try:
            return [*self._committed(answer)]
        except CorruptBatch as error:
            self._complain("corrupt batch", self.position, str(error))
            return []

    def _committed(self, answer: FetchResponsePartition) -> Iterator[tuple[int, bytes]]:
        listed = [(each.first_offset, each.producer_id) for each in answer.aborted_transactions or ()]
        if listed != sorted(listed):
            self._complain("aborted transactions", self.position, f"are not in order: {listed}")
        to_come, aborting = deque(listed), set[int]()
        assert isinstance(answer.records, bytes | memoryview | None)
        for batch in whole_batches(bytes(answer.records or b"")):
            header = parse_header(batch)
            if header.next_offset <= self.position:
                continue
            if header.base_offset >= answer.last_stable_offset:
                self._complain("last stable offset", header.base_offset, f"and {answer.last_stable_offset} is stable")
            while to_come and to_come[0][0] <= header.last_offset:
                aborting.add(to_come.popleft()[1])
            if header.is_control:
                aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                for each in decode_records(batch):
                    if each.offset >= self.position:
                        yield each.offset, each.value or b""
            self.position = header.next_offset

    async def stable_offset(self) -> int:
        """Return the last stable offset: never below what was read, or was told before."""
        offset = await self._fetches.end_offset()
        if offset < max(self._end_told, self.position):
            detail = f"{self._end_told} was stable, and {self.position} is the position"
            self._complain("end went back", offset, detail)
        self._end_told = offset
        return offset

    async def read_all(self) -> list[tuple[int, bytes]]:
        """Return everything that is committed now. Raises Unanswered."""
        self.position = 0
        end_offset, records, waits = await self.stable_offset(), list[tuple[int, bytes]](), 0
        while self.position < end_offset and waits < WAITS_MAX and not self.is_stopping:
            before = self.position
            records += await self.poll()
            waits = 0 if self.position > before else waits + 1
        if self.position < end_offset:
            self._complain("unseen", self.position, f"nothing is readable from here to {end_offset}")
        return records

    def _complain(self, kind: str, offset: int, detail: str) -> None:
        self._history.note(kind, self._partition, offset, f"{self.name}: {detail}")
        self.is_stopping = True
