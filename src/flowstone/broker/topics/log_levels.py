"""The levels of this broker's loggers as settings of the resource type BROKER_LOGGER, which end with the process.

The names are those of Python's loggers, and `root`. The levels are Kafka's: TRACE is DEBUG here, and FATAL is the level
above ERROR.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from flowstone.cluster.decisions.config_changes import ConfigOperation, Operation
from flowstone.errors import ApiError, ErrorCode

ROOT = "root"
LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_NAMES = {level: name for name, level in LEVELS.items()}


def log_levels() -> dict[str, str]:
    """Return the level in force of each logger of the broker, by name."""
    names = sorted(name for name in logging.root.manager.loggerDict if name.split(".")[0] == "flowstone")
    return {name: _name_of(_logger(name).getEffectiveLevel()) for name in (ROOT, *names)}


def alter_log_levels(operations: Sequence[ConfigOperation], *, validate_only: bool) -> None:
    """Change the levels of loggers; all of them or, if one change is refused, none. Raises ApiError then."""
    known = log_levels()
    for each in operations:
        _check(each, known)
    for each in () if validate_only else operations:
        is_set = each.operation == Operation.SET
        _logger(each.name).setLevel(LEVELS[(each.value or "").upper()] if is_set else logging.NOTSET)


def _check(operation: ConfigOperation, known: dict[str, str]) -> None:
    if operation.operation not in (Operation.SET, Operation.DELETE):
        kinds = f"{Operation.SET.name} and {Operation.DELETE.name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Log levels of loggers support {kinds} only")
    if operation.name not in known:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {operation.name} does not exist!")
    if operation.operation == Operation.DELETE:
        if operation.name == ROOT:
            message = "Removing the log level of the root logger is not allowed"
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
    elif (operation.value or "").upper() not in LEVELS:
        message = f"Cannot set the log level of {operation.name} to {operation.value}: use one of {', '.join(LEVELS)}"
        raise ApiError(ErrorCode.INVALID_CONFIG, message)


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _name_of(level: int) -> str:
    return _NAMES.get(level, "DEBUG" if level < logging.INFO else "INFO")
