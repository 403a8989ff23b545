"""`flowstone cluster drain`: takes all leaderships, and if requested all replicas, from a broker.

Leadership moves by making the broker the last replica of what it led and electing the first: no record moves, and the
controller, which gives leadership back to preferred replicas, keeps it so.
"""

from __future__ import annotations

from typing import Annotated

import typer

from flowstone.cli.cluster.elect import run_election
from flowstone.cli.cluster.moves import Throttle, move, throttle, unthrottle, watch
from flowstone.cli.cluster.plans import plan_empty, plan_leaders_off
from flowstone.cli.cluster.state import ClusterReader, ClusterState
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.numbers import BROKER_MAX
from flowstone.cli.common.text import counted
from flowstone.cluster.decisions.elections import ElectionType


def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0, max=BROKER_MAX, help="The broker's node id.")],
    replicas: Annotated[
        bool,
        typer.Option(
            "--replicas", help="Also move the broker's replicas to other brokers, and wait until they are moved."
        ),
    ] = False,
    throttle_bytes: Throttle = None,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move leadership away from a broker, and with --replicas all its replicas."""
    with ClusterReader(bootstrap) as reader:
        state = reader.read()
        if broker not in state.brokers:
            raise CommandError(f"there is no broker {broker}: {', '.join(map(str, state.brokers))} are known")
        if replicas:
            _move_replicas(reader, state, broker, throttle_bytes)
        else:
            _move_leaders(reader, state, broker)
        after = reader.read()
    led, held = after.leader_counts()[broker], after.replica_counts()[broker]
    if json_output:
        print_document({"broker": broker, "leaders": led, "replicas": held})
    else:
        print(f"broker {broker} leads {counted(led, 'partition')} and has {counted(held, 'replica')}")
    if replicas and held:
        raise CommandError(
            f"broker {broker} still has {counted(held, 'replica')}: it was given some, or moves were cancelled, "
            f"meanwhile. Run `flowstone cluster drain {broker} --replicas` again"
        )
    if led:
        raise CommandError(
            f"broker {broker} still leads {counted(led, 'partition')} without another in-sync replica: see "
            "`flowstone cluster status --verbose`; --replicas moves them to other brokers"
        )


def _move_replicas(reader: ClusterReader, state: ClusterState, broker: int, throttle_bytes: int | None) -> None:
    """Move every replica off the broker; wait for these moves and for those already under way."""
    others = [node_id for node_id in state.alive if node_id != broker]
    plan = plan_empty(state.partitions, broker, others, state.racks, state.replica_counts())
    leaving = [each.partition for each in state.partitions if broker in each.replicas and each.partition not in plan]
    if not plan and not leaving:
        return
    if throttle_bytes is not None:
        throttle(reader, throttle_bytes)
    if plan:
        move(reader, dict(plan))
    watch(reader, [*plan, *leaving])
    unthrottle(reader)


def _move_leaders(reader: ClusterReader, state: ClusterState, broker: int) -> None:
    plan = plan_leaders_off(state.partitions, broker)
    if plan:
        move(reader, dict(plan))
        run_election(reader, ElectionType.PREFERRED, plan)
