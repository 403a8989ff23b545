"""The errors of pipelines. Each message is for the user: what is wrong, where, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass

from flowstone.errors import FlowstoneError


@dataclass(frozen=True)
class Place:
    """A line of the file in which something was declared."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class PipelineError(FlowstoneError):
    """A pipeline that cannot be used as it is declared, or that cannot continue."""

    def __init__(self, message: str, place: Place | None = None) -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place


class ExpectationFailed(PipelineError):
    """Rows do not meet an expectation that fails the pipeline: to run it again without a change does not help."""


class TryLater(PipelineError):
    """The pipeline cannot run now, but may run later as it is: the broker is away, or another run has the lease."""
