"""Reading of dead letters: the records of a pipeline's letters topic, and which were retried or dropped.

Letters are records and stay in their topic as long as its retention has it. What was done with them is in the
pipeline's state, as ranges of offsets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from flowstone.pipeline.connecting import librdkafka_options
from flowstone.pipeline.engine import letters as headers_of
from flowstone.pipeline.errors import PipelineError, TryLater
from flowstone.pipeline.model import PipelineModel
from flowstone.pipeline.operations.letters import offset_sets
from flowstone.pipeline.state import Kind, LettersRecord, StateStore

READ_TIMEOUT_S = 60.0
POLL_S = 1.0
POLL_RECORDS = 500
# More would make the record of the state too large; letters next to each other count as one.
RANGES_MAX = 20_000
OPEN, RETRIED, DROPPED = "open", "retried", "dropped"


@dataclass(frozen=True)
class Letter:
    """One dead letter. `cause` has Kafka Connect's headers without their prefix, `headers` the record's own."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    cause: Mapping[str, str]
    status: str = OPEN

    @property
    def id(self) -> str:
        return f"{self.partition}-{self.offset}"

    @property
    def origin(self) -> str:
        """The record from which the letter was made, as topic-partition@offset; empty if unknown."""
        topic, partition, offset = (self.cause.get(each) for each in ("topic", "partition", "offset"))
        return f"{topic}-{partition}@{offset}" if topic and partition and offset else ""


def record_of(model: PipelineModel, store: StateStore) -> LettersRecord:
    state = store.load()
    state.check_readable(Kind.LETTERS, model.letters_topic)
    return state.letters.get(model.letters_topic) or LettersRecord(model.letters_topic)


def read_letters(model: PipelineModel, record: LettersRecord) -> Iterator[Letter]:
    """Yield the letters of a pipeline, a partition after the other. Raises TryLater without a broker."""
    consumer = Consumer(
        {
            **librdkafka_options(model),
            "group.id": f"{model.name}.letters-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        known = consumer.list_topics(model.letters_topic, timeout=READ_TIMEOUT_S).topics[model.letters_topic]
        if known.error is not None:
            return  # there is no such topic before the first letter
        for number in sorted(known.partitions):
            yield from _partition(consumer, model.letters_topic, number, record)
    except KafkaException as error:
        raise TryLater(f"bootstrap: {error.args[0].str()}; check that the broker is running") from error
    finally:
        consumer.close()


def _partition(consumer: Consumer, topic: str, number: int, record: LettersRecord) -> Iterator[Letter]:
    consumer.assign([TopicPartition(topic, number, 0)])
    until = time.monotonic() + READ_TIMEOUT_S
    while time.monotonic() < until:
        for message in consumer.consume(POLL_RECORDS, POLL_S):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return
            if error is not None:
                raise KafkaException(error)
            until = time.monotonic() + READ_TIMEOUT_S
            yield _letter(message, record)
    raise TryLater(f"topic {topic}: partition {number} could not be read within {READ_TIMEOUT_S:g} s")


def _letter(message: object, record: LettersRecord) -> Letter:
    given = [(name, value) for name, value in message.headers() or ()]  # type: ignore[attr-defined]
    partition, offset = message.partition(), message.offset()  # type: ignore[attr-defined]
    prefix = headers_of.PREFIX
    cause = {
        name.removeprefix(prefix): (value or b"").decode(errors="replace")
        for name, value in given
        if name.startswith(prefix)
    }
    own = tuple((name, value) for name, value in given if not name.startswith(prefix))
    _, time_ms = message.timestamp()  # type: ignore[attr-defined]
    key, value = message.key(), message.value()  # type: ignore[attr-defined]
    return Letter(partition, offset, time_ms, key, value, own, cause, _status(record, partition, offset))


def _status(record: LettersRecord, partition: int, offset: int) -> str:
    if offset_sets.contains(record.retried, partition, offset):
        return RETRIED
    return DROPPED if offset_sets.contains(record.dropped, partition, offset) else OPEN


def chosen(
    model: PipelineModel, record: LettersRecord, ids: Sequence[str], wanted: Callable[[Letter], bool]
) -> list[Letter]:
    """Return the open letters with these ids, or without ids all that are wanted. Raises PipelineError."""
    found = [each for each in read_letters(model, record) if (each.id in ids if ids else wanted(each))]
    missing = set(ids) - {each.id for each in found}
    if missing:
        raise PipelineError(f"there is no letter {min(missing)} in the topic {model.letters_topic}")
    done = next((each for each in found if ids and each.status != OPEN), None)
    if done is not None:
        raise PipelineError(f"the letter {done.id} is {done.status} already")
    return [each for each in found if each.status == OPEN]


def drop(model: PipelineModel, store: StateStore, letters: Sequence[Letter]) -> LettersRecord:
    """Mark letters as dropped; they stay in their topic."""
    record = record_of(model, store)
    dropped = offset_sets.union(record.dropped, offset_sets.of((each.partition, each.offset) for each in letters))
    return store_record(store, replace(record, dropped=dropped))


def store_record(store: StateStore, record: LettersRecord) -> LettersRecord:
    ranges = sum(map(offset_sets.range_count, (record.pending, record.retried, record.dropped)))
    if ranges > RANGES_MAX:
        raise PipelineError(
            f"what was done with the letters of {record.topic} needs {ranges} ranges of offsets, of which "
            f"{RANGES_MAX} can be stored; retry or drop the letters between them, too"
        )
    store.write({(Kind.LETTERS, record.topic): record})
    return record
