"""Kafka's rule for where a group's state is. The hash codes are what Java prints."""

from __future__ import annotations

import pytest

from flowstone.coordinator.partitioning import java_hash_code, partition_for


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("console-consumer-22667", 159381974),
        ("gé", 3426),
        ("polygenelubricants", -(2**31)),
        ("\N{GRINNING FACE}", 1772899),
    ],
)
def test_a_strings_hash_is_javas(text: str, code: int) -> None:
    assert java_hash_code(text) == code


def test_a_negative_hash_counts_without_its_sign() -> None:
    assert java_hash_code("group-100") == -1484205661
    assert partition_for("group-100", 50) == 11


def test_the_smallest_hash_is_partition_0() -> None:
    assert partition_for("polygenelubricants", 50) == 0
