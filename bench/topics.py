"""A topic that lives for one round: created, served, and deleted so that its page-cache memory comes back.

Shared by every workload. A round either ends with complete figures or raises `RoundFailed`; nothing in between.
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
    """An error code, a lost offset or a broker that does not answer: the round has no figures."""


class Target(Protocol):
    """What a workload needs of a running broker."""

    @property
    def address(self) -> str: ...
    def cpu_seconds(self) -> float: ...
    def wait_until_deleted(self, topic: str) -> None: ...


@contextmanager
def fresh_topic(target: Target, partitions: int) -> Iterator[str]:
    """The name of a topic whose partitions are being served. Trouble with the broker inside fails the round."""
    topic = f"bench{time.time_ns()}"
    try:
        with Connection(target.address) as admin:
            create(admin, topic, partitions)
            try:
                yield topic
            except (RoundFailed, *BROKER_TROUBLE):
                with suppress(*BROKER_TROUBLE):  # what failed the round is the news, not what follows from it
                    _recycle(admin, target, topic)
                raise
            _recycle(admin, target, topic)
    except BROKER_TROUBLE as error:
        raise RoundFailed(f"{type(error).__name__}: {error}") from error


def create(admin: Connection, topic: str, partitions: int) -> None:
    """Returns once every partition is served: CreateTopics is answered when the topic is decided on."""
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
    """Deleted data gives its page-cache memory back: the next round must not pay for fresh memory."""
    wire.topic_response("DeleteTopics", admin.ask(wire.delete_topic(topic)))
    target.wait_until_deleted(topic)
    os.sync()
