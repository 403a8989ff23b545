"""`flowstone topic`: create, list, describe and delete topics."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Annotated, Any

import typer
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from flowstone.cli.clients import (
    DEFAULT_BOOTSTRAP,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    connect,
    explain,
    fetch_metadata,
    find_topic,
)
from flowstone.cli.errors import CommandError
from flowstone.cli.text import counted

BROKER_DEFAULT = -1  # "as many as the broker is set to", on the wire

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Create, list, describe and delete topics.", no_args_is_help=True, rich_markup_mode=None)
    group.command("create")(create)
    group.command("list")(list_topics)
    group.command("describe")(describe)
    group.command("delete")(delete)
    app.add_typer(group, name="topic")


def create(
    topic: TopicName,
    partitions: Annotated[int, typer.Option(help="How many partitions; -1: the broker's default.")] = BROKER_DEFAULT,
    replication_factor: Annotated[
        int, typer.Option(help="How many replicas; -1: the broker's default.")
    ] = BROKER_DEFAULT,
    config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A topic setting; may be given again.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create a topic."""
    settings = dict(_assignment(each) for each in config or ())
    admin = connect(bootstrap)
    new = NewTopic(topic, num_partitions=partitions, replication_factor=replication_factor, config=settings)
    _result(admin.create_topics([new], operation_timeout=REQUEST_TIMEOUT_S)[topic], bootstrap)
    count = len(find_topic(admin, bootstrap, topic).partitions)
    print(f"created {topic} with {counted(count, 'partition')}")


def list_topics(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Print the names of all topics, one per line."""
    for name in sorted(fetch_metadata(connect(bootstrap), bootstrap).topics):
        print(name)


def describe(topic: TopicName, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show a topic's partitions, their offsets, and the settings that are its own."""
    admin = connect(bootstrap)
    metadata = find_topic(admin, bootstrap, topic)
    partitions = [metadata.partitions[number] for number in sorted(metadata.partitions)]
    first = _offsets(admin, bootstrap, topic, len(partitions), OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    last = _offsets(admin, bootstrap, topic, len(partitions), OffsetSpec.latest())  # type: ignore[no-untyped-call]
    print(f"topic {topic}: {counted(len(partitions), 'partition')}")
    print(f"{'partition':>9} {'first offset':>14} {'next offset':>14}  leader  replicas  in-sync")
    for each in partitions:
        replicas, in_sync = (",".join(map(str, nodes)) for nodes in (each.replicas, each.isrs))
        print(f"{each.id:>9} {first[each.id]:>14} {last[each.id]:>14}  {each.leader:<6}  {replicas:<8}  {in_sync}")
    for name, value in _own_settings(admin, bootstrap, topic):
        print(f"{name}={value}")


def delete(topic: TopicName, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Delete a topic and its records."""
    admin = connect(bootstrap)
    find_topic(admin, bootstrap, topic)
    _result(admin.delete_topics([topic], operation_timeout=REQUEST_TIMEOUT_S)[topic], bootstrap)
    print(f"deleted {topic}")


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise CommandError(f"--config {text}: expected --config name=value")
    return name, value


def _offsets(admin: AdminClient, bootstrap: str, topic: str, count: int, spec: OffsetSpec) -> list[int]:
    asked = {TopicPartition(topic, number): spec for number in range(count)}
    answers = admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)
    found = {each.partition: _result(future, bootstrap).offset for each, future in answers.items()}
    return [found[number] for number in range(count)]


def _own_settings(admin: AdminClient, bootstrap: str, topic: str) -> list[tuple[str, str]]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = _result(admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource], bootstrap)
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return sorted((entry.name, entry.value) for entry in entries.values() if entry.source == own)


def _result(future: Future[Any], bootstrap: str) -> Any:
    try:
        return future.result()
    except KafkaException as error:
        raise explain(error, bootstrap) from None
