"""How a command fails: one sentence for people, and the exit status."""

from __future__ import annotations

from flowstone.errors import FlowstoneError

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130  # what shells expect of a program ended by SIGINT


class CommandError(FlowstoneError):
    """The command cannot do what was asked. The message is one sentence that says what to do about it."""
