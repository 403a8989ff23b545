"""The options of the source: parsed, checked and typed without contacting a broker.

Owns the names and defaults; `positions` interprets them for a broker. Every `OptionError` is one sentence that names
the option. Names are the Kafka connector's where it has one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from flowstone.types import TopicPartition, topic_ids_among
from pyspark_flowstone import kafka_options, sink_options
from pyspark_flowstone.kafka_options import CONFIG_FILE, CONNECT_TIMEOUT, connect_timeout_s, is_security_option, secured
from pyspark_flowstone.offsets import EARLIEST, LATEST, Offsets, TopicIds, from_json
from pyspark_flowstone.values import GivenOptions, OptionError

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"
BOOTSTRAP = "kafka.bootstrap.servers"
MAX_TRIGGER_DELAY_DEFAULT_MS = 15 * 60 * 1000
# Options of Spark itself that users also set on a source, with their spelling.
OF_SPARK = ("checkpointLocation", "queryName", "mergeSchema")

NAMES = (
    BOOTSTRAP, CONFIG_FILE, "kafka.group.id", "kafka.isolation.level",
    "subscribe", "subscribePattern", "assign",
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    CONNECT_TIMEOUT, "failOnDataLoss", "includeHeaders", "columns", "isolation.level", "groupId", "filterPushdown",
    "minPartitions", "maxRecordsPerPartition",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger",
)  # fmt: skip
_SPELLED = {name.lower(): name for name in NAMES}
_OF_SINK = {name.lower() for name in sink_options.NAMES}
_SPELLED_ELSEWHERE = kafka_options.IGNORED | {name.lower(): name for name in (*sink_options.NAMES, *OF_SPARK)}


class Topics(NamedTuple):
    names: tuple[str, ...]


class Pattern(NamedTuple):
    regex: str


class Assigned(NamedTuple):
    partitions: tuple[TopicPartition, ...]


class Everywhere(NamedTuple):
    """A bound that is EARLIEST or LATEST in every partition."""

    offset: int


class AtOffsets(NamedTuple):
    """A bound with an offset, EARLIEST or LATEST for each partition, and the ids of topics if it names them."""

    offsets: Offsets
    topic_ids: TopicIds = {}  # as in the checkpoint of a streaming query


class AtTimestamp(NamedTuple):
    """A bound at the first record of every partition at or after a time."""

    timestamp_ms: int


class AtTimestamps(NamedTuple):
    timestamps_ms: Offsets


Subscription = Topics | Pattern | Assigned
Bound = Everywhere | AtOffsets | AtTimestamp | AtTimestamps


@dataclass(frozen=True)
class SourceOptions:
    bootstrap: str
    connect_timeout_s: float
    subscription: Subscription
    starting: Bound | None
    ending: Bound | None
    no_late_record_starts_at_latest: bool
    columns: tuple[str, ...]
    group_id: str | None
    fail_on_data_loss: bool
    read_committed: bool
    min_partitions: int | None
    records_per_partition_max: int | None
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_max_ms: int
    bytes_per_trigger_max: int | None
    pushes_filters: bool
    timestamps_are_ordered: bool

    def batch_bounds(self) -> tuple[Bound, Bound]:
        """Return the start and end of a batch read; the default is all available records.

        Raises OptionError if an option does not apply to a batch read.
        """
        starting, ending = self.starting or Everywhere(EARLIEST), self.ending or Everywhere(LATEST)
        _refuse(starting, LATEST, "startingOffsets: a batch read cannot start at latest, where there is nothing yet")
        _refuse(ending, EARLIEST, "endingOffsets: a batch read cannot end at earliest, where nothing has been read yet")
        return starting, ending

    def stream_start(self) -> Bound:
        """Return the start of a new streaming query; the default is the next new record.

        Raises OptionError if an option does not apply to a stream.
        """
        if self.ending is not None:
            raise OptionError(
                "endingOffsets: a streaming query has no end; use the trigger availableNow, or spark.read"
            )
        if self.pushes_filters:
            raise OptionError("filterPushdown: Spark pushes filters into batch reads only; leave it out of a stream")
        return self.starting or Everywhere(LATEST)


def _refuse(bound: Bound, offset: int, sentence: str) -> None:
    is_refused = (isinstance(bound, Everywhere) and bound.offset == offset) or (
        isinstance(bound, AtOffsets) and offset in bound.offsets.values()
    )
    if is_refused:
        raise OptionError(sentence)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the parsed options. Raises OptionError if one is invalid."""
    options = GivenOptions(given)
    _check_names(options)
    starting = _bound(options, "starting")
    maximum, minimum = options.count("maxOffsetsPerTrigger"), options.count("minOffsetsPerTrigger")
    if maximum is not None and minimum is not None and minimum > maximum:
        raise OptionError(f"minOffsetsPerTrigger: {minimum} is more than maxOffsetsPerTrigger allows, {maximum}")
    strategy = options.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    pushdown = options.one_of("filterPushdown", ("false", "true", "ordered"), "false")
    return SourceOptions(
        bootstrap=secured(options.required(BOOTSTRAP, "the broker's address, host:port"), options),
        connect_timeout_s=connect_timeout_s(options),
        subscription=_subscription(options),
        starting=starting,
        ending=_bound(options, "ending"),
        no_late_record_starts_at_latest=strategy == "latest",
        columns=_columns(options),
        group_id=_either(options, "groupId", "kafka.group.id"),
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
        read_committed=_isolation_level(options) == "read_committed",
        min_partitions=options.count("minPartitions"),
        records_per_partition_max=options.count("maxRecordsPerPartition"),
        offsets_per_trigger_max=maximum,
        offsets_per_trigger_min=minimum,
        trigger_delay_max_ms=options.duration_ms("maxTriggerDelay", MAX_TRIGGER_DELAY_DEFAULT_MS),
        bytes_per_trigger_max=options.count("maxBytesPerTrigger"),
        pushes_filters=pushdown != "false",
        timestamps_are_ordered=pushdown == "ordered",
    )


def _check_names(options: GivenOptions) -> None:
    for name in options.names():
        if name in _SPELLED or name in kafka_options.IGNORED or is_security_option(name):
            continue
        if not name.startswith(kafka_options.KAFKA_PREFIX):
            spelled = _SPELLED_ELSEWHERE.get(name) or options.given_name(name)
            hint = "; it is one of the sink" if name in _OF_SINK else _meant(name)
            raise OptionError(f"{spelled}: the source has no such option{hint}")
        _check_kafka_option(name)


def _check_kafka_option(name: str) -> None:
    name = name.removeprefix(kafka_options.KAFKA_PREFIX)
    if name in kafka_options.CONSUMER_TUNING:
        return
    reason = kafka_options.REFUSED.get(name, "")
    raise OptionError(f"kafka.{name}: {reason or 'Kafka consumers have no such setting' + _meant('kafka.' + name)}")


def _meant(name: str) -> str:
    tuning = (kafka_options.KAFKA_PREFIX + each for each in kafka_options.CONSUMER_TUNING)
    close = difflib.get_close_matches(name, [*_SPELLED, *kafka_options.IGNORED, *tuning], n=1)
    return f"; did you mean {_SPELLED.get(close[0]) or kafka_options.IGNORED.get(close[0], close[0])}?" if close else ""


def _subscription(options: GivenOptions) -> Subscription:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if options.get(name) is not None]
    if len(given) != 1:
        told = " and ".join(given) if given else "none"
        raise OptionError(f"subscribe, subscribePattern or assign: the source needs exactly one of them, not {told}")
    if given == ["subscribe"]:
        topics = tuple(sorted({each.strip() for each in options.required("subscribe", "topics").split(",")} - {""}))
        if not topics:
            raise OptionError("subscribe: it names no topic")
        return Topics(topics)
    if given == ["subscribePattern"]:
        regex = options.required("subscribePattern", "a regular expression")
        try:
            re.compile(regex)
        except re.error as error:
            raise OptionError(f"subscribePattern: {regex!r} is not a regular expression ({error})") from error
        return Pattern(regex)
    return Assigned(_assigned(options.json("assign")))


def _assigned(value: Any) -> tuple[TopicPartition, ...]:
    partitions = set()
    for topic, numbers in value.items() if isinstance(value, dict) else ():
        if not isinstance(numbers, list) or not all(type(each) is int and each >= 0 for each in numbers):
            raise OptionError(f"assign: the partitions of topic {topic} are not a list such as [0, 1]")
        partitions |= {TopicPartition(topic, number) for number in numbers}
    if not partitions:
        raise OptionError('assign: it names no partition; it is of the form {"topic": [0, 1]}')
    return tuple(sorted(partitions))


def _bound(options: GivenOptions, which: str) -> Bound | None:
    """Return the bound from the `starting…` or `ending…` options, in the connector's order of precedence."""
    timestamp_ms = options.timestamp_ms(f"{which}Timestamp")
    if timestamp_ms is not None:
        return AtTimestamp(timestamp_ms)
    for name, floor in ((f"{which}OffsetsByTimestamp", 0), (f"{which}Offsets", EARLIEST)):
        text = options.get(name)
        if text is None:
            continue
        if floor == EARLIEST and text.strip().lower() in ("earliest", "latest"):
            return Everywhere(EARLIEST if text.strip().lower() == "earliest" else LATEST)
        if not text.strip().startswith("{"):
            words = "earliest, latest or " if floor == EARLIEST else ""
            raise OptionError(f"{name}: {text!r} is not {words}JSON by topic and partition")
        try:
            values, ids = from_json(options.json(name), floor=floor), topic_ids_among(options.json(name))
        except OptionError:
            raise
        except ValueError as error:
            raise OptionError(f"{name}: {error}") from error
        return AtOffsets(values, ids) if floor == EARLIEST else AtTimestamps(values)
    return None


def _columns(options: GivenOptions) -> tuple[str, ...]:
    text = options.get("columns")
    known = {each.lower(): each for each in (*COLUMNS, HEADERS)}
    wanted = list(COLUMNS)
    if text is not None:
        names = [each.strip().lower() for each in text.split(",")]
        unknown = [each for each in names if each not in known]
        if unknown:
            raise OptionError(f"columns: {unknown[0]!r} is none of {', '.join(known.values())}")
        if len(set(names)) < len(names):
            raise OptionError(f"columns: {text!r} names a column twice")
        wanted = [known[each] for each in names]
    if options.boolean("includeHeaders", False) and HEADERS not in wanted:
        wanted.append(HEADERS)
    return tuple(wanted)


def _either(options: GivenOptions, name: str, other: str) -> str | None:
    """Return the value of an option that has both our name and the Kafka connector's."""
    value, same = options.get(name), options.get(other)
    if value is not None and same is not None and value != same:
        raise OptionError(f"{name}: it says {value!r} and {other} says {same!r}")
    found = value if value is not None else same
    if found is not None and not found.strip():
        raise OptionError(f"{name if value is not None else other}: it is empty")
    return found


def _isolation_level(options: GivenOptions) -> str:
    _either(options, "isolation.level", "kafka.isolation.level")
    name = "isolation.level" if options.get("isolation.level") is not None else "kafka.isolation.level"
    return options.one_of(name, ("read_uncommitted", "read_committed"), "read_uncommitted")
