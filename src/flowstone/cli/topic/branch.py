"""`flowstone branch`: creates a topic with the records that another topic contained at a point in time."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flowstone.cli.common.broker_pages import ACCEPTED, find_pages
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap, connect, find_topic
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.text import counted, screen_width, size_text, table
from flowstone.cli.common.times import format_time, parse_time

# The broker responds within 20 s, even if it is still copying.
ANSWER_TIMEOUT_S = 30.0


def register(app: typer.Typer) -> None:
    app.command("branch")(branch)


def branch(
    source: Annotated[
        str, typer.Argument(metavar="TOPIC[@TIME]", help="The topic and the point in time; default: now.")
    ],
    target: Annotated[str, typer.Argument(metavar="NEW-TOPIC", help="The branch's name.")],
    groups: Annotated[
        bool,
        typer.Option(
            "--groups", help="Also copy the offsets that groups have committed in the topic, up to the branch's end."
        ),
    ] = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create a topic with the records that another topic contained at a point in time. The two are independent.

    The topics share files: a branch takes no disk space and almost no time, however large the topic is. TIME is
    milliseconds since 1970, ISO 8601, '2 hours ago' or 'yesterday 09:00'.
    """
    topic, at, text = source.partition("@")
    if at and not text:
        raise CommandError(f"{source}: a time is missing after @, such as {topic}@'2 hours ago'")
    time_ms = parse_time(f"{topic}@", text) if at else None
    admin = connect(bootstrap)
    find_topic(admin, bootstrap, topic, to_use=False)
    pages = find_pages(admin, bootstrap)
    asked = {"cluster_id": pages.cluster_id, "source": topic, "target": target, "time_ms": time_ms, "groups": groups}
    status, made = ACCEPTED, None
    while status == ACCEPTED:  # the same request again waits for the same branch
        status, made = pages.ask("/branch", asked, ANSWER_TIMEOUT_S)
    assert made is not None
    if json_output:
        print_document({name: value for name, value in made.items() if name != "state"})
    else:
        print(_description(made))


def _description(made: dict[str, Any]) -> str:
    partitions = made["partitions"]
    when = f"as of {format_time(made['time_ms'])}" if made["time_ms"] is not None else "as of now"
    linked, copied = (sum(each[name] for each in partitions) for name in ("linked_bytes", "copied_bytes"))
    rows = [[str(each[name]) for name in ("partition", "first_offset", "next_offset")] for each in partitions]
    lines = [
        f"branched {made['topic']} from {made['source']} {when}: {counted(len(partitions), 'partition')}, "
        f"{size_text(linked)} shared, {size_text(copied)} copied",
        table(["partition", "first offset", "next offset"], rows, screen_width()),
    ]
    if made["groups"]:
        lines.append(f"offsets of {counted(len(made['groups']), 'group')}: {', '.join(made['groups'])}")
    return "\n".join(lines)
