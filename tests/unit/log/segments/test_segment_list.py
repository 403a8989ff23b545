"""The segments of a log as a list: which one has an offset, and how many bytes lie between two positions."""

from __future__ import annotations

import pytest

from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import LogPosition
from flowstone.log.segments.segment import Segment
from flowstone.log.segments.segment_list import SegmentList
from flowstone.ports.simulated_files import SimulatedFiles

SIZES = {0: 100, 10: 200, 30: 50}


def segment(base_offset: int, size_bytes: int = 0) -> Segment:
    files = SimulatedFiles()
    files.make_directory("/t-0")
    made = Segment(FileHandles(files, 8), "/t-0", base_offset, created_ms=0, index_interval_bytes=100)
    made.size_bytes = size_bytes
    return made


@pytest.fixture
def segments() -> SegmentList:
    """Segments from offsets 0, 10 and 30, of 100, 200 and 50 bytes."""
    return SegmentList([segment(*each) for each in SIZES.items()])


def at(base_offset: int, position: int) -> LogPosition:
    return LogPosition(base_offset, base_offset, position)


@pytest.mark.parametrize(
    ("begin", "end", "size_bytes"),
    [
        (at(0, 0), at(0, 0), 0),
        (at(0, 20), at(0, 70), 50),
        (at(0, 70), at(0, 20), 0),
        (at(0, 0), at(10, 0), 100),
        (at(0, 1), at(10, 0), 99),
        (at(0, 100), at(10, 1), 1),
        (at(0, 30), at(10, 40), 110),
        (at(0, 30), at(30, 5), 275),
        (at(10, 30), at(30, 5), 175),
        (at(10, 300), at(30, 5), 5),
        (at(10, 201), at(30, 0), 0),
        (at(30, 5), at(10, 30), 0),
    ],
)
def test_bytes_between_two_positions_are_those_that_are_there(
    segments: SegmentList, begin: LogPosition, end: LogPosition, size_bytes: int
) -> None:
    assert segments.bytes_between(begin, end) == size_bytes


def test_an_offset_is_in_the_last_segment_that_begins_at_or_before_it(segments: SegmentList) -> None:
    assert [segments.at(offset) for offset in (0, 9, 10, 29, 30, 99)] == [0, 0, 1, 1, 2, 2]
    assert [each.base_offset for each in segments.from_offset(10)] == [10, 30]
    assert [each.base_offset for each in segments.from_offset(9)] == [0, 10, 30]


def test_a_whole_segment_lies_below_the_next_ones_start(segments: SegmentList) -> None:
    assert [segments.has_any_below(offset) for offset in (0, 9, 10)] == [False, False, True]
    files = SimulatedFiles()
    segments.drop_below(29, files)
    assert [each.base_offset for each in segments] == [10, 30]
    assert not segments.has_any_below(29)
    segments.drop_below(99, files)
    assert [each.base_offset for each in segments] == [30]
    assert not segments.has_any_below(99)


def test_a_run_is_adjacent_and_sealed(segments: SegmentList) -> None:
    first, second, last = segments
    assert segments.has_run([first])
    assert segments.has_run([first, second])
    assert not segments.has_run([second, last])
    assert not segments.has_run([last])
    assert not segments.has_run([second, first])
    assert not segments.has_run([segment(0)])
    added = segment(60)
    segments.add(added)
    assert segments.active is added
    assert segments.has_run([second, last])
    assert not segments.has_run([first, last])


def test_a_run_is_replaced_by_one_segment(segments: SegmentList) -> None:
    first, second, last = segments
    merged = segment(0, 250)
    segments.replace_run([first, second], merged)
    assert list(segments) == [merged, last]
    assert [segments.at(offset) for offset in (0, 15, 30)] == [0, 0, 1]
    assert segments.active is last


def test_what_follows_a_cut_is_gone(segments: SegmentList) -> None:
    shortened = segment(10, 20)
    segments.cut_at(segments[1], shortened, SimulatedFiles())
    assert [each.base_offset for each in segments] == [0, 10]
    assert segments.active is segments[-1] is shortened
    assert [segments.at(offset) for offset in (9, 10, 99)] == [0, 1, 1]
    fresh = segment(40)
    segments.replace_all(fresh, SimulatedFiles())
    assert (list(segments), segments.active, segments.at(45)) == ([fresh], fresh, 0)
