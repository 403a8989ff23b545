"""Handling of Ctrl-C in commands that process a stream: reading ends, and items already read are completed.

Otherwise an interrupt could arrive while a record is counted, and the printed count would be wrong. A second Ctrl-C
ends the command immediately.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType
from typing import Self, TypeVar

Item = TypeVar("Item")


class Interrupts:
    """A context in which the first SIGINT only ends reading."""

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
        """Yield the items of the source until an interrupt, which also ends waiting for the next item."""
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
