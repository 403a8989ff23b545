"""`flowstone txn`: its commands; `list`, `describe` and `producers` are here, the others have modules of their own."""

from __future__ import annotations

from typing import Annotated

import typer

from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.numbers import OFFSET_MAX, SECONDS_MAX, finite
from flowstone.cli.common.text import counted, screen_width, table
from flowstone.cli.common.times import format_time
from flowstone.cli.group.tables import NOTHING, duration, number
from flowstone.cli.txn.abort import abort
from flowstone.cli.txn.broker_link import BrokerLink
from flowstone.cli.txn.coordinators import Coordinators
from flowstone.cli.txn.facts import (
    NO_EPOCH,
    NO_TIME,
    DescribedTransaction,
    PartitionProducer,
    described_document,
    listed_document,
    producer_document,
)
from flowstone.cli.txn.hanging import find_hanging
from flowstone.cli.txn.leaders import PartitionLeaders
from flowstone.cli.txn.places import parse_partition, place_text
from flowstone.ports.clock import SystemClock
from flowstone.types import TopicPartition

LIST_COLUMNS = ("transactional id", "coordinator", "producer", "state", "open for", "timeout")
PARTITION_COLUMNS = ("topic", "partition", "first offset")
PRODUCER_COLUMNS = (
    *("producer", "epoch", "coordinator epoch", "last sequence", "last record"),
    *("transaction from", "transactional id"),
)

TransactionalId = Annotated[str, typer.Argument(metavar="TRANSACTIONAL-ID", help="The producer's transactional.id.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Show transactions, find hanging transactions, and abort them.", rich_markup_mode=None)
    group.command("list")(list_transactions)
    group.command("describe")(describe)
    group.command("producers")(producers)
    group.command("find-hanging")(find_hanging)
    group.command("abort")(abort)
    app.add_typer(group, name="txn", no_args_is_help=True)


def list_transactions(
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only transactions in this state, such as Ongoing; repeatable."),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=0, max=OFFSET_MAX, help="Only transactions of this producer id; repeatable."),
    ] = None,
    open_for: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            max=SECONDS_MAX,
            callback=finite,
            help="Only transactions that have been open for longer.",
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Only transactional ids that this regular expression matches completely."),
    ] = None,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print all transactional ids with their states, and how long their transactions have been open."""
    duration_ms = round(open_for * 1000) if open_for is not None else -1
    with BrokerLink(bootstrap) as link:
        coordinators = Coordinators(link)
        listed = coordinators.list_all(state or [], producer_id or [], duration_ms, pattern or None)
        described = coordinators.describe_all(each for each in listed if each.is_open)
    now_ms = SystemClock().time_ms()
    if open_for is not None:
        open_s = {name: each.open_s(now_ms) or 0.0 for name, each in described.items()}
        listed = [each for each in listed if open_s.get(each.transactional_id, -1.0) >= open_for]
    if json_output:
        for each in listed:
            print_document(listed_document(each, described.get(each.transactional_id), now_ms))
        return
    if not listed:
        return
    rows = []
    for each in listed:
        one = described.get(each.transactional_id)
        times = [duration(one.open_s(now_ms)), duration(one.timeout_ms / 1000)] if one is not None else [NOTHING] * 2
        rows.append([each.transactional_id, str(each.coordinator), str(each.producer_id), each.state, *times])
    print(table(LIST_COLUMNS, rows, screen_width()))


def describe(
    transactional_id: TransactionalId, json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Show the producer of a transactional id, its transaction, and where it delays read_committed consumers."""
    with BrokerLink(bootstrap) as link:
        found = Coordinators(link).describe(transactional_id)
        if found is None:
            raise CommandError(f"there is no transactional id {transactional_id}: see `flowstone txn list`")
        starts = _first_offsets(PartitionLeaders(link), found) if found.is_open else {}
    now_ms = SystemClock().time_ms()
    if json_output:
        print_document(described_document(found, starts, now_ms))
        return
    print("\n".join(_description(found, now_ms)))
    if found.partitions:
        rows = [[each.topic, str(each.partition), number(starts.get(each))] for each in found.partitions]
        print(f"\n{table(PARTITION_COLUMNS, rows, screen_width())}")


def _first_offsets(leaders: PartitionLeaders, transaction: DescribedTransaction) -> dict[TopicPartition, int]:
    """Return where the transaction begins in each of its partitions that has records of it."""
    partitions = leaders.partitions()
    known = {each: partitions[each] for each in transaction.partitions if each in partitions}
    return {
        where: each.start_offset
        for where, producers in leaders.producers(known).items()
        for each in producers
        if each.producer_id == transaction.producer_id and each.start_offset is not None
    }


def _description(found: DescribedTransaction, now_ms: int) -> list[str]:
    lines = [
        f"transactional id {found.transactional_id}: {found.state}",
        f"producer {found.producer_id}, epoch {found.producer_epoch}, coordinator broker {found.coordinator}",
    ]
    open_s, left_s = found.open_s(now_ms), found.left_s(now_ms)
    if open_s is not None and found.start_ms is not None:
        lines.append(
            f"open for {duration(open_s)}, since {format_time(found.start_ms)}, "
            f"in {counted(len(found.partitions), 'partition')}"
        )
    if left_s is not None:
        when = f"in {duration(left_s)}" if left_s else "now"
        lines.append(f"aborted {when}, if the producer does not end it (timeout {duration(found.timeout_ms / 1000)})")
    elif found.is_open and found.state.startswith("Prepare"):
        lines.append("decided; its end markers are being written to the partitions below")
    return lines


def producers(
    place: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION", help="The partition, such as orders/0.")],
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the producers whose state a partition stores, and the first offsets of their open transactions."""
    where = parse_partition(place)
    with BrokerLink(bootstrap) as link:
        found = PartitionLeaders(link).producers_of(where)
        names = Coordinators(link).transactional_ids(each.producer_id for each in found)
    ids = {producer_id: each.transactional_id for producer_id, each in names.items()}
    if json_output:
        for each in found:
            print_document(producer_document(each, ids.get(each.producer_id)))
    elif found:
        print(table(PRODUCER_COLUMNS, [_row(where, each, ids) for each in found], screen_width()))


def _row(where: TopicPartition, producer: PartitionProducer, ids: dict[int, str]) -> list[str]:
    known_time = producer.last_timestamp_ms != NO_TIME
    return [
        str(producer.producer_id),
        str(producer.producer_epoch),
        str(producer.coordinator_epoch) if producer.coordinator_epoch != NO_EPOCH else NOTHING,
        str(producer.last_sequence) if producer.last_sequence >= 0 else NOTHING,
        format_time(producer.last_timestamp_ms) if known_time else NOTHING,
        place_text(where, producer.start_offset) if producer.start_offset is not None else NOTHING,
        ids.get(producer.producer_id, NOTHING),
    ]
