"""A bar for work that takes long, for whoever watches: on standard error if that is a terminal, else nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


def no_progress(_position: int) -> None:
    """Nobody watches."""


@contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[Advance]:
    """What it gives takes how far the work has come, out of `total`; None: nobody knows how much there is."""
    if total is None or not sys.stderr.isatty():
        yield no_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(None), TaskProgressColumn(), TimeRemainingColumn())
    # What is printed meanwhile is kept above the bar, but only where both are on the same screen.
    with Progress(
        *columns, console=Console(stderr=True), transient=True, expand=True, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        task = progress.add_task(label, total=total)
        yield lambda position: progress.update(task, completed=position)
