"""`flowstone group watch`: shows a group live until Ctrl-C.

On a terminal one table is redrawn. Otherwise each view is printed below the last one or, with --json, is one document
on a line. Rates are computed from two consecutive views.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowstone.broker.lag.group_status import GroupStatus
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap, connect
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.numbers import SECONDS_MAX, finite
from flowstone.cli.common.text import screen_width, table
from flowstone.cli.group.reading import GroupName, GroupReader
from flowstone.cli.group.tables import (
    MEMBER_COLUMNS,
    described,
    headline,
    member_rows,
    missing_times,
    number,
    partition_columns,
    partition_rows,
)

if TYPE_CHECKING:
    from rich.console import Group as Block

DEFAULT_INTERVAL_S = 2.0
INTERVAL_MIN_S = 0.1
REBALANCES_SHOWN = 5

Rates = dict[tuple[str, int], tuple[float | None, float | None]]


def watch(
    group: GroupName,
    interval: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=INTERVAL_MIN_S, max=SECONDS_MAX, callback=finite, help="Seconds between two views."
        ),
    ] = DEFAULT_INTERVAL_S,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a group live: members, partitions, lag, headroom, rates and rebalances. Ctrl-C ends it."""
    watched = Watched(GroupReader(connect(bootstrap), bootstrap), group)
    watched.look()
    try:
        if json_output:
            _repeat(watched, interval, lambda: print_document(watched.document()))
        elif screen_width() is None:
            _repeat(watched, interval, lambda: print(f"{watched.text()}\n"))
        else:
            _draw(watched, interval)
    except KeyboardInterrupt:
        return  # Ctrl-C ends the command


def _repeat(watched: Watched, interval_s: float, show: Callable[[], None]) -> None:
    pause = threading.Event()
    while True:
        show()
        sys.stdout.flush()
        pause.wait(interval_s)
        watched.look()


def _draw(watched: Watched, interval_s: float) -> None:
    from rich.live import Live

    with Live(watched.block(), auto_refresh=False) as live:
        _repeat(watched, interval_s, lambda: live.update(watched.block(), refresh=True))


class Watched:
    """A group's current state, with the rebalances since the start of the command."""

    def __init__(self, reader: GroupReader, group_id: str) -> None:
        self._reader, self._group_id = reader, group_id
        self._group: GroupStatus | None = None
        self._looked_s = 0.0
        self._rates: Rates = {}
        self._rebalances: deque[str] = deque(maxlen=REBALANCES_SHOWN)

    @property
    def group(self) -> GroupStatus:
        assert self._group is not None
        return self._group

    def look(self) -> None:
        before, before_s = self._group, self._looked_s
        self._group, self._looked_s = self._reader.read(self._group_id), time.monotonic()
        if before is not None:
            self._rates = rates(before, self._group, self._looked_s - before_s)
        seen = before.rebalance_count if before is not None else 0
        if self._group.rebalance_count > seen:
            self._rebalances.append(_rebalance(self._group, self._group.rebalance_count - seen))

    def document(self) -> dict[str, Any]:
        document = {"time": int(time.time() * 1000), **described(self.group)}
        for each in document["partitions"]:
            appended, read = self._rates.get((each["topic"], each["partition"]), (None, None))
            each |= {"appended_per_second": appended, "read_per_second": read}
        return document

    def text(self) -> str:
        parts = [f"{_clock(time.time())} {headline(self.group)}"]
        if self.group.members:
            parts.append(table(MEMBER_COLUMNS, member_rows(self.group)))
        if self.group.partitions:
            parts.append(table(self._columns(), self._rows()))
        return "\n".join([*parts, *self._rebalances]) + missing_times(self._reader.problem)

    def block(self) -> Block:
        from rich.console import Group as Block
        from rich.table import Table
        from rich.text import Text

        parts: list[Table | Text] = [Text(f"{_clock(time.time())} {headline(self.group)}", style="bold")]
        for columns, rows in ((MEMBER_COLUMNS, member_rows(self.group)), (self._columns(), self._rows())):
            drawn = Table(*columns, box=None, pad_edge=False, header_style="dim")
            for row in rows:
                drawn.add_row(*map(Text, row))
            if rows:
                parts += [Text(), drawn]
        parts += [Text(), *map(Text, self._rebalances)] if self._rebalances else []
        if self._reader.problem is not None:
            parts.append(Text(missing_times(self._reader.problem)))
        return Block(*parts)

    def _columns(self) -> list[str]:
        return [*partition_columns(self.group, self._reader.problem is None), "in/s", "read/s"]

    def _rows(self) -> list[list[str]]:
        rows = partition_rows(self.group, self._reader.problem is None)
        found = (self._rates.get((each.topic, each.partition), (None, None)) for each in self.group.partitions)
        return [[*row, _rate(appended), _rate(read)] for row, (appended, read) in zip(rows, found, strict=True)]


def rates(before: GroupStatus, after: GroupStatus, elapsed_s: float) -> Rates:
    """Return records per second appended to and read from each partition; None if unknown."""
    earlier = {(each.topic, each.partition): each for each in before.partitions}
    found: Rates = {}
    for each in after.partitions:
        was = earlier.get((each.topic, each.partition))
        if was is None:
            continue
        appended = (each.high_watermark - was.high_watermark) / elapsed_s
        read = None
        if each.committed_offset is not None and was.committed_offset is not None:
            read = (each.committed_offset - was.committed_offset) / elapsed_s
        found[each.topic, each.partition] = appended, read
    return found


def _rate(value: float | None) -> str:
    return number(round(value) if value is not None else None)


def _rebalance(group: GroupStatus, count: int) -> str:
    others = f" (and {count - 1} before it)" if count > 1 else ""
    return f"{_clock(group.rebalance_timestamp_ms / 1000)} rebalance{others}: {group.rebalance_reason}"


def _clock(time_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_s))
