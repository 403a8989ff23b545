"""Which letters are settled: before an offset, and single ones after it."""

from __future__ import annotations

import pytest

from flowstone.cli.common.errors import CommandError
from flowstone.cli.dlq.settled import METADATA_BYTES_MAX, Settled


def test_letters_behind_open_ones_are_remembered_in_the_metadata() -> None:
    settled = Settled(3)
    for offset in (7, 5, 6, 9, 9):
        settled.add(offset)
    settled.advance(4)
    again = Settled(settled.next_offset, settled.metadata())
    assert again.next_offset == 4
    assert [offset for offset in range(12) if offset in again] == [0, 1, 2, 3, 5, 6, 7, 9]


def test_ranges_that_are_reached_are_passed_and_forgotten() -> None:
    settled = Settled(0, "settled 2-4 5 8")
    settled.advance(2)
    assert (settled.next_offset, settled.metadata()) == (6, "settled 8")
    settled.advance(20)
    assert (settled.next_offset, settled.metadata()) == (20, "")


@pytest.mark.parametrize("metadata", ["", " ", "other 3", "settled x", "settled 3-", "3"])
def test_metadata_of_others_says_nothing(metadata: str) -> None:
    settled = Settled(1, metadata)
    assert [offset for offset in range(6) if offset in settled] == [0]


def test_what_no_commit_can_hold_is_refused() -> None:
    settled = Settled(0)
    for offset in range(1, METADATA_BYTES_MAX, 2):
        settled.add(offset)
    with pytest.raises(CommandError, match="from offset 0 on first"):
        settled.metadata()
