"""The options and columns of the sink, parsed and checked on the driver before a task writes.

Owns the names and defaults and contacts no broker. Every `OptionError` is one sentence that says what to do. Names are
the Kafka connector's. Producer settings that tune a JVM producer are accepted without effect; those that would change
what is written and are not supported are refused by name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_flowstone.kafka_options import (
    CONFIG_FILE,
    CONNECT_TIMEOUT,
    CONNECT_TIMEOUT_DEFAULT_S,
    KAFKA_PREFIX,
    connect_timeout_s,
    is_security_option,
    secured,
)
from pyspark_flowstone.values import GivenOptions, OptionError

BOOTSTRAP = "kafka.bootstrap.servers"
ACKS, COMPRESSION, IDEMPOTENCE = "kafka.acks", "kafka.compression.type", "kafka.enable.idempotence"
DELIVERY_TIMEOUT, REQUEST_SIZE = "kafka.delivery.timeout.ms", "kafka.max.request.size"
DELIVERY, SINK_NAME, TRANSACTION_TIMEOUT = "delivery", "sinkName", "kafka.transaction.timeout.ms"
APP_ID, VERSION = "txnAppId", "txnVersion"
NAMES = (
    *("topic", BOOTSTRAP, CONFIG_FILE, ACKS, COMPRESSION, IDEMPOTENCE, DELIVERY_TIMEOUT, REQUEST_SIZE),
    *(DELIVERY, SINK_NAME, TRANSACTION_TIMEOUT, APP_ID, VERSION, CONNECT_TIMEOUT),
)
_SPELLED = {name.lower(): name for name in NAMES}

# Spark also passes its own options.
OF_SPARK = frozenset({"checkpointlocation", "path", "queryname"})

ACKS_BY_NAME = {"all": -1, "-1": -1, "1": 1, "0": 0}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DELIVERY_TIMEOUT_DEFAULT_MS = 120_000
AT_LEAST_ONCE, EXACTLY_ONCE = "at-least-once", "exactly-once"
TRANSACTION_TIMEOUT_DEFAULT_MS = 900_000  # the longest that brokers allow by default
APP_ID_CHARACTERS_MAX = 200
VERSION_DIGITS_MAX = 18
_SINK_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}", re.ASCII)
# Kafka's default. A larger record is refused with its row's number; brokers also allow for the batch's header.
REQUEST_BYTES_DEFAULT = 1 << 20

# Kafka's producer settings for frequencies, sizes and times, which are constants of our client.
PRODUCER_TUNING = frozenset(
    {
        "batch.size",
        "buffer.memory",
        "client.dns.lookup",
        "client.id",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
_PARTITIONING = "rows are spread by their keys as Kafka's own partitioner does; name others in a column `partition`"
_SERIALIZING = "keys and values are bytes or text; make them that in the query"
REFUSED = {
    "interceptor.classes": "interceptors are Java classes and do not run here",
    "key.serializer": _SERIALIZING,
    "partitioner.class": _PARTITIONING,
    "partitioner.ignore.keys": _PARTITIONING,
    "transactional.id": "the sink chooses it; say delivery=exactly-once and sinkName for transactions",
    "value.serializer": _SERIALIZING,
}


class NumberedWrite(NamedTuple):
    """The identity of a batch query that is written once, however often it is run: a number that only grows."""

    app_id: str
    version: int


@dataclass(frozen=True)
class SinkOptions:
    bootstrap: str
    topic: str | None  # None: each row names its own
    acks: int
    idempotent: bool
    compression: str
    delivery_timeout_s: float
    record_bytes_max: int
    sink_name: str | None = None  # of a sink that delivers exactly once
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_DEFAULT_MS
    numbered: NumberedWrite | None = None  # of a batch query
    connect_timeout_s: float = CONNECT_TIMEOUT_DEFAULT_S

    @property
    def is_exactly_once(self) -> bool:
        return self.sink_name is not None


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the parsed options. Raises OptionError if one is invalid."""
    options = GivenOptions(given)
    for name in options.names():
        _check_name(name, options.given_name(name))
    bootstrap = (options.get(BOOTSTRAP) or "").strip()
    if not bootstrap:
        raise OptionError(f"{BOOTSTRAP}: the sink needs it, the broker's address, host:port")
    topic = options.get("topic")
    if topic is not None and not topic.strip():
        raise OptionError("topic: it is empty; name the topic, or leave the option out and have a column `topic`")
    acks = ACKS_BY_NAME[options.one_of(ACKS, tuple(ACKS_BY_NAME), "all")]
    idempotent = options.boolean(IDEMPOTENCE, acks == -1)
    if idempotent and acks != -1:
        raise OptionError(f"{IDEMPOTENCE}: it needs {ACKS} to be all")
    return SinkOptions(
        bootstrap=secured(bootstrap, options),
        topic=topic.strip() if topic is not None else None,
        acks=acks,
        idempotent=idempotent,
        compression=options.one_of(COMPRESSION, CODECS, "none"),
        delivery_timeout_s=(options.count(DELIVERY_TIMEOUT) or DELIVERY_TIMEOUT_DEFAULT_MS) / 1000,
        record_bytes_max=options.count(REQUEST_SIZE) or REQUEST_BYTES_DEFAULT,
        sink_name=_sink_name(options, acks, idempotent),
        transaction_timeout_ms=options.count(TRANSACTION_TIMEOUT) or TRANSACTION_TIMEOUT_DEFAULT_MS,
        numbered=_numbered(options),
        connect_timeout_s=connect_timeout_s(options),
    )


def _sink_name(options: GivenOptions, acks: int, idempotent: bool) -> str | None:
    """Return the name of an exactly-once sink, or None if delivery is at least once. Raises OptionError."""
    delivery, name = options.one_of(DELIVERY, (AT_LEAST_ONCE, EXACTLY_ONCE), AT_LEAST_ONCE), options.get(SINK_NAME)
    if delivery == AT_LEAST_ONCE:
        for each in (SINK_NAME, TRANSACTION_TIMEOUT, APP_ID, VERSION):
            if options.get(each) is not None:
                raise OptionError(f"{each}: it applies only to {DELIVERY}={EXACTLY_ONCE}")
        return None
    if name is None:
        raise OptionError(f"{SINK_NAME}: {EXACTLY_ONCE} delivery needs it: a name of this sink that no other one has")
    if not _SINK_NAME.fullmatch(name):
        raise OptionError(f"{SINK_NAME}: {name!r} is not 1 to 200 letters, digits, dots, hyphens or underscores")
    if acks != -1 or not idempotent:
        raise OptionError(f"{DELIVERY}: {EXACTLY_ONCE} needs {ACKS}=all and {IDEMPOTENCE}=true")
    return name


def _numbered(options: GivenOptions) -> NumberedWrite | None:
    """Return the identity of a batch query that has one, for `foreachBatch`. Raises OptionError."""
    app_id, version = options.get(APP_ID), options.get(VERSION)
    if app_id is None and version is None:
        return None
    if app_id is None or version is None:
        raise OptionError(f"{APP_ID} and {VERSION}: the sink needs both or neither")
    if not 0 < len(app_id) <= APP_ID_CHARACTERS_MAX:
        raise OptionError(f"{APP_ID}: it has {len(app_id)} characters, and may have 1 to {APP_ID_CHARACTERS_MAX}")
    if not (version.isascii() and version.isdecimal() and len(version) <= VERSION_DIGITS_MAX):
        raise OptionError(f"{VERSION}: {version!r} is not a number from 0 on, such as the number of a micro-batch")
    return NumberedWrite(app_id, int(version))


def _check_name(name: str, given: str) -> None:
    if name in _SPELLED or name in OF_SPARK or is_security_option(name):
        return
    if not name.startswith(KAFKA_PREFIX):
        from pyspark_flowstone import options  # which imports this module

        of_source = {each.lower(): each for each in options.NAMES}
        hint = "; it is one of the source" if name in of_source else _meant(name)
        raise OptionError(f"{of_source.get(name, given)}: the sink has no such option{hint}")
    setting = name.removeprefix(KAFKA_PREFIX)
    if setting in PRODUCER_TUNING:
        return
    reason = REFUSED.get(setting, "")
    raise OptionError(f"{name}: {reason or 'Kafka producers have no such setting' + _meant(name)}")


def _meant(name: str) -> str:
    known = [*_SPELLED, *(KAFKA_PREFIX + each for each in PRODUCER_TUNING)]
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {_SPELLED.get(close[0], close[0])}?" if close else ""


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_text_or_bytes(kind: DataType) -> bool:
    return isinstance(kind, (StringType, BinaryType))


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, field.dataType) for field in kind.elementType.fields]
    return (
        [name for name, _kind in fields] == ["key", "value"]
        and _is_text(fields[0][1])
        and isinstance(fields[1][1], BinaryType)
    )


# Each column that the sink writes, the check of its type, and the required type.
COLUMNS: dict[str, tuple[Callable[[DataType], bool], str]] = {
    "value": (_is_text_or_bytes, "string or binary; make it that, with to_json(struct(*)) for example"),
    "key": (_is_text_or_bytes, "string or binary; cast it"),
    "topic": (_is_text, "string"),
    "partition": (lambda kind: isinstance(kind, IntegerType), "int; cast it"),
    "headers": (_is_headers, "array<struct<key: string, value: binary>>"),
    "timestamp": (lambda kind: isinstance(kind, TimestampType), "timestamp; cast it"),
}


def columns_written(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """Return the columns that become part of a record; others are ignored, as in the Kafka connector.

    Raises OptionError if a required column is missing or a column has an unsupported type.
    """
    kinds = {field.name: field.dataType for field in schema.fields}
    if "value" not in kinds:
        there = ", ".join(kinds) or "none"
        raise OptionError(f"the rows need a column `value` to write; their columns are {there}")
    if topic is None and "topic" not in kinds:
        raise OptionError("topic: the sink needs this option, or a column `topic` that names each row's")
    # The option overrides the column, whatever its type.
    written = [name for name in COLUMNS if name in kinds and not (name == "topic" and topic is not None)]
    for name in written:
        is_right, expected = COLUMNS[name]
        if not is_right(kinds[name]):
            raise OptionError(f"the column `{name}` is {kinds[name].simpleString()}, and has to be {expected}")
    if len(schema.fields) != len(kinds):
        raise OptionError("two columns have the same name: rename one")
    return tuple(written)
