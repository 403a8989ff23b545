"""Creation and reading of topics over the wire with a standard client, for a broker in another process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowstone.embedded.host import BROKERS_DEFAULT, Record, timed_out
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import SystemClock

REQUEST_TIMEOUT_S = 10
# How long one call waits for records; how often a missing topic is looked up again.
POLL_S = 0.1
POLL_RECORDS_MAX = 10_000
# How long the broker waits for more records before it reports the end.
END_WAIT_MS = 10

# confluent-kafka is imported when it is first needed, which is never in thread mode.


class WireReader:
    def __init__(self, bootstrap: str, security: Mapping[str, Any]) -> None:
        self._config: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0, **security}

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        topic = NewTopic(name, num_partitions=partitions, replication_factor=BROKERS_DEFAULT, config=dict(configs))
        admin = AdminClient(self._config)  # the request is processed as long as this object exists
        try:
            admin.create_topics([topic])[name].result(REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise _api_error(error) from error

    def records(self, topic: str, *, read_committed: bool) -> list[Record]:
        config = {**self._config, **_isolation(read_committed), "fetch.wait.max.ms": END_WAIT_MS}
        with _Reading(config, topic) as reading:
            if not reading.find_topic():
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")
            while not reading.is_at_end:
                reading.poll(POLL_S)
            return sorted(reading.records)

    def wait_for(self, topic: str, count: int, timeout: float, *, read_committed: bool) -> list[Record]:
        from confluent_kafka.admin import AdminClient

        deadline = SystemClock().monotonic() + timeout
        admin = AdminClient(self._config)
        while True:
            with _Reading({**self._config, **_isolation(read_committed)}, topic) as reading:
                topic_id = self._read(reading, admin, topic, count, timeout, deadline)
            # A client goes on in a topic that was created again, at the offset where it was in the old one.
            if topic_id == _topic_id(admin, topic):
                return sorted(reading.records)

    def _read(
        self, reading: _Reading, admin: Any, topic: str, count: int, timeout: float, deadline: float
    ) -> str | None:
        """Wait until there are `count` records, and return the topic's id from before they were read."""
        topic_id, has_topic = None, False
        while len(reading.records) < count or not has_topic:
            left_s = deadline - SystemClock().monotonic()
            if left_s <= 0:
                raise timed_out(topic, count, timeout, len(reading.records) if has_topic else None)
            if has_topic:
                reading.poll(min(left_s, POLL_S))
            else:
                topic_id = _topic_id(admin, topic)
                has_topic = reading.find_topic()
        return topic_id


class _Reading:
    """One pass over a topic from its first record."""

    def __init__(self, config: Mapping[str, object], topic: str) -> None:
        from confluent_kafka import Consumer

        self.records: list[Record] = []
        self._topic = topic
        self._consumer: Any = Consumer(
            {
                **config,
                "group.id": "flowstone-embedded",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "allow.auto.create.topics": False,
            }
        )
        self._unfinished: set[int] = set()

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    @property
    def is_at_end(self) -> bool:
        return not self._unfinished

    def find_topic(self) -> bool:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        topic = self._consumer.list_topics(self._topic, REQUEST_TIMEOUT_S).topics[self._topic]
        if topic.error is not None:
            self._consumer.poll(POLL_S)  # limits the rate of retries
            return False
        self._unfinished = set(topic.partitions)
        self._consumer.assign([TopicPartition(self._topic, each, OFFSET_BEGINNING) for each in topic.partitions])
        return True

    def poll(self, timeout_s: float) -> None:
        from confluent_kafka import KafkaError, KafkaException

        first = self._consumer.poll(timeout_s)
        if first is None:
            return
        for message in (first, *self._consumer.consume(POLL_RECORDS_MAX, 0)):
            error = message.error()
            if error is None:
                self.records.append(_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                self._unfinished.discard(message.partition())
            else:
                raise _api_error(KafkaException(error))


def _topic_id(admin: Any, topic: str) -> str | None:
    """Return the id of a topic, or None if it does not exist."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    wanted = TopicCollection([topic])
    try:
        return str(admin.describe_topics(wanted, request_timeout=REQUEST_TIMEOUT_S)[topic].result().topic_id)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise _api_error(error) from error


def _isolation(read_committed: bool) -> dict[str, str]:
    return {"isolation.level": "read_committed" if read_committed else "read_uncommitted"}


def _record(message: Any) -> Record:
    headers = tuple(message.headers() or ())
    return Record(
        message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value(), headers
    )


def _api_error(error: Any) -> ApiError:
    kafka_error = error.args[0]
    code = kafka_error.code()
    known = code in ErrorCode._value2member_map_
    return ApiError(ErrorCode(code) if known else ErrorCode.UNKNOWN_SERVER_ERROR, kafka_error.str())
