"""The commands of the fetch scenarios: broker 2 follows partitions of broker 1, and the trace tells what it asks for.

- `follow a b epoch=1 isr=1,2`: the cluster has decided on these (`a` is partition 0, and so on), or decides anew;
- `unfollow a`: broker 1 leads it no more; `fail a`: it could not be cut; `throttle 100`: so many bytes a second;
- `ask`: the next request: in which session and epoch, who is named with which offset (and the epoch of its last record
  after a slash; where its log starts, if not at 0), who is forgotten, and how long the leader may take if less than
  usual;
- `when`: after how many seconds there is something to ask for;
- `answer 7 a=+2 b=-6 c=1/5 d=>9`: the leader answers in session 7 that `a` has two records more, `b` error 6, `c`
  diverged at epoch 1, offset 5, and `d` was asked for out of range, while the log starts at 9; `e=from3` that all is
  committed, and what lies before 3 deleted; `bytes=900000` is how long the records are. The trace tells what must be
  done before the next request;
- `refuse 70`: the leader answers with an error for all; `lose`: the connection breaks;
- `flush`: what was appended is on disk; `cut`: what diverged is cut; `wait 0.1`: so many seconds pass.
"""

from __future__ import annotations

import asyncio

from flowstone.cluster.image.cluster_image import PartitionImage
from flowstone.config import LONG_MAX
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import PartitionDirectory
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.replication.lease import Lease
from flowstone.replication.partition import Partition
from flowstone.replication.replica_fetch_session import DueCut, Limits, ReplicaFetchSession
from flowstone.replication.services import ReplicaServices
from flowstone.replication.throttle import Throttle
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponsePartition,
    FetchResponseTopic,
)
from flowstone.wire.record_batch import Record, build_batch
from tests.support.partitions import ON_DISK, Flusher, flush
from tests.unit.replication.replicas import Cutting

FOLLOWER, LEADER = 2, 1
BROKER_EPOCH = 102
MAX_WAIT_MS = 500
TOPIC_ID = bytes(range(16))


class FetchInterpreter:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.throttle = Throttle(LONG_MAX)
        self.fetches = ReplicaFetchSession(FOLLOWER, Limits(MAX_WAIT_MS, 10 << 20, 1 << 20), self.throttle)
        self.partitions: dict[str, Partition] = {}
        self.due_cuts: list[DueCut] = []
        self.trace: list[str] = []
        self._services = ReplicaServices(
            Lease(lambda: self.now_s),
            lambda: self.now_s,
            Cutting(),
            30.0,
            lambda partition, isr: None,
            SimulatedClock().call_later,
        )

    def run(self, line: str) -> list[str]:
        self.trace = []
        command, *words = line.split()
        getattr(self, f"_{command}")(*words)
        return self.trace

    def _follow(self, *words: str) -> None:
        named = dict(word.split("=") for word in words if "=" in word)
        isr = tuple(map(int, named.get("isr", "1,2").split(",")))
        for name in (word for word in words if "=" not in word):
            known = self.partitions.get(name)
            epoch = int(named.get("epoch", known.leader_epoch if known is not None else 1))
            state = PartitionImage(LEADER, epoch, known.partition_epoch + 1 if known is not None else 0, (1, 2), isr)
            if known is not None:
                known.update(state, FOLLOWER)
            else:
                self.partitions[name] = Partition(self._log(name), Flusher(), state, FOLLOWER, self._services)
            self.fetches.add(self.partitions[name])

    def _log(self, name: str) -> PartitionLog:
        files, topic_partition = SimulatedFiles(), TopicPartition("t", ord(name) - ord("a"))
        files.make_directory("/data")
        directory = PartitionDirectory(files, f"/data/{topic_partition}", exists=False)
        return PartitionLog(topic_partition, TOPIC_ID, ON_DISK, SimulatedClock(), FileHandles(files, 16), directory)

    def _unfollow(self, *names: str) -> None:
        for name in names:
            self.fetches.remove(self.partitions[name])

    def _throttle(self, bytes_per_s: str) -> None:
        self.throttle.bytes_per_s = int(bytes_per_s)

    def _when(self) -> None:
        self.trace.append(f"after {max(0.0, self.fetches.waits_until_s(self.now_s) - self.now_s):g} s")

    def _ask(self) -> None:
        unflushed = [_name(partition) for partition in self.fetches.unflushed()]
        if unflushed:
            self.trace.append(f"not on disk yet: {' '.join(unflushed)}")
            return
        request = self.fetches.request(BROKER_EPOCH, self.now_s)
        named = [
            f"{_letter(each.partition)}@{each.fetch_offset}"
            + (f"/{each.last_fetched_epoch}" if each.last_fetched_epoch >= 0 else "")
            + (f" from {each.log_start_offset}" if each.log_start_offset else "")
            for topic in request.topics
            for each in topic.partitions
        ]
        forgotten = [_letter(each) for topic in request.forgotten_topics_data for each in topic.partitions]
        line = f"session {request.session_id} epoch {request.session_epoch}: {' '.join(named)}".rstrip()
        line += f"; forget {' '.join(forgotten)}" if forgotten else ""
        self.trace.append(line + (f"; at most {request.max_wait_ms} ms" if request.max_wait_ms < MAX_WAIT_MS else ""))

    def _answer(self, session_id: str, *words: str) -> None:
        size_bytes = next((int(word[6:]) for word in words if word.startswith("bytes=")), 1)
        results = [self._result(word, size_bytes) for word in words if not word.startswith("bytes=")]
        topics = [FetchResponseTopic(topic_id=TOPIC_ID, partitions=results)] if results else []
        self._answered(FetchResponse(session_id=int(session_id), responses=topics))

    def _result(self, word: str, size_bytes: int) -> FetchResponsePartition:
        name, told = word.split("=", 1)
        partition = self.partitions[name]
        result = FetchResponsePartition(partition_index=ord(name) - ord("a"), log_start_offset=0, records=b"")
        if told.startswith("+"):
            records = [Record(number, 1_700_000_000_000, None, bytes(size_bytes)) for number in range(int(told[1:]))]
            batch = bytearray(build_batch(records))
            batch[:8] = partition.log.log_end_offset.to_bytes(8, "big")
            batch[12:16] = partition.leader_epoch.to_bytes(4, "big")
            result.records = memoryview(batch)
        elif told.startswith("-"):
            result.error_code = int(told[1:])
            result.log_start_offset = -1
        elif told.startswith(">"):
            result.error_code, result.log_start_offset = ErrorCode.OFFSET_OUT_OF_RANGE, int(told[1:])
        elif told.startswith("from"):
            result.high_watermark, result.log_start_offset = partition.log.log_end_offset, int(told[4:])
        elif told == "damaged":
            result.records = bytes(100)
        elif told:
            epoch, end_offset = map(int, told.split("/"))
            result.diverging_epoch = FetchResponseEpochEndOffset(epoch=epoch, end_offset=end_offset)
        return result

    def _refuse(self, code: str) -> None:
        self._answered(FetchResponse(error_code=int(code)))

    def _answered(self, response: FetchResponse) -> None:
        try:
            self.due_cuts = self.fetches.answered(response, self.now_s)
        except ApiError as error:
            self.trace.append(error.code.name)
            return
        for partition, diverging, restart_offset in self.due_cuts:
            if diverging is not None:
                self.trace.append(f"{_name(partition)}: cut beyond {diverging.epoch}/{diverging.end_offset}")
            else:
                self.trace.append(f"{_name(partition)}: start over at {restart_offset}")
        for partition in self.fetches.unflushed():
            self.trace.append(f"{_name(partition)}: flush to {partition.log.log_end_offset}")

    def _lose(self) -> None:
        self.fetches.disconnected()

    def _flush(self) -> None:
        for partition in self.partitions.values():
            if partition.local.position.offset < partition.log.log_end_offset:
                flush(partition)

    def _cut(self) -> None:
        async def cut() -> None:
            for partition, diverging, restart_offset in self.due_cuts:
                follower = partition.follower_role(partition.leader_epoch)
                if diverging is not None:
                    cutting = asyncio.ensure_future(follower.truncate(diverging))
                else:
                    assert restart_offset is not None
                    cutting = asyncio.ensure_future(follower.reset(restart_offset))
                await asyncio.sleep(0)
                self._flush()
                await cutting

        asyncio.run(cut())

    def _fail(self, name: str) -> None:
        self.fetches.failed(self.partitions[name], self.now_s)

    def _wait(self, seconds: str) -> None:
        self.now_s += float(seconds)


def _letter(index: int) -> str:
    return chr(ord("a") + index)


def _name(partition: Partition) -> str:
    return _letter(partition.topic_partition.partition)
