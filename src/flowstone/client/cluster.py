"""`Cluster`: the blocking interface to a cluster, for programs without an event loop.

Blocking, and not thread-safe: one for each process, or thread, and bootstrap address. A thin client for our own readers
and writers of whole batches (Spark, Arrow); for records one by one there are Kafka's clients.

Every call is retried through leader changes, refused connections and timeouts until nothing has succeeded for
`deadline_s`; then it raises a `ClientError`.
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
from flowstone.client.groups import CommittedOffset, GroupOffsets
from flowstone.client.offsets import ListedOffset, list_offsets
from flowstone.client.response_buffers import ReceiveBuffers
from flowstone.client.retry_deadline import RetryDeadline
from flowstone.client.security import ClientSecurity
from flowstone.client.topics import DescribedTopic, describe_topics, ensure_topics
from flowstone.client.transactions import Identity, Transaction, begin
from flowstone.types import TopicPartition

DEADLINE_S = 60.0
# Bytes in a fetch response besides the records: aborted transactions, usually none.
RESPONSE_OVERHEAD_BYTES = 64 << 10


class Cluster:
    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "flowstone",
        deadline_s: float = DEADLINE_S,
        security: ClientSecurity | None = None,
    ) -> None:
        """Create the client without connecting. Raises BadAddress if `bootstrap` is not a list of HOST:PORT.

        `security` says how to connect and log in; None: see `security.security_of`.
        """
        self.bootstrap, self._deadline_s = bootstrap, deadline_s
        self.brokers = Brokers(bootstrap, client_id, security)
        self._groups = GroupOffsets(self.brokers)
        self._buffers = ReceiveBuffers(FETCH_BYTES_MAX + RESPONSE_OVERHEAD_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, which are made again if the client is used afterwards."""
        self.brokers.close()

    def topics(self, names: Sequence[str] | None = None, *, deadline_s: float | None = None) -> dict[str, int]:
        """Return the topics and their numbers of partitions; None: all but internal ones. Unknown ones are absent.

        Raises GaveUp, which names the addresses, if no broker answers within `deadline_s`; None: within the cluster's.
        """
        found = self.describe_topics(names, deadline_s=deadline_s)
        return {name: each.partition_count for name, each in found.items()}

    def describe_topics(
        self, names: Sequence[str] | None = None, *, deadline_s: float | None = None
    ) -> dict[str, DescribedTopic]:
        """Return the topics as `topics` does, with their ids, which differ after a topic is recreated.

        Raises GaveUp if no broker answers.
        """
        deadline = RetryDeadline(self._deadline_s if deadline_s is None else deadline_s, from_now=True)
        return describe_topics(self.brokers, names, deadline)

    def ensure_topics(self, names: Sequence[str]) -> dict[str, int]:
        """Return how many partitions each topic has, after the broker created those that were missing.

        Topics that the broker does not create (auto.create.topics.enable=false) are absent.
        """
        return ensure_topics(self.brokers, names, self._deadline_s)

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, ListedOffset]:
        """Return for each partition EARLIEST, LATEST, or for a timestamp in ms the first record at or after it.

        With `read_committed` LATEST is the last stable offset. Raises UnknownTopic.
        """
        return list_offsets(self.brokers, wanted, RetryDeadline(self._deadline_s), read_committed=read_committed)

    def wait_for_records(
        self, ends: Mapping[TopicPartition, int], timeout_s: float, *, read_committed: bool = False
    ) -> None:
        """Return when a partition has something at or after its offset, or after `timeout_s`.

        May return early without new records. `list_offsets` tells where a log ends, and raises errors.
        """
        with suppress(Retriable):
            wait_for_records(self.brokers, ends, timeout_s, read_committed=read_committed)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's committed offsets; partitions without one are absent."""
        return self._groups.committed(group, partitions, RetryDeadline(self._deadline_s))

    def stable_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Return all offsets of the group, after waiting until no open transaction can change one."""
        return self._groups.all_stable(group, RetryDeadline(self._deadline_s))

    def begin_transaction(self, transactional_id: str, timeout_ms: int) -> Transaction:
        """Begin a transaction as the only producer of the transactional id; see `transactions.begin`."""
        return begin(self.brokers, transactional_id, timeout_ms, self._deadline_s)

    def transaction(self, identity: Identity) -> Transaction:
        """Return a transaction that another process has begun."""
        return Transaction(self.brokers, identity, self._deadline_s)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit offsets as a consumer outside the group's membership. Raises Refused if the group has members."""
        self._groups.commit(group, offsets, metadata, RetryDeadline(self._deadline_s))

    def fetch(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        read_committed: bool = False,
        topic_id: bytes | None = None,
    ) -> Iterator[Fetched]:
        """Yield the batches with the offsets from `start` to before `end`. See `fetching` for where the range ends.

        The yielded batches stay valid while the caller holds them; their memory is reused afterwards. Several ranges
        may be read alternately. Raises OffsetsLost, OffsetsNotWritten or UnknownTopic, and TopicRecreated if the topic
        has another id than `topic_id`, unless that is None.
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
            topic_id=topic_id,
        )
        return reader.read()
