"""`flowstone txn find-hanging`: finds transactions that are open in a partition but that no coordinator will end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, NamedTuple

import typer

from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.numbers import BROKER_MAX, PARTITION_MAX, finite
from flowstone.cli.common.text import counted, screen_width, table
from flowstone.cli.group.tables import NOTHING, duration
from flowstone.cli.txn.broker_link import BrokerLink
from flowstone.cli.txn.coordinators import Coordinators
from flowstone.cli.txn.facts import DescribedTransaction, OpenTransaction, open_document
from flowstone.cli.txn.leaders import PartitionLeaders
from flowstone.cli.txn.places import place_text
from flowstone.ports.clock import SystemClock
from flowstone.types import TopicPartition

MINUTES_MAX = 1e9
MINUTE_S = 60
COLUMNS = ("begins at", "producer", "epoch", "transactional id", "silent for")


class Candidate(NamedTuple):
    """An open transaction in a partition, with its coordinator's state of the producer."""

    found: OpenTransaction
    transactional_id: str | None
    described: DescribedTransaction | None

    @property
    def is_known(self) -> bool:
        """Return whether a coordinator has the partition in the producer's open transaction, and so will end it."""
        described = self.described
        return (
            described is not None
            and described.is_open
            and described.producer_id == self.found.producer.producer_id
            and self.found.partition in described.partitions
        )


def find_hanging(
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only in this topic.")] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=PARTITION_MAX, help="Only in this partition of the topic.")
    ] = None,
    broker: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=BROKER_MAX, help="Only in partitions that this broker leads."),
    ] = None,
    max_transaction_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES",
            min=0,
            max=MINUTES_MAX,
            callback=finite,
            help="How long a transaction may be open (default: the broker's transaction.max.timeout.ms).",
        ),
    ] = None,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Find transactions that block read_committed consumers and that no coordinator will end."""
    if partition is not None and topic is None:
        raise CommandError("--partition needs --topic, the topic of the partition")
    with BrokerLink(bootstrap) as link:
        leaders = PartitionLeaders(link)
        partitions = leaders.partitions(topic, partition)
        if broker is not None:
            _check_alive(leaders, broker)
            partitions = {where: leader for where, leader in partitions.items() if leader == broker}
        if max_transaction_timeout is not None:
            limit_s = max_transaction_timeout * MINUTE_S
        else:
            limit_s = leaders.max_timeout_ms() / 1000
        hanging = search_hanging(link, partitions, limit_s)
    now_ms = SystemClock().time_ms()
    if json_output:
        for each in hanging:
            print_document(open_document(each.found, each.transactional_id, now_ms))
        return
    if not hanging:
        return
    rows = [
        [
            place_text(each.found.partition, each.found.start_offset),
            str(each.found.producer.producer_id),
            str(each.found.producer.producer_epoch),
            each.transactional_id or NOTHING,
            duration(each.found.producer.idle_s(now_ms)),
        ]
        for each in hanging
    ]
    print(table(COLUMNS, rows, screen_width()))
    first = place_text(hanging[0].found.partition, hanging[0].found.start_offset)
    print(f"\n{counted(len(hanging), 'transaction')} found; `flowstone txn abort {first}` ends the first")


def search_hanging(link: BrokerLink, partitions: dict[TopicPartition, int], limit_s: float) -> list[Candidate]:
    """Return the hanging transactions of these partitions, by partition and first offset."""
    opened = open_transactions(link, partitions)
    now_ms = SystemClock().time_ms()
    silent = [each for each in opened if (each.producer.idle_s(now_ms) or 0.0) > limit_s]
    return [each for each in with_coordinators(link, silent) if not each.is_known]


def open_transactions(link: BrokerLink, partitions: dict[TopicPartition, int]) -> list[OpenTransaction]:
    """Return the open transactions of these partitions, by partition and first offset."""
    found = [
        OpenTransaction(where, producer, producer.start_offset)
        for where, producers in PartitionLeaders(link).producers(partitions).items()
        for producer in producers
        if producer.start_offset is not None
    ]
    return sorted(found, key=lambda each: (each.partition, each.start_offset))


def with_coordinators(link: BrokerLink, opened: Iterable[OpenTransaction]) -> list[Candidate]:
    """Return each open transaction with its coordinator's state of the producer."""
    opened = list(opened)
    if not opened:
        return []
    coordinators = Coordinators(link)
    listed = coordinators.transactional_ids(each.producer.producer_id for each in opened)
    described = coordinators.describe_all(listed.values())
    candidates = []
    for each in opened:
        one = listed.get(each.producer.producer_id)
        name = one.transactional_id if one is not None else None
        candidates.append(Candidate(each, name, described.get(name) if name is not None else None))
    return candidates


def _check_alive(leaders: PartitionLeaders, broker: int) -> None:
    alive = leaders.alive()
    if broker not in alive:
        raise CommandError(f"broker {broker} is not alive: those that are: {','.join(map(str, alive))}")
