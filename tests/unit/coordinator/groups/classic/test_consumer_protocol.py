from __future__ import annotations

import random
import struct
from struct import pack

import pytest

from flowstone.coordinator.groups.classic.consumer_protocol import (
    assigned_partitions,
    encode_assignment,
    has_user_data,
    owned_partitions,
    subscribed_topics,
    version_of,
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


@pytest.mark.parametrize("version", [0, 1, 3])
def test_an_assignment_is_read_as_it_was_written(version: int) -> None:
    partitions = {TopicPartition("t", 1), TopicPartition("t", 0), TopicPartition("ü", 7)}
    data = encode_assignment(version, partitions)
    assert assigned_partitions(data) == partitions
    assert version_of(data) == version
    assert not has_user_data(data)


def test_an_assignment_is_written_by_topic_in_kafkas_form() -> None:
    data = encode_assignment(2, [TopicPartition("b", 5), TopicPartition("a", 9), TopicPartition("b", 1)])
    assert data == (
        pack(">hi", 2, 2) + pack(">h1sii", 1, b"a", 1, 9) + pack(">h1siii", 1, b"b", 2, 1, 5) + pack(">i", -1)
    )
    assert encode_assignment(0, []) == pack(">hii", 0, 0, -1)


@pytest.mark.parametrize(("data", "version"), [(b"", 0), (b"\0", 0), (pack(">h", 3), 3), (pack(">h", -1), 0)])
def test_the_version_of_bytes_that_have_none_is_zero(data: bytes, version: int) -> None:
    assert version_of(data) == version


@pytest.mark.parametrize(
    ("user_data", "has_data"), [(pack(">i", -1), False), (pack(">i", 0), False), (pack(">i", 1) + b"x", True)]
)
def test_an_assignors_own_data_is_noticed(user_data: bytes, has_data: bool) -> None:
    assert has_user_data(pack(">hi", 0, 0) + user_data) is has_data


def test_an_assignment_that_is_cut_short_is_none() -> None:
    assert not has_user_data(b"")
    for data in (b"\0", pack(">h", 0), pack(">hi", 0, 0), pack(">hi", 0, 1)):
        with pytest.raises(ValueError):  # noqa: PT011 - either the count or the bytes are wrong
            has_user_data(data)


def test_an_array_may_be_as_long_as_the_bytes_that_are_left() -> None:
    assert subscribed_topics(pack(">hi", 0, 2) + pack(">hh", 0, 0)) == {""}
    assert subscribed_topics(pack(">hi", 0, 3) + pack(">hh", 0, 0)) is None
    assert subscribed_topics(pack(">hi", 0, -1)) is None
    assert subscribed_topics(pack(">hi", 0, 1) + pack(">h", -1)) is None
    assert subscribed_topics(pack(">hi", 0, 1) + pack(">h", 2) + b"a") is None


def test_partitions_are_owned_since_version_1() -> None:
    owned = pack(">i", 1) + pack(">h1sii", 1, b"t", 1, 4)
    for version, expected in ((0, set()), (1, {TopicPartition("t", 4)}), (2, {TopicPartition("t", 4)})):
        assert owned_partitions(pack(">hi", version, 0) + pack(">i", 2) + b"xy" + owned) == expected
