"""Kafka's rules for topic names, which also prevent path traversal: a name is a directory's name on disk."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection

from flowstone.errors import ApiError, ErrorCode

TOPIC_NAME_LENGTH_MAX = 249
CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"
CLUSTER_METADATA = "__cluster_metadata"

# Topics in which coordinators store their state. Only the broker creates, enlarges and writes them.
INTERNAL_TOPICS = frozenset((CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE))
# With more dots and underscores than this a collision is searched for among all names.
VARIED_CHARACTERS_MAX = 6
_COLLIDING = re.compile(r"[._]")
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION if Kafka would refuse the name."""
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        problem = f"the length of '{name}' is longer than the max allowed length {TOPIC_NAME_LENGTH_MAX}"
    elif not _LEGAL.fullmatch(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def find_collision(name: str, existing: Collection[str]) -> str | None:
    """Return a name that differs from `name` only in '.' and '_': the two would share their metrics' names in Kafka."""
    parts = _COLLIDING.split(name)
    if len(parts) == 1:
        return None
    if len(parts) - 1 <= VARIED_CHARACTERS_MAX:
        # Trying the few spellings of the name is cheaper than comparing it with ten thousand names.
        variants = map("".join, itertools.product(*((part + ".", part + "_") for part in parts[:-1]), (parts[-1],)))
        return next((variant for variant in variants if variant in existing), None)
    length, unified = len(name), name.replace(".", "_")
    return next((each for each in existing if len(each) == length and each.replace(".", "_") == unified), None)
