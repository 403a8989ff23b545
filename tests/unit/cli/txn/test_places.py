"""The places that commands take and print."""

from __future__ import annotations

import pytest

from flowstone.cli.common.errors import CommandError
from flowstone.cli.txn.places import parse_partition, parse_place, place_text
from flowstone.types import TopicPartition


@pytest.mark.parametrize("text", ["orders/0", "a.b-c_d/2147483647"])
def test_a_partition_is_read_as_it_is_printed(text: str) -> None:
    assert place_text(parse_partition(text)) == text
    assert parse_place(text) == (parse_partition(text), None)


def test_an_offset_is_read_as_it_is_printed() -> None:
    where = TopicPartition("orders", 3)
    assert parse_place(place_text(where, 2**63 - 1)) == (where, 2**63 - 1)


@pytest.mark.parametrize("text", ["", "orders", "orders/", "/0", "a/b/0", "orders/2147483648", "orders/-1", "orders/²"])
def test_anything_else_is_no_partition(text: str) -> None:
    with pytest.raises(CommandError, match="expected TOPIC/PARTITION"):
        parse_partition(text)


@pytest.mark.parametrize("text", ["orders/0@", "orders@0", "orders/0@-1", "orders/0@9223372036854775808", "o/0@1@2"])
def test_anything_else_is_no_offset(text: str) -> None:
    with pytest.raises(CommandError, match="expected TOPIC/PARTITION@OFFSET"):
        parse_place(text)
