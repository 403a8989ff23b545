"""Reader of a topic's records from chosen offsets, for `flowstone consume`.

Partitions are read directly, without a group, and nothing is committed. Without `follow`, a reader stops at the end
that each partition had when it was created, so it stops even while others write.
"""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from flowstone.cli.common.clients import REQUEST_TIMEOUT_S, connect, explain, find_topic, reader_config
from flowstone.cli.common.errors import CommandError

RECORDS_PER_CALL = 1000
POLL_S = 0.5
SILENCE_MAX_S = 30.0


class Reader:
    """One pass over a topic's partitions, from chosen offsets to their current ends."""

    def __init__(self, bootstrap: str, topic: str, partition: int | None) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        known = sorted(find_topic(connect(bootstrap), bootstrap, topic).partitions)
        if partition is not None and partition not in known:
            raise CommandError(f"{topic} has no partition {partition}: its partitions are 0 to {known[-1]}")
        self._consumer: Consumer = Consumer(reader_config(bootstrap))
        try:
            self._bounds = {
                each: self._consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=REQUEST_TIMEOUT_S)
                for each in (known if partition is None else [partition])
            }
        except KafkaException as error:
            self._consumer.close()
            raise explain(error, bootstrap) from None
        self._starts = {each: first for each, (first, _end) in self._bounds.items()}

    def close(self) -> None:
        self._consumer.close()

    def seek_end(self) -> None:
        self._starts = {each: end for each, (_first, end) in self._bounds.items()}

    def seek_offset(self, offset: int) -> None:
        for each, (first, end) in self._bounds.items():
            if not first <= offset <= end:
                raise CommandError(
                    f"partition {each} of {self._topic} has offsets {first} to {end}, not {offset}: "
                    "choose one of those, or one partition with --partition"
                )
            self._starts[each] = offset

    def seek_time(self, time_ms: int) -> None:
        asked = [TopicPartition(self._topic, each, time_ms) for each in self._bounds]
        try:
            found = self._consumer.offsets_for_times(asked, timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise explain(error, self._bootstrap) from None
        for each in found:
            # Negative: no record is at or after the time.
            self._starts[each.partition] = each.offset if each.offset >= 0 else self._bounds[each.partition][1]

    def read(self, *, follow: bool) -> Iterator[list[Message]]:
        """Yield the records in lists, as they arrive."""
        open_partitions = {each for each, start in self._starts.items() if follow or start < self._bounds[each][1]}
        self._consumer.assign([TopicPartition(self._topic, each, self._starts[each]) for each in open_partitions])
        while open_partitions:
            yield [
                message
                for message in self._next_messages(follow)
                if not self._is_beyond(message, open_partitions, follow)
            ]

    def _next_messages(self, follow: bool) -> list[Message]:
        """Wait for one message; return it with all others that have arrived."""
        waited_s = 0.0
        # Short waits, because an interrupt is handled only between them.
        while (first := self._consumer.poll(POLL_S)) is None:
            waited_s += POLL_S
            if waited_s >= SILENCE_MAX_S and not follow:
                reason = f"no records from {self._bootstrap} for {SILENCE_MAX_S:.0f} s"
                raise CommandError(f"{reason}: see the broker's log")
        return [first, *self._consumer.consume(RECORDS_PER_CALL, 0)]

    def _is_beyond(self, message: Message, open_partitions: set[int], follow: bool) -> bool:
        """Return whether the message must be ignored; mark partitions that are read to their end."""
        error, partition, offset = message.error(), message.partition(), message.offset()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return True  # the library asks for a coordinator of a group that is not used
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise explain(error, self._bootstrap)
        if follow:
            return error is not None
        assert partition is not None
        assert offset is not None
        end = self._bounds[partition][1]
        if offset >= end - 1:
            open_partitions.discard(partition)
        return error is not None or offset >= end
