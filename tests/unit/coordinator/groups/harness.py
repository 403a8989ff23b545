"""A group shard with the runtime's rules around it and nothing else: a list for the log, a number for the clock.

Records are appended and replayed right after the call that gave them. Replies are held until everything appended before
them is committed. A crash keeps the log up to some point at or after what was committed, and loses every waiting reply.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flowstone.config import GroupSettings
from flowstone.coordinator.effects import Effects, TransactionalProducer
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.records import GroupRecord
from flowstone.coordinator.groups.shard import GroupShard
from flowstone.coordinator.groups.topics import GroupTopic, Topics
from flowstone.memory_budget import MemoryBudget
from flowstone.types import TopicPartition
from flowstone.wire.end_markers import EndMarker

MEMORY_BYTES = 256 << 20
START_MS = 1_700_000_000_000


def subscription(topics: list[str], user_data: str = "", owned: str = "") -> bytes:
    """A consumer's subscription, version 1, as clients send it; partitions are written t-0,t-1."""
    names = b"".join(_string(topic) for topic in topics)
    data = user_data.encode()
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", len(data)) + data + _partitions(owned)


def assignment(partitions: str) -> bytes:
    """A consumer's assignment, version 0; nothing at all for nothing, as a coordinator gives it."""
    return struct.pack(">h", 0) + _partitions(partitions) + struct.pack(">i", -1) if partitions else b""


def _partitions(partitions: str) -> bytes:
    entries = [partition.rsplit("-", 1) for partition in partitions.split(",") if partition]
    packed = (_string(topic) + struct.pack(">ii", 1, int(number)) for topic, number in entries)
    return struct.pack(">i", len(entries)) + b"".join(packed)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def written(partitions: frozenset[TopicPartition]) -> str:
    return ",".join(str(partition) for partition in sorted(partitions))


class ManyTopics:
    """Topics of any name with many partitions, but for those in `deleted`."""

    def __init__(self) -> None:
        self.deleted: set[str] = set()

    def partition_count(self, name: str) -> int:
        return 0 if name in self.deleted else 1 << 20

    @property
    def version(self) -> int:
        return len(self.deleted)

    def find(self, name: str) -> GroupTopic | None:
        return None if name in self.deleted else GroupTopic(name, name.encode().ljust(16), 1 << 20)

    def name_of(self, topic_id: bytes) -> str | None:
        name = topic_id.decode().strip()
        return None if name in self.deleted else name


def default_settings(group_id: str) -> GroupSettings:
    return GroupSettings()


class InTransaction(NamedTuple):
    """What a producer has appended as a part of its transaction: records, or its end."""

    producer: TransactionalProducer
    records: tuple[GroupRecord, ...]
    marker: EndMarker | None


class Coordinator:
    def __init__(self, config: GroupConfig, on_reply: Callable[[Any, Any], None], topics: Topics | None = None) -> None:
        self.config = config
        self.now_ms = START_MS
        self.log: list[GroupRecord | InTransaction] = []
        self.committed = 0
        self.commits_at_once = True
        self._on_reply = on_reply
        self._held: deque[tuple[int, Any, Any]] = deque()
        self._ids = itertools.count(1)
        self.budget = MemoryBudget(MEMORY_BYTES)
        self.topics: Topics = ManyTopics() if topics is None else topics
        self.settings = default_settings
        self.shard = self._new_shard()
        self.shard.loaded(self.now_ms)

    def take(self, effects: Effects[GroupRecord]) -> None:
        if effects.producer is not None:
            self.log.append(InTransaction(effects.producer, tuple(effects.records), effects.marker))
            self._replay(self.log[-1:])
        else:
            self.log.extend(effects.records)
            self.shard.replay(effects.records)
        self._held.extend((len(self.log), token, response) for token, response in effects.replies)
        if self.commits_at_once:
            self.commit()

    def commit(self) -> None:
        self.committed = len(self.log)
        while self._held and self._held[0][0] <= self.committed:
            _, token, response = self._held.popleft()
            self._on_reply(token, response)

    def advance(self, duration_ms: int) -> None:
        """Let time pass, with a tick at every deadline on the way."""
        end_ms = self.now_ms + duration_ms
        while (deadline_ms := self.shard.next_deadline()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.take(self.shard.tick(self.now_ms))
        self.now_ms = end_ms

    def reload(self, log_end: int | None = None) -> None:
        """The coordinator is gone, and another one has loaded what the log kept."""
        log_end = len(self.log) if log_end is None else log_end
        assert log_end >= self.committed, "what is committed is not lost"
        del self.log[log_end:]
        self._held.clear()
        self.shard.close()
        self.shard = self._new_shard()
        self._replay(self.log)
        self.take(self.shard.loaded(self.now_ms))
        self.commit()

    def _replay(self, log: Sequence[GroupRecord | InTransaction]) -> None:
        for entry in log:
            if not isinstance(entry, InTransaction):
                self.shard.replay([entry])
            elif entry.marker is None:
                self.shard.replay(entry.records, entry.producer)
            else:
                self.shard.replay_marker(entry.producer, entry.marker)

    def _new_shard(self) -> GroupShard:
        return GroupShard(
            self.config, lambda prefix: f"{prefix}-{next(self._ids)}", self.budget, self.topics, self.settings
        )
