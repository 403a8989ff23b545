"""`flowstone group`: list, describe and delete consumer groups. `reset` and `watch` have separate modules."""

from __future__ import annotations

from typing import Any

import typer

from flowstone.broker.lag.group_status import GroupStatus
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, REQUEST_TIMEOUT_S, Bootstrap, connect, result_of
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.text import counted, screen_width, table
from flowstone.cli.group.reading import GroupName, GroupReader
from flowstone.cli.group.reset import reset
from flowstone.cli.group.tables import described, description, duration, missing_times
from flowstone.cli.group.watch import watch


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List, describe, reset, delete and watch consumer groups.", rich_markup_mode=None)
    group.command("list")(list_groups)
    group.command("describe")(describe)
    group.command("reset")(reset)
    group.command("delete")(delete)
    group.command("watch")(watch)
    app.add_typer(group, name="group", no_args_is_help=True)


def list_groups(json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Print all groups with their state and lag."""
    reader = GroupReader(connect(bootstrap), bootstrap)
    groups = reader.read_all()
    if json_output:
        for group in groups:
            print_document(_summary(group))
        return
    if not groups:
        return
    names = ["group", "type", "state", "members", "lag"]
    rows = [[group.group_id, group.type, group.state, str(len(group.members)), str(group.lag)] for group in groups]
    if reader.problem is None:
        names += ["behind", "headroom"]
        rows = [
            [*row, duration(group.lag_seconds), duration(group.headroom_seconds)]
            for row, group in zip(rows, groups, strict=True)
        ]
    print(table(names, rows, screen_width()) + missing_times(reader.problem))


def describe(group: GroupName, json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show a group's members, which are idle and why, and its lag in each partition."""
    reader = GroupReader(connect(bootstrap), bootstrap)
    found = reader.read(group)
    if json_output:
        print_document(described(found))
    else:
        print(description(found, with_times=reader.problem is None) + missing_times(reader.problem))


def delete(group: GroupName, json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Delete a group without members and its committed offsets."""
    admin = connect(bootstrap)
    found = GroupReader(admin, bootstrap).read(group)
    if found.members:
        raise CommandError(f"group {group} has {counted(len(found.members), 'member')}: stop them first")
    result_of(admin.delete_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S)[group], bootstrap)
    if json_output:
        print_document({"group": group})
    else:
        print(f"deleted group {group}")


def _summary(group: GroupStatus) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "members": len(group.members),
        "lag": group.lag,
        "lag_seconds": group.lag_seconds,
        "headroom_seconds": group.headroom_seconds,
    }
