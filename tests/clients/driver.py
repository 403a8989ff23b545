"""What the tests ask of a client: one small face, which each library wears in a file of its own.

A test says what a user would want (produce these, read from there) and runs with every library. A driver translates and
adds nothing: no retries, no waiting beyond the library's own, and every refusal becomes `Refused` with Kafka's code.
Only partitions of one's own choice are read here; the members of groups are in `group_members`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from flowstone.errors import ErrorCode

TIMEOUT_S = 15
TIMEOUT_MS = TIMEOUT_S * 1000
FETCH_WAIT_MS = 20
NO_COMPRESSION = "none"
# See `hunted`.
CLUSTER_VARIABLE = "FLOWSTONE_CLIENTS_CLUSTER"
IS_CLUSTER = CLUSTER_VARIABLE in os.environ
REPLICATION_FACTOR = 3 if IS_CLUSTER else 1


def sends_once(acks: str, *, idempotent: bool) -> bool:
    """Whether a producer is to be idempotent: if the test says so or, where brokers die, if it can be."""
    return idempotent or (IS_CLUSTER and acks == "all")


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as a program hands it over. Without a partition the library chooses, by the key if there is one."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Received:
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


class Refused(Exception):
    """The broker's answer, as the library reports it."""

    def __init__(self, code: int, told: object = "") -> None:
        super().__init__(f"{ErrorCode(code).name}: {told}")
        self.code = ErrorCode(code)


class Driver(Protocol):
    """One library, used by one thread."""

    name: ClassVar[str]
    codecs: ClassVar[tuple[str, ...]]

    def __init__(self, bootstrap: str) -> None: ...

    def close(self) -> None: ...

    def produce(
        self,
        topic: str,
        records: Sequence[Sent],
        *,
        acks: str = "all",
        compression: str = NO_COMPRESSION,
        idempotent: bool = False,
        transactional_id: str | None = None,
        size_bytes_max: int | None = None,
    ) -> list[tuple[int, int]]:
        """Partition and offset of each record, once each is acknowledged; with acks=0 nobody knows the offsets."""

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        """That many records from the offset on."""

    def consume_from_beginning(self, topic: str, partition: int, count: int) -> list[Received]: ...

    def position_at_end(self, topic: str, partition: int) -> int:
        """Where a consumer stands that was told to seek to the end."""

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]: ...

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None: ...

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def topics(self) -> set[str]: ...

    def partition_count(self, topic: str) -> int: ...

    def create_partitions(self, topic: str, total: int) -> None: ...

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """The partition's new first offset."""

    def topic_configs(self, topic: str) -> dict[str, str]: ...

    def alter_topic_config(self, topic: str, name: str, value: str) -> None: ...
