"""`flowstone topic alter`: changes settings, and adds partitions, which moves keys and cannot be undone."""

from __future__ import annotations

from typing import Annotated

import typer
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)

from flowstone.cli.common.clients import (
    DEFAULT_BOOTSTRAP,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    TopicName,
    connect,
    explain,
    find_topic,
    reader_config,
    result_of,
)
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.numbers import PARTITIONS_MAX
from flowstone.cli.common.text import counted
from flowstone.config import nearest

# To detect keys: this many of the newest records of each partition, up to this total.
NEWEST_PER_PARTITION = 5
SAMPLE_RECORDS_MAX = 100
SAMPLE_TIMEOUT_S = 5.0


def alter(
    topic: TopicName,
    partitions: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=PARTITIONS_MAX, help="Increase the number of partitions to N; it cannot be reduced."
        ),
    ] = None,
    set_values: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a setting; repeatable.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Restore the broker's value; repeatable.")
    ] = None,
    yes: Yes = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change a topic's settings or add partitions.

    A key's partition depends on the number of partitions. If records have keys, the command warns and asks for
    confirmation.
    """
    settings = dict(read_assignment("--set", each) for each in set_values or ())
    if partitions is None and not settings and not unset:
        raise CommandError("nothing to change: give --partitions, --set or --unset")
    admin = connect(bootstrap)
    count = len(find_topic(admin, bootstrap, topic).partitions)
    _check_names(admin, bootstrap, topic, unset or [])
    if partitions is not None:
        _check_growth(bootstrap, topic, count, partitions, yes=yes)
    if settings or unset:
        _alter_settings(admin, bootstrap, topic, settings, unset or [])
    if partitions is not None:
        growth = admin.create_partitions([NewPartitions(topic, partitions)], operation_timeout=REQUEST_TIMEOUT_S)
        result_of(growth[topic], bootstrap)
        count = partitions
    if json_output:
        print_document({"topic": topic, "partitions": count, "set": settings, "unset": unset or []})
        return
    done = [f"{counted(count, 'partition')}"] if partitions is not None else []
    done += [f"{name}={value}" for name, value in settings.items()] + [f"{name} unset" for name in unset or ()]
    print(f"altered {topic}: {', '.join(done)}")


def read_assignment(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandError(f"{option} {text}: expected {option} name=value")
    return name, value


def _check_names(admin: AdminClient, bootstrap: str, topic: str, unset: list[str]) -> None:
    """Raise CommandError if a setting to unset is unknown: brokers ignore such names, and typos would be missed."""
    if not unset:
        return
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    known = result_of(admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource], bootstrap)
    for name in unset:
        if name not in known:
            raise CommandError(f"there is no topic setting {name} to unset{nearest(name, known)}")


def _check_growth(bootstrap: str, topic: str, count: int, wanted: int, *, yes: bool) -> None:
    if wanted <= count:
        raise CommandError(
            f"{topic} has {counted(count, 'partition')} already, and partitions are only ever added: "
            f"give --partitions more than {count}, or copy the records to a new topic"
        )
    if not yes and has_keys(bootstrap, topic, count):
        confirm(
            f"records of {topic} have keys, and with {wanted} partitions instead of {count} most keys will move: "
            "new records of a key go to another partition than its old ones, and the order between them is lost"
        )


def has_keys(bootstrap: str, topic: str, count: int) -> bool:
    """Return whether some of the newest records have a key."""
    consumer = Consumer(reader_config(bootstrap))
    try:
        newest = []
        for number in range(count):
            first, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=REQUEST_TIMEOUT_S)
            if first < end:
                newest.append(TopicPartition(topic, number, max(first, end - NEWEST_PER_PARTITION)))
        consumer.assign(newest)
        return _meets_key(consumer, len(newest))
    except KafkaException as error:
        raise explain(error, bootstrap) from None
    finally:
        consumer.close()


def _meets_key(consumer: Consumer, open_partitions: int) -> bool:
    seen = 0
    while open_partitions and seen < SAMPLE_RECORDS_MAX:
        message = consumer.poll(SAMPLE_TIMEOUT_S)
        if message is None:
            return False
        if message.error() is not None:  # the end of a partition
            open_partitions -= 1
        elif message.key() is not None:
            return True
        seen += 1
    return False


def _alter_settings(admin: AdminClient, bootstrap: str, topic: str, settings: dict[str, str], unset: list[str]) -> None:
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    changes += [ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in unset]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    answers = admin.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
    result_of(answers[resource], bootstrap)
