"""What may become of a group's offsets and partitions, given what its members were told. Pure.

Offsets only ever grow here: a member begins where the last commit is, and commits what it has read. So of each
partition it is enough to keep the highest offset that was sent in a commit and the highest that was acknowledged. What
was sent and never answered is unknown, not failed: the offset found later lies between the two.

`anomalies` says what is wrong (G1 to G4); an empty list is the only good answer. Members are threads: what is noted is
noted under a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from flowstone.types import TopicPartition

from .checker import Anomaly

NOT_COMMITTED = -1


class GroupHistory:
    def __init__(self) -> None:
        self.anomalies: list[Anomaly] = []
        self.acknowledged_count = 0
        self.refused_count = 0  # commits of fenced members
        self.generations: set[int] = set()
        self._lock = threading.Lock()
        self._sent: dict[TopicPartition, int] = {}
        self._acknowledged: dict[TopicPartition, int] = {}
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        self._delivered: dict[TopicPartition, set[int]] = {}

    # What members note

    def own(self, member_id: str, generation: int, partitions: Collection[TopicPartition]) -> None:
        """The member was told its assignment (G1)."""
        with self._lock:
            self.generations.add(generation)
            for partition in partitions:
                owner = self._owners.setdefault((generation, partition), member_id)
                if owner != member_id:
                    self._note("double owner", partition, generation, f"{owner} and {member_id}")

    def deliver(self, partition: TopicPartition, offsets: Collection[int]) -> None:
        with self._lock:
            self._delivered.setdefault(partition, set()).update(offsets)

    def send_commit(self, partition: TopicPartition, offset: int) -> None:
        """To be noted before it is sent."""
        with self._lock:
            self._sent[partition] = max(offset, self._sent.get(partition, NOT_COMMITTED))

    def acknowledge_commit(self, partition: TopicPartition, offset: int) -> None:
        with self._lock:
            self.acknowledged_count += 1
            self._acknowledged[partition] = max(offset, self._acknowledged.get(partition, NOT_COMMITTED))

    def answer_fenced_commit(self, partition: TopicPartition, who: str, *, accepted: bool) -> None:
        """A member that is not in the current generation has tried to commit (G2)."""
        with self._lock:
            self.refused_count += 1
            if accepted:
                self._note("fenced commit", partition, NOT_COMMITTED, f"{who} was taken at its word")

    def refuse(self, partition: TopicPartition, reason: str) -> None:
        """A member heard an error that no member should hear."""
        with self._lock:
            self._note("refusal", partition, NOT_COMMITTED, reason)

    # What is checked

    def acknowledged(self) -> dict[TopicPartition, int]:
        """What is promised from now on."""
        with self._lock:
            return dict(self._acknowledged)

    def check_committed(self, committed: Mapping[TopicPartition, int], promised: Mapping[TopicPartition, int]) -> None:
        """Holds offsets that were found to what was `acknowledged` before they were asked for (G3, G4)."""
        with self._lock:
            for partition, offset in committed.items():
                least, most = promised.get(partition, NOT_COMMITTED), self._sent.get(partition, NOT_COMMITTED)
                if offset < least:
                    self._note("commit regression", partition, offset, f"{least} was acknowledged")
                if offset > most:
                    self._note("phantom commit", partition, offset, f"{most} is the highest ever sent")
                missing = set(range(offset)) - self._delivered.get(partition, set())
                if missing:
                    detail = f"{len(missing)} records before it never reached the group, {min(missing)} first"
                    self._note("skipped record", partition, offset, detail)

    def _note(self, kind: str, partition: TopicPartition, offset: int, detail: str) -> None:
        self.anomalies.append(Anomaly(kind, partition, offset, detail))
