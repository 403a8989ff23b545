"""`flowstone txn abort`: ends a hanging transaction in its partitions with abort markers, as a coordinator would.

The leader of a partition writes the marker. A transaction that its coordinator still has open is refused without
--force: the coordinator, or the producer, ends it in all of its partitions, and an abort in one of them may tear it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.numbers import OFFSET_MAX
from flowstone.cli.common.text import counted
from flowstone.cli.group.tables import duration
from flowstone.cli.txn.broker_link import BrokerLink
from flowstone.cli.txn.facts import OpenTransaction, open_document
from flowstone.cli.txn.hanging import Candidate, open_transactions, with_coordinators
from flowstone.cli.txn.leaders import PartitionLeaders
from flowstone.cli.txn.places import parse_place, place_text
from flowstone.ports.clock import SystemClock
from flowstone.types import TopicPartition

PLACES_TOLD_MAX = 5


def abort(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC/PARTITION[@OFFSET]]", help="Where the transaction begins, such as orders/0@1234."
        ),
    ] = None,
    producer_id: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=OFFSET_MAX,
            help="Abort the transaction of this producer; without PLACE, in all partitions.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Abort the transaction even if its coordinator still has it open.")
    ] = False,
    yes: Yes = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort a hanging transaction, so that read_committed consumers continue. They never receive its records."""
    where, offset = parse_place(place) if place is not None else (None, None)
    if offset is None and producer_id is None:
        raise CommandError(
            "name the transaction by TOPIC/PARTITION@OFFSET, or by --producer-id; see `txn find-hanging`"
        )
    with BrokerLink(bootstrap) as link:
        leaders = PartitionLeaders(link)
        partitions = leaders.partitions(*where) if where is not None else leaders.partitions()
        opened = open_transactions(link, partitions)
        chosen = _chosen(opened, where, offset, producer_id)
        candidates = with_coordinators(link, chosen)
        if not force:
            _check_hanging(candidates)
        if not yes:
            confirm(_consequence(candidates))
        for each in chosen:
            leaders.write_abort_marker(each, partitions[each.partition])
    now_ms = SystemClock().time_ms()
    if json_output:
        aborted = [open_document(each.found, each.transactional_id, now_ms) for each in candidates]
        print_document({"aborted": aborted})
        return
    for each in chosen:
        begins = place_text(each.partition, each.start_offset)
        print(f"aborted the transaction of producer {each.producer.producer_id} that begins at {begins}")


def _chosen(
    opened: list[OpenTransaction], where: TopicPartition | None, offset: int | None, producer_id: int | None
) -> list[OpenTransaction]:
    """Return the open transactions that the arguments select. Raises CommandError if there is none."""
    chosen = [
        each
        for each in opened
        if producer_id in (None, each.producer.producer_id) and offset in (None, each.start_offset)
    ]
    if chosen:
        return chosen
    whose = f"producer {producer_id} has" if producer_id is not None else "there is"
    place = f" in {place_text(where)}" if where is not None else ""
    begin = f" that begins at offset {offset}" if offset is not None else ""
    raise CommandError(f"{whose} no open transaction{place}{begin}{_others(opened) if where is not None else ''}")


def _others(opened: list[OpenTransaction]) -> str:
    if not opened:
        return ": no producer has one there"
    places = [
        f"{place_text(each.partition, each.start_offset)} (producer {each.producer.producer_id})"
        for each in opened[:PLACES_TOLD_MAX]
    ]
    more = f" and {len(opened) - PLACES_TOLD_MAX} more" if len(opened) > PLACES_TOLD_MAX else ""
    return f": open there are {', '.join(places)}{more}"


def _check_hanging(candidates: list[Candidate]) -> None:
    """Raise CommandError if a coordinator still has one of the transactions open."""
    for each in candidates:
        if each.is_known and each.described is not None:
            left_s = each.described.left_s(SystemClock().time_ms())
            ends = f", and aborts it in {duration(left_s)} at the latest" if left_s is not None else ""
            raise CommandError(
                f"the transaction of {each.transactional_id} does not hang: its coordinator, broker "
                f"{each.described.coordinator}, has it open ({each.described.state}){ends}. --force aborts it in "
                f"{place_text(each.found.partition)} nevertheless, although it may still be committed in other "
                "partitions"
            )


def _consequence(candidates: list[Candidate]) -> str:
    first = candidates[0].found
    begins = place_text(first.partition, first.start_offset)
    of = f"the transaction of producer {first.producer.producer_id} that begins at {begins}"
    if len(candidates) > 1:
        of = f"{counted(len(candidates), 'transaction')}, of which the first begins at {begins},"
    return f"{of} will be aborted: its records are never delivered to read_committed consumers"
