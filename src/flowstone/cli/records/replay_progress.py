"""The progress of a replay, stored in the cluster as the committed offsets of a consumer group.

There it survives the replaying machine, is stored next to the records, and `flowstone group describe` shows the
replay's lag. It is deleted with the source topic: a replay of a topic that was created again starts from the beginning.
The group's offsets are the next records to send; their metadata contains the range, so that "now" still means the time
when the replay started. The group is deleted when the replay is complete.

Offsets are committed after the records are stored, so a killed replay sends the records since its last commit again: at
most about a second of records. An interrupted one (Ctrl-C) commits first and repeats nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from flowstone.cli.common.clients import REQUEST_TIMEOUT_S, explain, result_of
from flowstone.cli.common.errors import CommandError


class Span(NamedTuple):
    """A range of offsets of one partition, from the next one to send to `end`, exclusive."""

    start: int
    position: int  # the next offset to send
    end: int


class ReplayProgress:
    def __init__(self, admin: AdminClient, bootstrap: str, source: str, target: str, asked: Mapping[str, str]) -> None:
        """`asked` is the requested range, by the options' names."""
        self._admin, self._bootstrap, self._source = admin, bootstrap, source
        self._asked = dict(asked)
        self.group_id = f"flowstone-replay.{source}.{target}"

    def load(self) -> dict[int, Span]:
        """Return where an interrupted replay continues, empty if there is none.

        Raises CommandError if the stored progress is that of a different range.
        """
        request = ConsumerGroupTopicPartitions(self.group_id)
        future = self._admin.list_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT_S)[self.group_id]
        spans = {}
        for each in result_of(future, self._bootstrap).topic_partitions:
            if each.topic != self._source or each.offset < 0:
                continue
            told = _read(each.metadata)
            if told is None or told["asked"] != self._asked:
                raise CommandError(
                    f"a replay of {_range(told)} was interrupted: use the same options to continue it, or --restart"
                )
            spans[each.partition] = Span(told["start"], each.offset, told["end"])
        return spans

    def save(self, spans: Mapping[int, Span]) -> None:
        offsets = [
            ClientPartition(
                self._source,
                partition,
                span.position,
                json.dumps({"asked": self._asked, "start": span.start, "end": span.end}),
            )
            for partition, span in spans.items()
        ]
        if offsets:
            request = ConsumerGroupTopicPartitions(self.group_id, offsets)
            future = self._admin.alter_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT_S)
            for each in result_of(future[self.group_id], self._bootstrap).topic_partitions:
                if each.error is not None:
                    raise explain(each.error, self._bootstrap)

    def forget(self) -> None:
        """Delete the progress of a replay that is complete or starts again."""
        try:
            self._admin.delete_consumer_groups([self.group_id], request_timeout=REQUEST_TIMEOUT_S)[
                self.group_id
            ].result()
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.NON_EMPTY_GROUP):
                raise explain(error, self._bootstrap) from None


def _range(told: dict[str, Any] | None) -> str:
    if told is None:
        return "another range"
    return " ".join(f"--{name} '{value}'" for name, value in told["asked"].items())


def _read(metadata: str | None) -> dict[str, Any] | None:
    try:
        told = json.loads(metadata or "")
        return told if isinstance(told["asked"], dict) and int(told["start"]) <= int(told["end"]) else None
    except (ValueError, TypeError, KeyError):
        return None
