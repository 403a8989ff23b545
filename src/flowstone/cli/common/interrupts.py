"""Ctrl-C for a command that reads and passes on: it ends the reading, and what was read before is brought to its end.

Otherwise an interrupt could come while a record is counted, and the count that people are told would be wrong. A second
Ctrl-C ends the command on the spot.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType
from typing import Self, TypeVar

Item = TypeVar("Item")


class Interrupts:
    """Within its `with` block the first SIGINT is only heard."""

    def __init__(self) -> None:
        self.heard = False
        self._reading = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def read(self, source: Iterable[Item]) -> Iterator[Item]:
        """The items of the source, until an interrupt: also one that comes while waiting for the next item."""
        items = iter(source)
        while not self.heard:
            self._reading = True
            try:
                item = next(items)
            except (StopIteration, KeyboardInterrupt):
                return
            finally:
                self._reading = False
            yield item

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        again, self.heard = self.heard, True
        if again or self._reading:
            raise KeyboardInterrupt
