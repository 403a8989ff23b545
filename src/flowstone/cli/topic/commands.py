"""`flowstone topic`: creates, lists, describes and deletes topics. `alter` has a separate module."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from flowstone.cli.common.clients import (
    DEFAULT_BOOTSTRAP,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    TopicName,
    connect,
    explain,
    fetch_metadata,
    find_topic,
    result_of,
)
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.numbers import PARTITIONS_MAX, REPLICATION_FACTOR_MAX
from flowstone.cli.common.text import counted, screen_width, table
from flowstone.cli.group.tables import NOTHING
from flowstone.cli.topic.alter import alter, read_assignment
from flowstone.cli.topic.disk_use import COLUMNS as DISK_COLUMNS
from flowstone.cli.topic.disk_use import read_disks
from flowstone.cli.topic.offsets_at import offsets
from flowstone.config import TOPIC_SETTINGS
from flowstone.errors import ErrorCode

BROKER_DEFAULT = -1  # "as many as the broker is set to", on the wire
# Errors of a partition that is offline, has no leader, or has a new one that is not yet ready to be read.
UNAVAILABLE = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_NOT_AVAILABLE,
)

COLUMNS = {
    "partition": "partition",
    "first_offset": "first offset",
    "next_offset": "next offset",
    "leader": "leader",
    "replicas": "replicas",
    "in_sync_replicas": "in-sync",
}


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Create, list, describe, alter and delete topics.", rich_markup_mode=None)
    group.command("create")(create)
    group.command("list")(list_topics)
    group.command("describe")(describe)
    group.command("offsets")(offsets)
    group.command("alter")(alter)
    group.command("delete")(delete)
    app.add_typer(group, name="topic", no_args_is_help=True)


def create(
    topic: TopicName,
    partitions: Annotated[int, typer.Option(help="Number of partitions; -1: the broker's default.")] = BROKER_DEFAULT,
    replication_factor: Annotated[
        int, typer.Option(help="Number of replicas; -1: the broker's default.")
    ] = BROKER_DEFAULT,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A topic setting; repeatable. Without =: a client's properties file."),
    ] = None,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create a topic."""
    _check_count("--partitions", partitions, PARTITIONS_MAX)
    _check_count("--replication-factor", replication_factor, REPLICATION_FACTOR_MAX)
    settings = dict(read_assignment("--config", each) for each in config or ())
    admin = connect(bootstrap)
    try:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replication_factor, config=settings)
        asked = admin.create_topics([new], operation_timeout=REQUEST_TIMEOUT_S)
    except (ValueError, TypeError, KafkaException) as error:  # the client library's own bounds
        raise CommandError(f"the topic cannot be created: {error}") from error
    result_of(asked[topic], bootstrap)
    count = len(find_topic(admin, bootstrap, topic).partitions)
    if json_output:
        print_document({"topic": topic, "partitions": count})
    else:
        print(f"created {topic} with {counted(count, 'partition')}")


def _check_count(option: str, number: int, maximum: int) -> None:
    if number != BROKER_DEFAULT and not 1 <= number <= maximum:
        raise CommandError(f"{option} {number}: choose between 1 and {maximum}, or omit it to use the broker's default")


def list_topics(json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Print the names of all topics, one per line."""
    topics = fetch_metadata(connect(bootstrap), bootstrap).topics
    for name in sorted(topics):
        if json_output:
            print_document({"topic": name, "partitions": len(topics[name].partitions)})
        else:
            print(name)


def describe(topic: TopicName, json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show a topic's partitions with offsets and sizes on disk, and the settings that it overrides."""
    admin = connect(bootstrap)
    partitions = _partitions(admin, bootstrap, topic)
    settings = own_settings(admin, bootstrap, topic)
    disks = read_disks(admin, bootstrap, topic)
    if json_output:
        told = [{**each, **disks.fields(each["partition"])} for each in partitions]
        print_document({"topic": topic, "partitions": told, "settings": settings, "directories": disks.directories})
        return
    print(f"topic {topic}: {counted(len(partitions), 'partition')}")
    rows = [[_cell(each[name]) for name in COLUMNS] for each in partitions]
    names = list(COLUMNS.values())
    if disks.problem is None:
        names += DISK_COLUMNS.values()
        rows = [[*row, *disks.cells(each["partition"])] for row, each in zip(rows, partitions, strict=True)]
    print(table(names, rows, screen_width()))
    print("\n".join(disks.lines()))
    for name, value in settings.items():
        is_idle = name in TOPIC_SETTINGS and not TOPIC_SETTINGS[name].has_effect
        print(f"{name}={value}" + ("  (no effect: a setting of Kafka that this broker only stores)" if is_idle else ""))


def delete(
    topic: TopicName, yes: Yes = False, json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Delete a topic and its records. Asks for confirmation on a terminal; elsewhere it needs --yes."""
    admin = connect(bootstrap)
    count = len(find_topic(admin, bootstrap, topic, to_use=False).partitions)
    if not yes:
        confirm(f"{topic} and all records in its {counted(count, 'partition')} will be deleted permanently")
    result_of(admin.delete_topics([topic], operation_timeout=REQUEST_TIMEOUT_S)[topic], bootstrap)
    if json_output:
        print_document({"topic": topic})
    else:
        print(f"deleted {topic}")


def _cell(value: Any) -> str:
    if value is None:
        return NOTHING
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _partitions(admin: AdminClient, bootstrap: str, topic: str) -> list[dict[str, Any]]:
    metadata = find_topic(admin, bootstrap, topic)
    numbers = sorted(metadata.partitions)
    first = _offsets(admin, bootstrap, topic, numbers, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    following = _offsets(admin, bootstrap, topic, numbers, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    return [
        {
            "partition": number,
            "first_offset": first[number],
            "next_offset": following[number],
            "leader": metadata.partitions[number].leader,
            "replicas": list(metadata.partitions[number].replicas),
            "in_sync_replicas": list(metadata.partitions[number].isrs),
        }
        for number in numbers
    ]


def _offsets(
    admin: AdminClient, bootstrap: str, topic: str, partitions: list[int], spec: OffsetSpec
) -> dict[int, int | None]:
    """Return the offsets that `spec` selects by partition, None for a partition that cannot tell them for now."""
    asked = {TopicPartition(topic, number): spec for number in partitions}
    answers = admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)
    found: dict[int, int | None] = {}
    for each, future in answers.items():
        try:
            found[each.partition] = future.result().offset
        except KafkaException as error:
            if error.args[0].code() not in UNAVAILABLE:
                raise explain(error, bootstrap) from None
            found[each.partition] = None
    return found


def own_settings(admin: AdminClient, bootstrap: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = result_of(admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource], bootstrap)
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: entries[name].value for name in sorted(entries) if entries[name].source == own}
