"""`flowstone cluster`: its commands, and `status`. The others have modules of their own."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flowstone.cli.cluster.drain import drain
from flowstone.cli.cluster.elect import elect
from flowstone.cli.cluster.features import make_group
from flowstone.cli.cluster.founding import found, restore_metadata
from flowstone.cli.cluster.reassign import reassign
from flowstone.cli.cluster.state import ClusterReader, ClusterState, PartitionState
from flowstone.cli.cluster.unregister import unregister
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.text import counted, screen_width, table
from flowstone.cli.group.tables import NOTHING

BROKER_COLUMNS = ("broker", "address", "rack", "alive", "controller", "leaders", "replicas")
PARTITION_COLUMNS = ("topic", "partition", "leader", "replicas", "in-sync", "what")


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Show a cluster's brokers, move partitions and leadership, and change feature levels.",
        rich_markup_mode=None,
    )
    group.command("status")(status)
    group.command("elect")(elect)
    group.command("reassign")(reassign)
    group.command("drain")(drain)
    group.command("unregister")(unregister)
    group.add_typer(make_group(), name="features", no_args_is_help=True)
    group.command("found")(found)
    group.command("restore-metadata")(restore_metadata)
    app.add_typer(group, name="cluster", no_args_is_help=True)


def status(
    verbose: Annotated[bool, typer.Option("--verbose", help="List the partitions that have problems.")] = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the brokers with their leaders and replicas, and the number of partitions with problems."""
    with ClusterReader(bootstrap) as reader:
        state = reader.read()
    unwell = [each for each in state.partitions if problems(each)]
    if json_output:
        print_document(_document(state, unwell if verbose else None))
        return
    print(
        f"cluster {state.cluster_id}: {len(state.alive)} of {counted(len(state.brokers), 'broker')} alive, "
        f"{counted(len(state.partitions), 'partition')}"
    )
    print(table(BROKER_COLUMNS, _broker_rows(state), screen_width()))
    print(", ".join(f"{name} {count}" for name, count in problem_counts(state).items()))
    if verbose and unwell:
        print(f"\n{table(PARTITION_COLUMNS, [_row(each) for each in unwell], screen_width())}")


def problems(partition: PartitionState) -> list[str]:
    named = {
        "offline": partition.is_offline,
        "under-replicated": partition.is_under_replicated,
        "under min ISR": partition.is_under_min_isr,
        "moving": partition.is_moving,
    }
    return [name for name, holds in named.items() if holds]


def problem_counts(state: ClusterState) -> dict[str, int]:
    counts = dict.fromkeys(("offline", "under-replicated", "under min ISR", "moving"), 0)
    for each in state.partitions:
        for name in problems(each):
            counts[name] += 1
    return counts


def _broker_rows(state: ClusterState) -> list[list[str]]:
    leaders, replicas = state.leader_counts(), state.replica_counts()
    return [
        [
            str(broker.node_id),
            broker.address,
            broker.rack or NOTHING,
            "yes" if broker.is_alive else "no",
            "yes" if broker.node_id == state.controller_id else NOTHING,
            str(leaders[broker.node_id]),
            str(replicas[broker.node_id]),
        ]
        for broker in state.brokers.values()
    ]


def _row(each: PartitionState) -> list[str]:
    return [
        each.partition.topic,
        str(each.partition.partition),
        NOTHING if each.is_offline else str(each.leader),
        ",".join(map(str, each.replicas)),
        ",".join(map(str, each.isr)) or NOTHING,
        ", ".join(problems(each)),
    ]


def _document(state: ClusterState, unwell: list[PartitionState] | None) -> dict[str, Any]:
    leaders, replicas = state.leader_counts(), state.replica_counts()
    document: dict[str, Any] = {
        "cluster_id": state.cluster_id,
        "controller": state.controller_id,
        "brokers": [
            {
                "broker": broker.node_id,
                "address": broker.address,
                "rack": broker.rack,
                "alive": broker.is_alive,
                "leaders": leaders[broker.node_id],
                "replicas": replicas[broker.node_id],
            }
            for broker in state.brokers.values()
        ],
        "partitions": len(state.partitions),
        **{name.lower().replace(" ", "_").replace("-", "_"): count for name, count in problem_counts(state).items()},
    }
    if unwell is not None:
        document["problems"] = [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "leader": None if each.is_offline else each.leader,
                "replicas": each.replicas,
                "in_sync_replicas": each.isr,
                "adding": each.adding,
                "removing": each.removing,
                "what": problems(each),
            }
            for each in unwell
        ]
    return document
