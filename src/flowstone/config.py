"""Every setting, once: Kafka's name, its type, default, bounds and a sentence.

The dataclass fields below are the table. DescribeConfigs, AlterConfigs, the command line's help and the documentation
are read off it. Values arrive as text (a file, the environment, a flag, a request); unknown names and values out of
bounds raise `ConfigError` with a sentence for people.

A topic setting is looked up in this order: the topic's own value, the broker's value for it (under the topic's name or
Kafka's broker-wide name, such as `log.retention.hours`), the default.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from flowstone.errors import ConfigError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

Value = bool | int | float | str | tuple[str, ...]


class Kind(IntEnum):
    """The types of settings, with DescribeConfigs' numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: Kind
    default: Value
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    # Kafka's broker-wide names for a topic setting, first one wins, each with its factor to this setting's unit.
    broker_names: tuple[tuple[str, int], ...] = ()
    read_only: bool = True

    def parse(self, text: str) -> Value:
        text = text.strip()
        try:
            value = self._convert(text)
        except ValueError:
            raise ConfigError(f"{self.name}: {text!r} is not {_ARTICLES[self.kind]}") from None
        self._check(value)
        return value

    def format(self, value: Value) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)

    def _convert(self, text: str) -> Value:
        match self.kind:
            case Kind.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise ValueError(text)
                return text.lower() == "true"
            case Kind.INT | Kind.SHORT | Kind.LONG:
                return int(text)
            case Kind.DOUBLE:
                return float(text)
            case Kind.LIST:
                return tuple(part.strip() for part in text.split(",") if part.strip())
            case Kind.STRING:
                return text

    def _check(self, value: Value) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            low = self.low if self.low is not None else _LOWEST.get(self.kind)
            high = self.high if self.high is not None else _HIGHEST.get(self.kind)
            if low is not None and value < low:
                raise ConfigError(f"{self.name}: {value} is below the least allowed value, {low}")
            if high is not None and value > high:
                raise ConfigError(f"{self.name}: {value} is above the largest allowed value, {high}")
        if self.choices:
            for part in value if isinstance(value, tuple) else (value,):
                if part not in self.choices:
                    raise ConfigError(f"{self.name}: {part!r} is not one of {', '.join(self.choices)}")
            if value == ():
                raise ConfigError(f"{self.name}: at least one of {', '.join(self.choices)} is needed")


_ARTICLES = {
    Kind.BOOLEAN: "true or false",
    Kind.STRING: "text",
    Kind.INT: "a whole number",
    Kind.SHORT: "a whole number",
    Kind.LONG: "a whole number",
    Kind.DOUBLE: "a number",
    Kind.LIST: "a list",
}
_LOWEST = {Kind.SHORT: -(2**15), Kind.INT: -(2**31), Kind.LONG: -(2**63)}
_HIGHEST = {Kind.SHORT: 2**15 - 1, Kind.INT: INT_MAX, Kind.LONG: LONG_MAX}


def _setting(name: str, kind: Kind, default: Value, doc: str, **more: Any) -> Any:
    return field(default=default, metadata={"setting": Setting(name, kind, default, doc, **more)})


def _topic(name: str, kind: Kind, default: Value, doc: str, *broker_names: str | tuple[str, int], **more: Any) -> Any:
    synonyms = tuple((each, 1) if isinstance(each, str) else each for each in broker_names)
    return _setting(name, kind, default, doc, broker_names=synonyms, read_only=False, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What can be set for one topic."""

    cleanup_policy: tuple[str, ...] = _topic(
        "cleanup.policy",
        Kind.LIST,
        ("delete",),
        "What happens to old records: delete by age and size, compact by key, or both.",
        "log.cleanup.policy",
        choices=("delete", "compact"),
    )
    compression_type: str = _topic(
        "compression.type",
        Kind.STRING,
        "producer",
        "The codec records are stored with; producer keeps what the producer chose.",
        "compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_gzip_level: int = _topic(
        "compression.gzip.level",
        Kind.INT,
        -1,
        "Level of gzip; -1 is its default.",
        "compression.gzip.level",
        low=-1,
        high=9,
    )
    compression_lz4_level: int = _topic(
        "compression.lz4.level",
        Kind.INT,
        9,
        "Level of lz4; from 3 on, more costs time.",
        "compression.lz4.level",
        low=1,
        high=17,
    )
    compression_zstd_level: int = _topic(
        "compression.zstd.level", Kind.INT, 3, "Level of zstd.", "compression.zstd.level", low=-131072, high=22
    )
    delete_retention_ms: int = _topic(
        "delete.retention.ms",
        Kind.LONG,
        DAY_MS,
        "How long a compacted topic keeps the marker of a deleted key.",
        "log.cleaner.delete.retention.ms",
        low=0,
    )
    file_delete_delay_ms: int = _topic(
        "file.delete.delay.ms",
        Kind.LONG,
        MINUTE_MS,
        "How long a deleted segment's files stay on disk, renamed, before they go.",
        "log.segment.delete.delay.ms",
        low=0,
    )
    flush_messages: int = _topic(
        "flush.messages",
        Kind.LONG,
        1,
        "1: an acks=all produce is answered, and a record visible, once it is on disk. Above 1: nothing waits for the "
        "disk, and a flush is asked for after this many records.",
        "log.flush.interval.messages",
        low=1,
    )
    flush_ms: int = _topic(
        "flush.ms", Kind.LONG, LONG_MAX, "The longest a record waits for a flush.", "log.flush.interval.ms", low=0
    )
    index_interval_bytes: int = _topic(
        "index.interval.bytes",
        Kind.INT,
        4096,
        "About how many bytes of log lie between two entries of an index.",
        "log.index.interval.bytes",
        low=0,
    )
    max_compaction_lag_ms: int = _topic(
        "max.compaction.lag.ms",
        Kind.LONG,
        LONG_MAX,
        "The longest a record stays uncompacted.",
        "log.cleaner.max.compaction.lag.ms",
        low=1,
    )
    max_message_bytes: int = _topic(
        "max.message.bytes",
        Kind.INT,
        MIB + 12,
        "The largest record batch taken, as sent (compressed).",
        "message.max.bytes",
        low=0,
    )
    message_timestamp_type: str = _topic(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "Whether a record keeps its producer's time or gets the broker's.",
        "log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = _topic(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        LONG_MAX,
        "How far behind the broker's clock a producer's time may lie.",
        "log.message.timestamp.before.max.ms",
        low=0,
    )
    message_timestamp_after_max_ms: int = _topic(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        HOUR_MS,
        "How far ahead of the broker's clock a producer's time may lie.",
        "log.message.timestamp.after.max.ms",
        low=0,
    )
    min_cleanable_dirty_ratio: float = _topic(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        0.5,
        "The share of a compacted log that must be uncompacted before it is worth compacting.",
        "log.cleaner.min.cleanable.ratio",
        low=0,
        high=1,
    )
    min_compaction_lag_ms: int = _topic(
        "min.compaction.lag.ms",
        Kind.LONG,
        0,
        "The shortest a record stays uncompacted.",
        "log.cleaner.min.compaction.lag.ms",
        low=0,
    )
    min_insync_replicas: int = _topic(
        "min.insync.replicas",
        Kind.INT,
        1,
        "How many replicas must have a record before acks=all is answered.",
        "min.insync.replicas",
        low=1,
    )
    retention_bytes: int = _topic(
        "retention.bytes", Kind.LONG, -1, "The most a partition keeps; -1: no limit.", "log.retention.bytes", low=-1
    )
    retention_ms: int = _topic(
        "retention.ms",
        Kind.LONG,
        7 * DAY_MS,
        "How long records are kept; -1: for ever.",
        "log.retention.ms",
        ("log.retention.minutes", MINUTE_MS),
        ("log.retention.hours", HOUR_MS),
        low=-1,
    )
    segment_bytes: int = _topic(
        "segment.bytes", Kind.INT, GIB, "The size at which a new segment begins.", "log.segment.bytes", low=MIB
    )
    segment_index_bytes: int = _topic(
        "segment.index.bytes",
        Kind.INT,
        10 * MIB,
        "The size of an index at which a new segment begins.",
        "log.index.size.max.bytes",
        low=4,
    )
    segment_jitter_ms: int = _topic(
        "segment.jitter.ms",
        Kind.LONG,
        0,
        "The most that is taken off segment.ms at random, so that partitions do not roll together.",
        "log.roll.jitter.ms",
        ("log.roll.jitter.hours", HOUR_MS),
        low=0,
    )
    segment_ms: int = _topic(
        "segment.ms",
        Kind.LONG,
        7 * DAY_MS,
        "The age at which a new segment begins.",
        "log.roll.ms",
        ("log.roll.hours", HOUR_MS),
        low=1,
    )
    unclean_leader_election_enable: bool = _topic(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        False,
        "Whether a replica that may lack records can lead when no other is left.",
        "unclean.leader.election.enable",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """What can be set for a broker, beside the broker-wide values of topic settings."""

    node_id: int = _setting("node.id", Kind.INT, 1, "This broker's number in the cluster.", low=0)
    log_dirs: str = _setting("log.dirs", Kind.STRING, "flowstone-data", "The data directory.")
    listeners: tuple[str, ...] = _setting(
        "listeners",
        Kind.LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses to listen on, as NAME://HOST:PORT; port 0 takes any free one.",
    )
    advertised_listeners: tuple[str, ...] = _setting(
        "advertised.listeners",
        Kind.LIST,
        (),
        "Addresses told to clients, by listener name, where they differ from listeners.",
    )
    http_listener: str = _setting(
        "http.listener",
        Kind.STRING,
        "",
        "HOST:PORT to serve health and metrics on over HTTP, port 0 for any free one; off where empty or off. "
        "`flowstone up` serves them on 127.0.0.1:9080 unless told otherwise.",
    )
    num_partitions: int = _setting(
        "num.partitions", Kind.INT, 1, "Partitions of a topic made without a number.", low=1, read_only=False
    )
    default_replication_factor: int = _setting(
        "default.replication.factor", Kind.INT, 1, "Replicas of a topic made without a number.", low=1, read_only=False
    )
    auto_create_topics_enable: bool = _setting(
        "auto.create.topics.enable", Kind.BOOLEAN, True, "Whether asking for an unknown topic makes it."
    )
    delete_topic_enable: bool = _setting("delete.topic.enable", Kind.BOOLEAN, True, "Whether topics can be deleted.")
    max_partitions: int = _setting(
        "max.partitions", Kind.INT, 100_000, "The most partitions, over all topics, that the broker takes.", low=1
    )
    socket_request_max_bytes: int = _setting(
        "socket.request.max.bytes", Kind.INT, 100 * MIB, "The largest request taken.", low=1
    )
    socket_send_buffer_bytes: int = _setting(
        "socket.send.buffer.bytes",
        Kind.INT,
        256 * KIB,
        "What the system may hold of a connection's unsent bytes; -1 leaves it to the system. Raise it for distant "
        "clients on fast lines.",
        low=-1,
    )
    queued_max_request_bytes: int = _setting(
        "queued.max.request.bytes",
        Kind.LONG,
        256 * MIB,
        "The most bytes of requests held over all connections; beyond it reading pauses.",
        low=MIB,
    )
    max_connections: int = _setting(
        "max.connections", Kind.INT, 4000, "The most connections; a further one is closed at once.", low=1
    )
    max_connections_per_ip: int = _setting(
        "max.connections.per.ip", Kind.INT, INT_MAX, "The most connections from one address.", low=1
    )
    connections_max_idle_ms: int = _setting(
        "connections.max.idle.ms", Kind.LONG, 10 * MINUTE_MS, "How long a connection may stay silent.", low=1
    )
    connection_frame_timeout_ms: int = _setting(
        "connection.frame.timeout.ms",
        Kind.LONG,
        30 * SECOND_MS,
        "How long a request may take to arrive once begun, and a response to be taken.",
        low=1,
    )
    connection_max_pipelined_requests: int = _setting(
        "connection.max.pipelined.requests",
        Kind.INT,
        1000,
        "Requests of one connection that may wait for their answers; beyond it reading pauses.",
        low=1,
    )
    connection_max_queued_response_bytes: int = _setting(
        "connection.max.queued.response.bytes",
        Kind.INT,
        64 * MIB,
        "Bytes of responses one connection may leave unread before reading from it pauses.",
        low=1,
    )
    fetch_max_bytes: int = _setting(
        "fetch.max.bytes", Kind.INT, 55 * MIB, "The most bytes one fetch is answered with.", low=1024
    )
    max_incremental_fetch_session_cache_slots: int = _setting(
        "max.incremental.fetch.session.cache.slots", Kind.INT, 1000, "The most incremental fetch sessions kept.", low=0
    )
    max_parked_requests: int = _setting(
        "max.parked.requests", Kind.INT, 20_000, "The most requests waiting for data or for the disk.", low=1
    )
    group_min_session_timeout_ms: int = _setting(
        "group.min.session.timeout.ms",
        Kind.INT,
        6 * SECOND_MS,
        "The shortest session timeout a group's member may ask for.",
        low=1,
    )
    group_max_session_timeout_ms: int = _setting(
        "group.max.session.timeout.ms",
        Kind.INT,
        30 * MINUTE_MS,
        "The longest session timeout a group's member may ask for.",
        low=1,
    )
    group_initial_rebalance_delay_ms: int = _setting(
        "group.initial.rebalance.delay.ms",
        Kind.INT,
        3 * SECOND_MS,
        "How long an empty group's first rebalance waits for more members.",
        low=0,
    )
    group_max_size: int = _setting("group.max.size", Kind.INT, INT_MAX, "The most members of one group.", low=1)
    group_headroom_warning_ms: int = _setting(
        "group.headroom.warning.ms",
        Kind.LONG,
        HOUR_MS,
        "A group is warned of, in the log and in metrics, when retention deletes its next unread record sooner than "
        "this, or than half of what a new record has, if that is less; 0: never.",
        low=0,
    )
    offset_metadata_max_bytes: int = _setting(
        "offset.metadata.max.bytes", Kind.INT, 4096, "The longest text kept with a committed offset.", low=0
    )
    offsets_retention_minutes: int = _setting(
        "offsets.retention.minutes",
        Kind.INT,
        7 * DAY_MS // MINUTE_MS,
        "How long a group's offsets are kept once it has no members, or does not subscribe to the topic.",
        low=1,
    )
    offsets_retention_check_interval_ms: int = _setting(
        "offsets.retention.check.interval.ms", Kind.LONG, 10 * MINUTE_MS, "How often old offsets are looked for.", low=1
    )
    offsets_topic_num_partitions: int = _setting(
        "offsets.topic.num.partitions",
        Kind.INT,
        50,
        "Partitions of __consumer_offsets; it cannot change once groups exist.",
        low=1,
    )
    offsets_topic_replication_factor: int = _setting(
        "offsets.topic.replication.factor",
        Kind.SHORT,
        3,
        "Replicas of __consumer_offsets; as many as there are brokers, where there are fewer when it is made.",
        low=1,
    )
    offsets_topic_segment_bytes: int = _setting(
        "offsets.topic.segment.bytes", Kind.INT, 100 * MIB, "Segment size of __consumer_offsets.", low=MIB
    )
    log_open_files_max: int = _setting(
        "log.open.files.max", Kind.INT, 4096, "The most log files kept open; lowered to what the system allows.", low=16
    )
    log_retention_check_interval_ms: int = _setting(
        "log.retention.check.interval.ms", Kind.LONG, 5 * MINUTE_MS, "How often old segments are looked for.", low=1
    )
    log_flush_offset_checkpoint_interval_ms: int = _setting(
        "log.flush.offset.checkpoint.interval.ms", Kind.INT, MINUTE_MS, "How often recovery points are saved.", low=1
    )
    producer_id_expiration_ms: int = _setting(
        "producer.id.expiration.ms", Kind.INT, DAY_MS, "How long an idle producer's sequence is remembered.", low=1
    )
    num_flush_threads: int = _setting("num.flush.threads", Kind.INT, 4, "Threads that flush files.", low=1, high=64)
    num_reader_threads: int = _setting(
        "num.reader.threads", Kind.INT, 2, "Threads that read what is not in the page cache.", low=1, high=64
    )
    slow_request_ms: int = _setting(
        "slow.request.ms", Kind.LONG, SECOND_MS, "Requests that take longer, waiting aside, are logged.", low=0
    )
    shutdown_timeout_ms: int = _setting(
        "shutdown.timeout.ms", Kind.LONG, 10 * SECOND_MS, "How long a clean stop may take.", low=1
    )


def _table(config: type[Any]) -> dict[str, Setting]:
    return {each.metadata["setting"].name: each.metadata["setting"] for each in dataclasses.fields(config)}


def _attributes(config: type[Any]) -> dict[str, str]:
    return {each.metadata["setting"].name: each.name for each in dataclasses.fields(config)}


TOPIC_SETTINGS: Mapping[str, Setting] = _table(TopicConfig)
BROKER_SETTINGS: Mapping[str, Setting] = _table(BrokerConfig)
_TOPIC_ATTRIBUTES = _attributes(TopicConfig)
_BROKER_ATTRIBUTES = _attributes(BrokerConfig)

# A broker-wide name -> the topic setting it gives a value to, and the factor to that setting's unit.
TOPIC_DEFAULT_NAMES: Mapping[str, tuple[Setting, int]] = {
    name: (setting, factor)
    for setting in TOPIC_SETTINGS.values()
    for name, factor in ((setting.name, 1), *setting.broker_names)
}
# Older or shorter names of Kafka's that mean the same.
_BROKER_SYNONYMS = {"broker.id": "node.id", "log.dir": "log.dirs"}


def known_broker_names() -> list[str]:
    return sorted({*BROKER_SETTINGS, *TOPIC_DEFAULT_NAMES, *_BROKER_SYNONYMS})


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the closest known one, as the end of a sentence."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def parse_broker_config(values: Mapping[str, str]) -> tuple[BrokerConfig, dict[str, str]]:
    """The broker's own settings, and the broker-wide values of topic settings, by the topic settings' names."""
    own: dict[str, Any] = {}
    topic_values: dict[str, str] = {}
    for given, text in values.items():
        name = _BROKER_SYNONYMS.get(given, given)
        if name in BROKER_SETTINGS:
            own[_BROKER_ATTRIBUTES[name]] = BROKER_SETTINGS[name].parse(text)
        elif name not in TOPIC_DEFAULT_NAMES:
            raise ConfigError(f"unknown setting {given}{nearest(given, known_broker_names())}")
    for setting in TOPIC_SETTINGS.values():
        text_or_none = broker_value(setting, values)
        if text_or_none is not None:
            setting.parse(text_or_none)
            topic_values[setting.name] = text_or_none
    return BrokerConfig(**own), topic_values


def broker_value(setting: Setting, values: Mapping[str, str]) -> str | None:
    """The broker-wide value given for a topic setting, in that setting's own unit."""
    for name, factor in ((setting.name, 1), *setting.broker_names):
        if name in values:
            if factor == 1:
                return values[name]
            number = setting.parse(values[name])
            assert isinstance(number, int)
            return str(number if number < 0 else number * factor)
    return None


def parse_topic_config(defaults: Mapping[str, str], overrides: Mapping[str, str]) -> TopicConfig:
    """A topic's settings from the broker-wide values and the topic's own."""
    parsed: dict[str, Any] = {}
    for name, text in {**defaults, **overrides}.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"unknown topic setting {name}{nearest(name, TOPIC_SETTINGS)}")
        parsed[_TOPIC_ATTRIBUTES[name]] = setting.parse(text)
    return TopicConfig(**parsed)


def current_values(config: BrokerConfig | TopicConfig) -> dict[str, str]:
    """Every setting's value as text, by name."""
    return {
        each.metadata["setting"].name: each.metadata["setting"].format(getattr(config, each.name))
        for each in dataclasses.fields(config)
    }
