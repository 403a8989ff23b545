"""`flowstone share`: its commands; `reset` has a module of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.text import counted, screen_width, table
from flowstone.cli.share.link import GroupName, ShareLink
from flowstone.cli.share.reset import reset
from flowstone.client.share_groups import ShareOffset
from flowstone.types import TopicPartition

NOTHING = "-"


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Show share groups (queues), and change their settings and offsets.", rich_markup_mode=None
    )
    group.command("list")(list_groups)
    group.command("describe")(describe)
    group.command("alter")(alter)
    group.command("reset")(reset)
    group.command("delete")(delete)
    app.add_typer(group, name="share", no_args_is_help=True)


def list_groups(json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Print all share groups with their states, members and lag."""
    rows = []
    with ShareLink(bootstrap) as link:
        for listed in link.list_all():
            found, offsets = link.describe(listed.group), link.offsets(listed.group)
            if json_output:
                document = {"group": found.group, "state": found.state, "members": len(found.members)}
                print_document({**document, "lag": _lag(offsets)})
            rows.append([found.group, found.state, str(len(found.members)), _number(_lag(offsets))])
    if rows and not json_output:
        print(table(["group", "state", "members", "lag"], rows, screen_width()))


def describe(group: GroupName, json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show a share group's start offset and lag in each partition, and its members with their partitions."""
    with ShareLink(bootstrap) as link:
        found, offsets = link.describe(group), link.offsets(group)
    if json_output:
        print_document(
            {
                "group": group,
                "state": found.state,
                "epoch": found.epoch,
                "assignment_epoch": found.assignment_epoch,
                "lag": _lag(offsets),
                "partitions": [
                    {"topic": place.topic, "partition": place.partition, **each._asdict()}
                    for place, each in sorted(offsets.items())
                ],
                "members": [
                    {**each._asdict(), "partitions": [place._asdict() for place in each.partitions]}
                    for each in found.members
                ],
            }
        )
        return
    print(f"share group {group}: {found.state}, {counted(len(found.members), 'member')}, lag {_number(_lag(offsets))}")
    if offsets:
        rows = [
            [place.topic, str(place.partition), _number(each.start_offset), _number(each.lag)]
            for place, each in sorted(offsets.items())
        ]
        print(f"\n{table(['topic', 'partition', 'start offset', 'lag'], rows, screen_width())}")
    if found.members:
        rows = [
            [each.member_id, each.client_id, each.host, " ".join(map(str, sorted(each.partitions))) or NOTHING]
            for each in found.members
        ]
        print(f"\n{table(['member', 'client', 'host', 'partitions'], rows, screen_width())}")


def alter(
    group: GroupName,
    set_values: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a setting; repeatable.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Return a setting to its default; repeatable.")
    ] = None,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change settings of a share group, such as share.record.lock.duration.ms. The group need not exist yet."""
    settings = dict(_assignment(each) for each in set_values or ())
    if not settings and not unset:
        raise CommandError("nothing to change: give --set or --unset")
    with ShareLink(bootstrap) as link:
        link.alter(group, settings, unset or [])
    if json_output:
        print_document({"group": group, "set": settings, "unset": unset or []})
    else:
        print(f"changed {counted(len(settings) + len(unset or ()), 'setting')} of share group {group}")


def delete(
    group: GroupName, yes: Yes = False, json_output: JsonOutput = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Delete a share group without members and its offsets."""
    with ShareLink(bootstrap) as link:
        found, offsets = link.describe(group), link.offsets(group)
        if found.members:
            raise CommandError(f"share group {group} has {counted(len(found.members), 'member')}: stop them first")
        if not yes:
            confirm(f"share group {group} forgets what it has finished in {counted(len(offsets), 'partition')}")
        link.delete(group)
    if json_output:
        print_document({"group": group})
    else:
        print(f"deleted share group {group}")


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise CommandError(f"--set {text}: expected NAME=VALUE")
    return name, value


def _lag(offsets: Mapping[TopicPartition, ShareOffset]) -> int | None:
    """Return the lag over all partitions in which it is known, or None if it is known in none."""
    known = [each.lag for each in offsets.values() if each.lag >= 0]
    return sum(known) if known else None


def _number(value: int | None) -> str:
    return NOTHING if value is None or value < 0 else str(value)
