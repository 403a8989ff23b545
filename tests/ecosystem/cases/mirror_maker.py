"""MirrorMaker 2 between this broker and an Apache Kafka, in both directions: records, topic settings, group offsets."""

from __future__ import annotations

import json

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from scripts.fetch_kafka import KAFKA_VERSION, java_command

from bench.servers import Kafka
from tests.ecosystem.installs import kafka_with, properties_file
from tests.ecosystem.product import Case, Product

Records = list[tuple[str | None, str]]

ORDERS, CUSTOMERS, PARTITIONS = 4000, 20, 3
HEAP = "-Xmx256m"
TIMEOUT_S = 20
GROUP, SLOW_GROUP = "shipping", "audit"
# What MirrorMaker creates for itself: `NAME.replication.factor`.
MIRROR_TOPICS = (
    "checkpoints.topic",
    "heartbeats.topic",
    "offset-syncs.topic",
    "config.storage",
    "offset.storage",
    "status.storage",
)
ORDERS_SETTINGS = {"retention.ms": "123456789", "max.message.bytes": "2000000", "compression.type": "zstd"}
INVOICES_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "2097152", "local.retention.ms": "1000"}


def _run(case: Case) -> None:
    artifacts = [f"org.apache.kafka:connect-{name}:{KAFKA_VERSION}" for name in ("mirror", "mirror-client")]
    classpath = kafka_with("mirror", *artifacts)
    with Kafka() as server:
        other = Case(server, case.folder)
        other.create_topic("orders", PARTITIONS, **_keywords(ORDERS_SETTINGS))
        case.create_topic("invoices", PARTITIONS, **_keywords(INVOICES_SETTINGS))
        orders = _orders()
        half, more, rest = orders[: ORDERS // 2], orders[ORDERS // 2 : ORDERS * 3 // 4], orders[ORDERS * 3 // 4 :]
        other.produce("orders", half)
        case.produce("invoices", half)
        file = properties_file(case.folder / "mirror.properties", _settings(case, other))
        command = [java_command(), HEAP, "-cp", classpath, "org.apache.kafka.connect.mirror.MirrorMaker", file]
        first = case.start(command, "first")
        case.check("records of Kafka arrive here", _arrived(case, "there.orders", half), sorted(half))
        case.check("records of here arrive at Kafka", _arrived(other, "here.invoices", half), sorted(half))
        _check_offsets(case, other, case, "orders", "there", more)
        _check_offsets(case, case, other, "invoices", "here", more)
        first.kill()
        first.wait()
        case.restart_broker()
        other.produce("orders", rest)
        case.produce("invoices", rest)
        _set(other, "orders", "retention.ms", "234567890")
        _set(case, "invoices", "segment.bytes", "3145728")
        case.start(command, "second")
        sentence = "after a killed MirrorMaker and a killed broker"
        found = _arrived(case, "there.orders", orders)
        case.check(f"records of Kafka arrive here {sentence}", found, sorted(orders))
        found = _arrived(other, "here.invoices", orders)
        case.check(f"records of here arrive at Kafka {sentence}", found, sorted(orders))
        for target, topic in ((case, "there.orders"), (other, "here.invoices")):
            unread = sorted(more + rest)
            found = sorted(set(_read_in_group(target, topic, len(unread))))
            case.check(f"the group goes on in {topic} with what it has not read", found, unread)
        _check_settings(case, other)


def _check_offsets(case: Case, origin: Case, target: Case, topic: str, alias: str, more: Records) -> None:
    """Check the offsets of a group that has read all, and of one that has read half of what comes then.

    Wait also until MirrorMaker has stored how far it is: otherwise it would begin again after a kill.
    """
    name = f"{alias}.{topic}"
    ends = _ends(origin, topic)
    origin.commit(GROUP, topic, ends)
    target.wait_until(f"the group is at {ends} of {name}", lambda: _offsets(target, GROUP, name) == ends)
    case.check(f"a group's offsets are translated for {name}", _offsets(target, GROUP, name), ends)
    origin.produce(topic, more)
    between = [(end + later) // 2 for end, later in zip(ends, _ends(origin, topic), strict=True)]
    origin.commit(SLOW_GROUP, topic, between)
    # MirrorMaker remembers some pairs of offsets only, and takes the last one that is not beyond the group's.
    target.wait_until(f"the slow group is in {name}", lambda: min(_offsets(target, SLOW_GROUP, name)) > 0)
    found = _offsets(target, SLOW_GROUP, name)
    beyond = [offset for offset, read in zip(found, between, strict=True) if offset > read]
    case.check(f"a slow group is not beyond what it has read of {name}", beyond, [])
    last = {str(partition): end - 1 for partition, end in enumerate(_ends(origin, topic))}
    records = target.read(f"mm2-offsets.{alias}.internal", lambda found: _stored(found, topic) == last)
    case.check(f"it is stored how far {name} is mirrored", _stored(records, topic), last)


def _ends(case: Case, topic: str) -> list[int]:
    return [case.end_offset(topic, partition) for partition in range(PARTITIONS)]


def _stored(records: Records, topic: str) -> dict[str, int]:
    """Return the last offset of each partition of a topic that MirrorMaker has stored as mirrored."""
    found = {}
    for key, value in records:
        connector, partition = json.loads(key or "[null, {}]")
        if connector == "MirrorSourceConnector" and partition.get("topic") == topic and value:
            found[str(partition["partition"])] = json.loads(value)["offset"]
    return found


def _settings(case: Case, other: Case) -> dict[str, object]:
    return {
        "clusters": "here,there",
        "here.bootstrap.servers": case.bootstrap,
        "there.bootstrap.servers": other.bootstrap,
        "here->there.enabled": "true",
        "there->here.enabled": "true",
        "here->there.topics": "invoices",
        "there->here.topics": "orders",
        "dedicated.mode.enable.internal.rest": "false",
        "emit.checkpoints.interval.seconds": 1,
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": 1,
        "refresh.topics.interval.seconds": 2,
        "refresh.groups.interval.seconds": 2,
        "sync.topic.configs.interval.seconds": 2,
        "offset.lag.max": 0,
        "offset.flush.interval.ms": 1000,
        **{f"{name}.replication.factor": 1 for name in MIRROR_TOPICS},
        "replication.factor": 1,
    }


def _check_settings(case: Case, other: Case) -> None:
    wanted = ORDERS_SETTINGS | {"retention.ms": "234567890"}
    case.wait_until("a changed setting is copied", lambda: _own_settings(case, "there.orders") == wanted)
    case.check("a topic's settings are copied here, and a change of one", _own_settings(case, "there.orders"), wanted)
    wanted = INVOICES_SETTINGS | {"segment.bytes": "3145728"}
    case.wait_until("a changed setting is copied to Kafka", lambda: _own_settings(other, "here.invoices") == wanted)
    found = _own_settings(other, "here.invoices")
    case.check("a topic's settings are copied to Kafka, and a change of one", found, wanted)


def _own_settings(case: Case, topic: str) -> dict[str, str | None]:
    """Return the settings of a topic that are set for it alone."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": case.bootstrap})  # its end would end the request
    entries = admin.describe_configs([resource])[resource]
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: each.value for name, each in entries.result(TIMEOUT_S).items() if each.source == own}


def _set(case: Case, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": case.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def _offsets(case: Case, group: str, topic: str) -> list[int]:
    """Return the group's committed offsets of a topic."""
    consumer = Consumer({"bootstrap.servers": case.bootstrap, "group.id": group})
    try:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return [each.offset for each in consumer.committed(partitions, TIMEOUT_S)]
    finally:
        consumer.close()


def _read_in_group(case: Case, topic: str, count: int) -> Records:
    """Return what a member of the group reads, as soon as it has so many different records."""
    return case.read(topic, lambda found: len(set(found)) >= count, group=GROUP)


def _arrived(case: Case, topic: str, wanted: Records) -> Records:
    return sorted(set(case.read(topic, lambda found: len(set(found)) >= len(wanted))))


def _orders() -> Records:
    return [(f"customer-{number % CUSTOMERS}", str(number)) for number in range(ORDERS)]


def _keywords(settings: dict[str, str]) -> dict[str, str]:
    return {name.replace(".", "_"): value for name, value in settings.items()}


MIRROR_MAKER = Product(
    "mirrormaker-2",
    "MirrorMaker 2",
    KAFKA_VERSION,
    "to and from an Apache Kafka: records, topic settings, group offsets; a killed MirrorMaker, a killed broker",
    _run,
)
