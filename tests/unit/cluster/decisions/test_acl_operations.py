"""The sets of operations in responses, with the bits of Kafka's numbers."""

from __future__ import annotations

from flowstone.cluster.decisions.acl_operations import (
    ALL_CLUSTER_OPERATIONS,
    ALL_GROUP_OPERATIONS,
    ALL_TOPIC_OPERATIONS,
)


def bits(*numbers: int) -> int:
    return int("".join("1" if at in numbers else "0" for at in reversed(range(15))), 2)


def test_a_resources_set_has_the_bits_of_the_operations_it_knows() -> None:
    """Kafka's numbers: READ is 3, WRITE 4, and so on up to IDEMPOTENT_WRITE, which is 12."""
    assert bits(3, 4, 5, 6, 7, 8, 10, 11) == ALL_TOPIC_OPERATIONS
    assert bits(5, 7, 8, 9, 10, 11, 12) == ALL_CLUSTER_OPERATIONS
    assert bits(3, 6, 8, 10, 11) == ALL_GROUP_OPERATIONS
