"""`flowstone cluster reassign`: moves partitions to other brokers, changes their number of replicas, or cancels
moves.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from flowstone.cli.cluster.moves import Throttle, move, throttle, unthrottle, watch
from flowstone.cli.cluster.plans import Plan, changes, plan_document, plan_spread, read_plan
from flowstone.cli.cluster.state import ClusterReader, ClusterState
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.numbers import BROKER_MAX, REPLICATION_FACTOR_MAX, parse_whole
from flowstone.cli.common.text import counted, screen_width, table
from flowstone.types import TopicPartition

COLUMNS = ("topic", "partition", "replicas", "target")


class Choice(NamedTuple):
    """The requested target: a file, or brokers over which the partitions are spread."""

    topics: list[str]
    partitions: list[int]
    brokers: str | None
    replication_factor: int | None
    file: str | None


def reassign(
    topic: Annotated[list[str] | None, typer.Option(help="A topic to move; repeatable (default: all topics).")] = None,
    partition: Annotated[list[int] | None, typer.Option(help="A partition of the topic; repeatable.")] = None,
    brokers: Annotated[
        str | None, typer.Option(metavar="1,2,4", help="Spread the partitions over these brokers.")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=REPLICATION_FACTOR_MAX,
            help="Replicas of each partition (default: as many as it has).",
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(metavar="PLAN.json", help="Make the moves in this file, as kafka-reassign-partitions writes it."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the plan; with --json in the format of --file.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the moves in progress, of these topics or of all.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--watch", help="Wait until all partitions have moved; then remove the throttle.")
    ] = False,
    throttle_bytes: Throttle = None,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move partitions to other brokers. Records are copied first, then the old replicas are removed."""
    choice = Choice(topic or [], partition or [], brokers, replication_factor, file)
    is_planned = (brokers is not None or file is not None) and not cancel
    if not (is_planned or cancel or wait) or (cancel and brokers is not None):
        raise CommandError("say where partitions are to go, with --brokers or --file, or else --cancel or --watch")
    with ClusterReader(bootstrap) as reader:
        if cancel:
            _cancel(reader, choice, json_output=json_output)
            return
        moved: list[TopicPartition] = []
        if is_planned:
            state = reader.read()
            plan = changes(_plan(state, choice), state.partitions)
            if dry_run:
                _show(state, plan, json_output=json_output)
                return
            moved = _begin(reader, plan, throttle_bytes)
        if wait:
            moved = moved or list(reader.moving())
            watch(reader, moved)
            unthrottle(reader)
    _tell(moved, is_over=wait, json_output=json_output)


def _plan(state: ClusterState, choice: Choice) -> Plan:
    if choice.file is not None:
        if choice.brokers is not None or choice.replication_factor is not None:
            raise CommandError("a file says where partitions go: leave out --brokers and --replication-factor")
        return _read(choice.file)
    partitions = state.of_topics(choice.topics)
    if choice.partitions:
        if len(choice.topics) != 1:
            raise CommandError("--partition needs --topic, the topic of the partition")
        wanted = [each for each in partitions if each.partition.partition in choice.partitions]
        if len(wanted) < len(set(choice.partitions)):
            raise CommandError(f"{choice.topics[0]} has partitions 0 to {len(partitions) - 1}: name some of these")
        partitions = wanted
    return plan_spread(partitions, _brokers(state, choice.brokers or ""), state.racks, choice.replication_factor)


def _read(path: str) -> Plan:
    try:
        with open(path, encoding="utf-8") as file:
            return read_plan(file.read(), path)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None


def _brokers(state: ClusterState, text: str) -> list[int]:
    numbers = [each.strip() for each in text.split(",")]
    expected = "their numbers with commas, such as 1,2,4"
    brokers = list(dict.fromkeys(parse_whole("--brokers", each, BROKER_MAX, expected) for each in numbers))
    for node_id in brokers:
        if node_id not in state.alive:
            known = ",".join(map(str, state.alive))
            raise CommandError(f"broker {node_id} is not alive: those that are: {known}")
    return brokers


def _begin(reader: ClusterReader, plan: Plan, throttle_bytes: int | None) -> list[TopicPartition]:
    if throttle_bytes is not None:
        throttle(reader, throttle_bytes)
    if plan:
        move(reader, dict(plan))
    return list(plan)


def _cancel(reader: ClusterReader, choice: Choice, *, json_output: bool) -> None:
    topics, plan = set(choice.topics), None if choice.file is None else _read(choice.file)
    moving = [
        each for each in reader.moving() if (not topics or each.topic in topics) and (plan is None or each in plan)
    ]
    if moving:
        move(reader, dict.fromkeys(moving))
    unthrottle(reader)
    if json_output:
        print_document({"cancelled": list(map(str, moving))})
    else:
        print(f"cancelled the moves of {counted(len(moving), 'partition')}")


def _show(state: ClusterState, plan: Plan, *, json_output: bool) -> None:
    if json_output:
        print_document(plan_document(plan))
        return
    now = {each.partition: each.replicas for each in state.partitions}
    rows = [
        [each.topic, str(each.partition), _text(now.get(each, ())), _text(replicas)] for each, replicas in plan.items()
    ]
    print(table(COLUMNS, rows, screen_width()) if rows else "all is where it should be")


def _text(replicas: tuple[int, ...]) -> str:
    return ",".join(map(str, replicas))


def _tell(moved: list[TopicPartition], *, is_over: bool, json_output: bool) -> None:
    if json_output:
        print_document({"partitions": list(map(str, moved)), "moving": not is_over})
    elif is_over:
        print(f"{counted(len(moved), 'partition')} moved")
    else:
        print(f"{counted(len(moved), 'partition')} on the move; `flowstone cluster reassign --watch` waits for them")
