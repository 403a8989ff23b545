"""`flowstone cluster elect`: elects leaders at an operator's request.

Uses the thin client, because confluent-kafka's `elect_leaders` fails before it sends a request (2.16, SystemError).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from flowstone.cli.cluster.state import ClusterReader, check
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.text import counted
from flowstone.cluster.decisions.elections import ElectionType
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import ElectLeadersRequest, ElectLeadersRequestTopicPartitions, ElectLeadersResponse


def elect(
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic; repeatable.")] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="If no in-sync replica is alive, elect any other: records may be lost.")
    ] = False,
    yes: Yes = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Make the preferred replica of each partition, the first in its list, leader again."""
    if unclean and not yes:
        confirm(
            "a partition whose in-sync replicas are all gone gets another replica as its leader: every record that one "
            "lacks is lost, acknowledged or not"
        )
    with ClusterReader(bootstrap) as reader:
        partitions = [each.partition for each in reader.read().of_topics(topic or ())]
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
    reader: ClusterReader, kind: ElectionType, partitions: Iterable[TopicPartition]
) -> tuple[list[str], dict[str, str]]:
    """Return the partitions that got another leader, and those that did not, with the reason."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    wanted = [ElectLeadersRequestTopicPartitions(topic=name, partitions=each) for name, each in topics.items()]
    answer = reader.ask(ElectLeadersRequest(election_type=kind, topic_partitions=wanted), ElectLeadersResponse)
    check(answer.error_code, None)
    elected, failed = [], {}
    for result in answer.replica_election_results:
        for each in result.partition_result:
            name = str(TopicPartition(result.topic, each.partition_id))
            if not each.error_code:
                elected.append(name)
            elif each.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                failed[name] = each.error_message or ErrorCode(each.error_code).name
    return elected, failed
