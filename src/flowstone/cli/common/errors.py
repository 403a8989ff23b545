"""Failure of a command: one sentence for users, and the exit status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flowstone.errors import ErrorCode, FlowstoneError

_UNAUTHORIZED = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
)
EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130  # what shells expect of a program ended by SIGINT
EXIT_CLOSED_PIPE = 141  # and by SIGPIPE: the reader of its output, such as `head`, has closed the pipe


class CommandError(FlowstoneError):
    """The command cannot do what was requested. The message is one sentence that says what to do about it."""

    exit_status = EXIT_FAILURE


def refused(code: int, reason: str | None) -> CommandError:
    """Return the error of a request that the broker refused, with what to do if a permission is missing."""
    told = f"the broker refused: {reason or ErrorCode(code).name}"
    if code not in _UNAUTHORIZED:
        return CommandError(told)
    return CommandError(
        f"{told.rstrip('.')}: this user lacks a permission, which the broker's audit log names; an administrator can "
        "give it with `flowstone acl add`"
    )


@contextmanager
def system_errors(path: str) -> Iterator[None]:
    """Turn an OSError into a CommandError that names the file, or `path` where the system does not say which file."""
    try:
        yield
    except OSError as error:
        advice = ": run as the broker's user" if isinstance(error, PermissionError) else ""
        raise CommandError(f"cannot use {error.filename or path}: {error.strerror or error}{advice}") from None
