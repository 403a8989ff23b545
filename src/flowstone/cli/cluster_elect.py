"""`flowstone cluster elect`: other leaders, because an operator asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from confluent_kafka import ElectionType, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from flowstone.cli.clients import DEFAULT_BOOTSTRAP, REQUEST_TIMEOUT_S, Bootstrap, explain, result_of
from flowstone.cli.cluster_state import ClusterReader
from flowstone.cli.errors import CommandError
from flowstone.cli.output import JsonOutput, Yes, get_leave, print_document
from flowstone.cli.text import counted
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition


def elect(
    topic: Annotated[list[str] | None, typer.Option(help="Of this topic only; may be given again.")] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Where no in-sync replica is left, let any other lead: records are lost.")
    ] = False,
    yes: Yes = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Give leadership back to the preferred replicas, the first of each partition."""
    reader = ClusterReader(bootstrap)
    partitions = [each.partition for each in reader.read().of_topics(topic or ())]
    if unclean and not yes:
        get_leave(
            "a partition whose in-sync replicas are all gone gets another replica as its leader: every record that one "
            "lacks is lost, acknowledged or not"
        )
    kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
    elected, failed = run_election(reader, kind, partitions)
    if json_output:
        print_document({"elected": elected, "failed": failed})
    else:
        print(f"{counted(len(elected), 'partition')} got another leader")
    if failed:
        name, reason = next(iter(failed.items()))
        more = f"; and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise CommandError(f"{counted(len(failed), 'partition')} could not: {name}: {reason}{more}")


def run_election(
    reader: ClusterReader, kind: ElectionType, partitions: Sequence[TopicPartition]
) -> tuple[list[str], dict[str, str]]:
    """The partitions that got another leader, and those that could not, with the reason."""
    if not partitions:
        return [], {}
    try:
        asked = reader.admin.elect_leaders(
            kind, [KafkaPartition(*each) for each in partitions], request_timeout=REQUEST_TIMEOUT_S
        )
    except KafkaException as error:
        raise explain(error, reader.bootstrap) from None
    elected, failed = [], {}
    for partition, refusal in result_of(asked, reader.bootstrap).items():
        name = f"{partition.topic}-{partition.partition}"
        if refusal is None:
            elected.append(name)
        elif refusal.args[0].code() != ErrorCode.ELECTION_NOT_NEEDED:
            failed[name] = refusal.args[0].str()
    return sorted(elected), failed
