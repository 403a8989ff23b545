"""Subscriptions by regular expression: their syntax, and when the topics that match are determined.

The syntax is that of RE2, which takes linear time whatever the expression. A topic matches if its whole name does. The
topics are determined outside of the shard, by a task, at most once in ten seconds for a group: for a new expression,
after topics were created or deleted, and every `group.consumer.regex.refresh.interval.ms`. Until then a new expression
matches nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import re2

from flowstone.coordinator.groups.consumer.group import NOT_SEEN, ConsumerGroup
from flowstone.coordinator.groups.consumer.removal import drop_unused_regexes
from flowstone.coordinator.groups.consumer.target import topics_hash
from flowstone.coordinator.groups.consumer.writing import bump, write_all
from flowstone.coordinator.groups.consumer_records import ConsumerRegexStored
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ApiError, ErrorCode

REFRESH_MIN_MS = 10_000
"""The shortest time between two resolutions of the regular expressions of a group."""

REGEX_CHARACTERS_MAX = 1_024
"""The longest regular expression that a member may subscribe to."""

REGEX_MEMORY_BYTES_MAX = 1 << 20
"""The memory that a compiled regular expression may take."""

COMPILED_REGEXES_MAX = 256


class ResolveRegexes(NamedTuple):
    """A task: determine the topics that match, and call `resolved` with them through `GroupShard.task_done`."""

    group_id: str
    regexes: tuple[str, ...]
    may_see: Callable[[str], bool] | None = None  # topics that the client may not know of do not match


@lru_cache(COMPILED_REGEXES_MAX)
def compile_regex(regex: str) -> Any:
    """Return the compiled expression, whose `fullmatch` matches names. Raises ApiError if the syntax is wrong."""
    if len(regex) > REGEX_CHARACTERS_MAX:
        message = f"SubscribedTopicRegex has {len(regex)} characters; at most {REGEX_CHARACTERS_MAX} are accepted."
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
    options = re2.Options()
    options.max_mem = REGEX_MEMORY_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        told = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        message = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {told}."
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None


def resolve_if_due(turn: Turn, group: ConsumerGroup, may_see: Callable[[str], bool] | None) -> None:
    """Start the resolution of the group's regular expressions if that is due."""
    if not group.regex_subscribers or group.is_resolving:
        return
    resolved = [group.regexes[regex].timestamp_ms for regex in group.regex_subscribers if regex in group.regexes]
    last_ms = max(resolved, default=0)
    if turn.now_ms < last_ms + REFRESH_MIN_MS:
        return
    has_new = len(resolved) < len(group.regex_subscribers)
    has_topics_changed = group.resolved_version != turn.shard.topics.version
    is_old = turn.now_ms >= last_ms + turn.shard.config.consumer_regex_refresh_interval_ms
    if has_new or has_topics_changed or is_old:
        group.is_resolving, group.resolved_version = True, turn.shard.topics.version
        turn.effects.tasks.append(ResolveRegexes(group.group_id, tuple(group.regex_subscribers), may_see))


def resolved(turn: Turn, group: ConsumerGroup, found: dict[str, tuple[str, ...]] | None) -> None:
    """Store the topics that match each regular expression, and raise the group's epoch if they differ.

    None: they could not be determined, and a later heartbeat starts another resolution.
    """
    group.is_resolving = False
    if found is None:
        group.resolved_version = NOT_SEEN
        return
    in_use = {regex: topics for regex, topics in found.items() if regex in group.regex_subscribers}
    changed = [
        regex
        for regex, topics in in_use.items()
        if frozenset(topics) != frozenset(group.regexes[regex].topics if regex in group.regexes else ())
    ]
    version = max(group.resolved_version, 0)
    write_all(
        turn,
        [
            ConsumerRegexStored(group.group_id, regex, tuple(sorted(topics)), version, turn.now_ms)
            for regex, topics in in_use.items()
        ],
    )
    drop_unused_regexes(turn, group)
    if changed:
        bump(turn, group, f"other topics match {', '.join(sorted(changed))}", topics_hash(turn, group))
    turn.shard.measure(group.group_id)
