"""`flowstone topic`: create, list, describe and delete topics. `alter` has a module of its own."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from flowstone.cli.clients import (
    DEFAULT_BOOTSTRAP,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    TopicName,
    connect,
    fetch_metadata,
    find_topic,
    result_of,
)
from flowstone.cli.errors import CommandError
from flowstone.cli.offsets_at import offsets
from flowstone.cli.output import JsonOutput, print_document
from flowstone.cli.text import counted, screen_width, table
from flowstone.cli.topic_alter import alter, read_assignment

BROKER_DEFAULT = -1  # "as many as the broker is set to", on the wire

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
    partitions: Annotated[int, typer.Option(help="How many partitions; -1: the broker's default.")] = BROKER_DEFAULT,
    replication_factor: Annotated[
        int, typer.Option(help="How many replicas; -1: the broker's default.")
    ] = BROKER_DEFAULT,
    config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A topic setting; may be given again.")
    ] = None,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create a topic."""
    settings = dict(read_assignment("--config", each) for each in config or ())
    admin = connect(bootstrap)
    try:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replication_factor, config=settings)
    except ValueError as error:  # librdkafka's own bounds
        raise CommandError(f"no topic can be made like that: {error}") from error
    result_of(admin.create_topics([new], operation_timeout=REQUEST_TIMEOUT_S)[topic], bootstrap)
    count = len(find_topic(admin, bootstrap, topic).partitions)
    if json_output:
        print_document({"topic": topic, "partitions": count})
    else:
        print(f"created {topic} with {counted(count, 'partition')}")


def list_topics(json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Print the names of all topics, one per line."""
    topics = fetch_metadata(connect(bootstrap), bootstrap).topics
    for name in sorted(topics):
        if json_output:
            print_document({"topic": name, "partitions": len(topics[name].partitions)})
        else:
            print(name)


def describe(topic: TopicName, json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show a topic's partitions, their offsets, and the settings that are its own."""
    admin = connect(bootstrap)
    partitions = _partitions(admin, bootstrap, topic)
    settings = own_settings(admin, bootstrap, topic)
    if json_output:
        print_document({"topic": topic, "partitions": partitions, "settings": settings})
        return
    print(f"topic {topic}: {counted(len(partitions), 'partition')}")
    rows = [[_cell(partition[name]) for name in COLUMNS] for partition in partitions]
    print(table(list(COLUMNS.values()), rows, screen_width()))
    for name, value in settings.items():
        print(f"{name}={value}")


def delete(topic: TopicName, json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Delete a topic and its records."""
    admin = connect(bootstrap)
    find_topic(admin, bootstrap, topic, to_use=False)
    result_of(admin.delete_topics([topic], operation_timeout=REQUEST_TIMEOUT_S)[topic], bootstrap)
    if json_output:
        print_document({"topic": topic})
    else:
        print(f"deleted {topic}")


def _cell(value: Any) -> str:
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


def _offsets(admin: AdminClient, bootstrap: str, topic: str, partitions: list[int], spec: OffsetSpec) -> dict[int, int]:
    asked = {TopicPartition(topic, number): spec for number in partitions}
    answers = admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)
    return {each.partition: result_of(future, bootstrap).offset for each, future in answers.items()}


def own_settings(admin: AdminClient, bootstrap: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = result_of(admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource], bootstrap)
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: entries[name].value for name in sorted(entries) if entries[name].source == own}
