"""A progress bar on standard error, shown only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


def no_progress(_position: int) -> None:
    """Ignore the progress: there is no terminal."""


@contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[Advance]:
    """Yield a function that takes the amount done so far, out of `total`; None if the total is unknown."""
    if total is None or not sys.stderr.isatty():
        yield no_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(None), TaskProgressColumn(), TimeRemainingColumn())
    # Other output is printed above the bar, but only if both are on the same terminal.
    with Progress(
        *columns, console=Console(stderr=True), transient=True, expand=True, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        task = progress.add_task(label, total=total)
        yield lambda position: progress.update(task, completed=position)
