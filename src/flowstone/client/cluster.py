"""`Cluster`: what a program without an event loop asks of a cluster.

Blocking, and not thread-safe: one for each process, or thread, and bootstrap address. A thin client for our own readers
and writers of whole batches (Spark, Arrow); for records one by one there are Kafka's clients.

Every call goes on through leader changes, refused connections and timeouts until nothing has succeeded for
`deadline_s`, then raises a `ClientError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from flowstone.client.arrivals import wait_for_records
from flowstone.client.brokers import Brokers
from flowstone.client.errors import Retriable
from flowstone.client.fetching import FETCH_BYTES_MAX, Fetched, RangeReader
from flowstone.client.groups import GroupOffsets
from flowstone.client.offsets import ListedOffset, list_offsets
from flowstone.client.response_buffers import ReceiveBuffers
from flowstone.client.retry_deadline import RetryDeadline
from flowstone.client.topics import ensure_topics, partition_counts
from flowstone.types import TopicPartition

DEADLINE_S = 60.0
# What stands around the records of a fetch response: aborted transactions, as a rule none.
RESPONSE_OVERHEAD_BYTES = 64 << 10


class Cluster:
    def __init__(self, bootstrap: str, *, client_id: str = "flowstone", deadline_s: float = DEADLINE_S) -> None:
        """Nothing is asked yet. BadAddress if `bootstrap` is not HOST:PORT, or several with commas."""
        self.bootstrap, self._deadline_s = bootstrap, deadline_s
        self.brokers = Brokers(bootstrap, client_id)
        self._groups = GroupOffsets(self.brokers)
        self._buffers = ReceiveBuffers(FETCH_BYTES_MAX + RESPONSE_OVERHEAD_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Connections are made again if it is used after."""
        self.brokers.close()

    def topics(self, names: Sequence[str] | None = None, *, deadline_s: float | None = None) -> dict[str, int]:
        """Topics and how many partitions each has; None: all but internal ones. Unknown ones are absent.

        Raises GaveUp, which names the addresses, if no broker answers within `deadline_s`; None: within the cluster's.
        """
        deadline = RetryDeadline(self._deadline_s if deadline_s is None else deadline_s, from_now=True)
        return partition_counts(self.brokers, names, deadline)

    def ensure_topics(self, names: Sequence[str]) -> dict[str, int]:
        """Return how many partitions each topic has, after the broker created those that were missing.

        Topics that the broker does not create (auto.create.topics.enable=false) are absent.
        """
        return ensure_topics(self.brokers, names, self._deadline_s)

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, ListedOffset]:
        """For each partition EARLIEST, LATEST, or a timestamp in ms: the first record at or after it.

        With `read_committed` LATEST is the last stable offset. `UnknownTopic`.
        """
        return list_offsets(self.brokers, wanted, RetryDeadline(self._deadline_s), read_committed=read_committed)

    def wait_for_records(
        self, ends: Mapping[TopicPartition, int], timeout_s: float, *, read_committed: bool = False
    ) -> None:
        """Returns when a partition has something at or after its offset, or after `timeout_s`.

        It may return sooner, and in vain: where a log ends is told by `list_offsets`, which also tells what went wrong.
        """
        with suppress(Retriable):
            wait_for_records(self.brokers, ends, timeout_s, read_committed=read_committed)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's offsets; partitions without one are absent."""
        return self._groups.committed(group, partitions, RetryDeadline(self._deadline_s))

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """As a consumer that stands alone; `Refused` if the group has members."""
        self._groups.commit(group, offsets, metadata, RetryDeadline(self._deadline_s))

    def fetch(
        self, partition: TopicPartition, start: int, end: int, *, read_committed: bool = False
    ) -> Iterator[Fetched]:
        """The batches with the offsets from `start` on, to `end` without it. See `fetching` for where it ends.

        What it yields stays valid for as long as it is held; memory is used again as soon as it is not. Several may be
        read in turn. `OffsetsLost`, `OffsetsNotWritten`, `UnknownTopic`.
        """
        assert start >= 0
        reader = RangeReader(
            self.brokers,
            self._buffers,
            partition,
            start,
            end,
            RetryDeadline(self._deadline_s),
            read_committed=read_committed,
        )
        return reader.read()
