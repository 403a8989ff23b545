"""The topics of a test's cluster: a topic that is made again has another id."""

from __future__ import annotations

from flowstone.coordinator.groups.topics import GroupTopic


class NamedTopics:
    def __init__(self) -> None:
        self.version = 0
        self._topics: dict[str, GroupTopic] = {}
        self._names: dict[bytes, str] = {}

    def become(self, counts: dict[str, int]) -> None:
        self.version += 1
        before = self._topics
        self._topics = {
            name: GroupTopic(name, before[name].topic_id if name in before else self._new_id(name), count)
            for name, count in counts.items()
        }
        self._names |= {topic.topic_id: name for name, topic in self._topics.items()}

    def _new_id(self, name: str) -> bytes:
        return f"{name}{self.version}".encode().ljust(16)

    def partition_count(self, name: str) -> int:
        topic = self._topics.get(name)
        return 0 if topic is None else topic.partition_count

    def find(self, name: str) -> GroupTopic | None:
        return self._topics.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        name = self._names.get(topic_id)
        return name if name in self._topics and self._topics[name].topic_id == topic_id else None

    def names(self) -> list[str]:
        return sorted(self._topics)

    def former_name(self, topic_id: bytes) -> str:
        """The name of a topic that may have been deleted."""
        return self._names[topic_id]

    def id_of(self, name: str) -> bytes:
        return self._topics[name].topic_id
