from __future__ import annotations

import random
import struct

import pytest

from flowstone.coordinator.groups.classic.consumer_protocol import (
    assigned_partitions,
    owned_partitions,
    subscribed_topics,
)
from flowstone.types import TopicPartition
from tests.unit.coordinator.groups.harness import assignment, subscription

T0, U1 = TopicPartition("t", 0), TopicPartition("u", 1)


def test_topics_and_owned_partitions_are_read() -> None:
    data = subscription(["t", "u"], "user data", owned="t-0,u-1")
    assert subscribed_topics(data) == frozenset({"t", "u"})
    assert owned_partitions(data) == {T0, U1}


def test_version_0_owns_nothing() -> None:
    data = struct.pack(">h", 0) + subscription(["t"], owned="t-0")[2:]
    assert subscribed_topics(data) == frozenset({"t"})
    assert owned_partitions(data) == set()


def test_null_user_data_is_no_user_data() -> None:
    data = subscription(["t"], owned="t-0").replace(struct.pack(">i", 0), struct.pack(">i", -1), 1)
    assert owned_partitions(data) == {T0}


def test_assigned_partitions_are_read() -> None:
    assert assigned_partitions(assignment("t-0,u-1")) == {T0, U1}
    assert assigned_partitions(b"") == set()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"not a subscription",
        struct.pack(">hi", 0, 2**31 - 1),
        struct.pack(">hi", 0, -1),
        struct.pack(">hih", 0, 1, -1),
        struct.pack(">hih", 0, 1, 5) + b"t",
        struct.pack(">hih", 0, 1, 1) + b"\xff",
    ],
)
def test_bytes_that_are_no_subscription_are_not_known(data: bytes) -> None:
    assert subscribed_topics(data) is None
    assert owned_partitions(data) == set()
    assert assigned_partitions(data) == set()


def test_damaged_bytes_never_raise() -> None:
    rng = random.Random(1)
    whole = subscription(["topic", "t"], "data", owned="t-0,u-1") + assignment("t-0,u-1")
    for _ in range(3_000):
        data = bytearray(whole[: rng.randint(0, len(whole))])
        for _ in range(rng.randint(0, 4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        for read in (subscribed_topics, owned_partitions, assigned_partitions):
            read(bytes(data))
