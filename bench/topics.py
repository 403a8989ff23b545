"""A topic for one round: created, served, and deleted so that its page-cache memory is reused.

Used by every workload. A round either ends with complete figures or raises `RoundFailed`.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from bench import wire
from bench.connection import Connection

TOPIC_READY_TIMEOUT_SECONDS = 30
POLL_INTERVAL_SECONDS = 0.02

BROKER_TROUBLE = (OSError, wire.UnexpectedResponse, struct.error)


class RoundFailed(Exception):
    """The round has no figures: an error code, a missing offset or a broker that does not answer."""


class Target(Protocol):
    """The parts of a running broker that a workload uses."""

    @property
    def address(self) -> str: ...
    def cpu_seconds(self) -> float: ...
    def wait_until_deleted(self, topic: str) -> None: ...


@contextmanager
def fresh_topic(target: Target, partitions: int) -> Iterator[str]:
    """Yield the name of a topic whose partitions are served. An error of the broker inside fails the round."""
    topic = f"bench{time.time_ns()}"
    try:
        with Connection(target.address) as admin:
            create(admin, topic, partitions)
            try:
                yield topic
            except (RoundFailed, *BROKER_TROUBLE):
                with suppress(*BROKER_TROUBLE):  # report the first error, not its consequences
                    _recycle(admin, target, topic)
                raise
            _recycle(admin, target, topic)
    except BROKER_TROUBLE as error:
        raise RoundFailed(f"{type(error).__name__}: {error}") from error


def create(admin: Connection, topic: str, partitions: int) -> None:
    """Create a topic and wait until every partition is served, which is after the response."""
    wire.topic_response("CreateTopics", admin.ask(wire.create_topic(topic, partitions)))
    deadline = time.monotonic() + TOPIC_READY_TIMEOUT_SECONDS
    while True:
        errors = wire.list_offsets_errors(admin.ask(wire.list_offsets(topic, range(partitions))))
        if len(errors) == partitions and not any(errors):
            return
        if time.monotonic() > deadline:
            raise RoundFailed(
                f"topic {topic} is not served {TOPIC_READY_TIMEOUT_SECONDS} s after its creation: {errors}"
            )
        time.sleep(POLL_INTERVAL_SECONDS)


def _recycle(admin: Connection, target: Target, topic: str) -> None:
    """Delete the topic and wait until its page-cache memory is free for the next round."""
    wire.topic_response("DeleteTopics", admin.ask(wire.delete_topic(topic)))
    target.wait_until_deleted(topic)
    os.sync()
