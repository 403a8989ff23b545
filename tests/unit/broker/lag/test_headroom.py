from __future__ import annotations

import random

import pytest

from flowstone.broker.lag.headroom import UnreadSegment, growing_s, headroom_s, is_low
from flowstone.config import MIB, TopicConfig
from flowstone.log.lifecycle.retention import SegmentFacts, retained_from
from flowstone.ports.clock import SimulatedClock

NOW_MS = 1_000_000_000
HOUR_MS = 3_600_000
KEEPS_ALL = TopicConfig(retention_ms=-1)
ONE_HOUR = TopicConfig(retention_ms=HOUR_MS)
TEN_MB = TopicConfig(retention_ms=-1, retention_bytes=10 * MIB)


def a_segment(newest_ms: int = NOW_MS, before: int = 0, size: int = MIB, after: int = 0) -> UnreadSegment:
    return UnreadSegment(newest_ms, before + size, before + size + after)


# Headroom


def test_what_nothing_deletes_has_no_headroom() -> None:
    assert headroom_s(a_segment(), KEEPS_ALL, 1000, NOW_MS) is None


def test_a_topic_that_is_only_compacted_deletes_nothing() -> None:
    config = TopicConfig(cleanup_policy=("compact",), retention_ms=1)
    assert headroom_s(a_segment(), config, 1000, NOW_MS) is None


def test_by_time_the_newest_record_of_the_segment_counts() -> None:
    assert headroom_s(a_segment(NOW_MS - 600_000), ONE_HOUR, 0, NOW_MS) == 3000


def test_by_size_the_segment_goes_when_enough_has_come_after_it() -> None:
    segment = a_segment(before=5 * MIB, after=4 * MIB)
    assert headroom_s(segment, TEN_MB, MIB / 10, NOW_MS) == 60


def test_by_size_nothing_goes_while_nothing_comes() -> None:
    assert headroom_s(a_segment(after=4 * MIB), TEN_MB, 0, NOW_MS) is None


def test_the_smaller_of_both_counts() -> None:
    config = TopicConfig(retention_ms=HOUR_MS, retention_bytes=10 * MIB)
    assert headroom_s(a_segment(), config, MIB, NOW_MS) == 10
    assert headroom_s(a_segment(), config, 1, NOW_MS) == 3600


@pytest.mark.parametrize("segment", [a_segment(NOW_MS - 2 * HOUR_MS), a_segment(after=11 * MIB)])
def test_what_is_due_has_none_left(segment: UnreadSegment) -> None:
    config = TopicConfig(retention_ms=HOUR_MS, retention_bytes=10 * MIB)
    assert headroom_s(segment, config, 100, NOW_MS) == 0


def test_a_segment_that_is_written_to_is_sealed_first() -> None:
    config = TopicConfig(retention_ms=HOUR_MS, segment_bytes=2 * MIB)
    growing = growing_s(MIB, NOW_MS, config, MIB / 100, NOW_MS)
    assert growing == 100
    assert headroom_s(a_segment()._replace(growing_s=growing), config, MIB / 100, NOW_MS) == 3700


def test_a_segment_may_be_sealed_for_its_age() -> None:
    config = TopicConfig(segment_ms=60_000)
    assert growing_s(MIB, NOW_MS - 20_000, config, 1, NOW_MS) == 40


def test_a_segment_that_nothing_is_appended_to_does_not_grow() -> None:
    assert growing_s(MIB, NOW_MS, ONE_HOUR, 0, NOW_MS) == 0


# Warnings


@pytest.mark.parametrize(
    ("headroom", "config", "expected"),
    [
        (None, ONE_HOUR, False),
        (599, TopicConfig(), True),
        (600, TopicConfig(), False),
        (299, TopicConfig(retention_ms=600_000), True),
        (301, TopicConfig(retention_ms=600_000), False),
        (20, TopicConfig(retention_ms=-1, retention_bytes=30 * MIB), False),
        (14, TopicConfig(retention_ms=-1, retention_bytes=30 * MIB), True),
    ],
)
def test_headroom_is_low_below_the_threshold_or_half_of_a_new_record_s(
    headroom: float | None, config: TopicConfig, expected: bool
) -> None:
    assert is_low(headroom, 600, config, MIB) is expected


# Against a model


class Model:
    """A log that grows at a steady rate, in batches of one size, until retention takes a given offset."""

    def __init__(self, config: TopicConfig, batch_bytes: int, interval_s: float) -> None:
        self.config, self.batch_bytes, self.interval_s = config, batch_bytes, interval_s
        self.clock = SimulatedClock()
        # Of each segment: end offset, size, first and newest timestamp.
        self.segments: list[list[int]] = []
        self.start = self.end = 0

    def append(self) -> None:
        self.clock.advance(self.interval_s)
        now_ms = self.clock.time_ms()
        last = self.segments[-1] if self.segments else None
        if (
            last is None
            or last[1] + self.batch_bytes > self.config.segment_bytes
            or now_ms - last[2] > self.config.segment_ms
        ):
            last = [self.end, 0, now_ms, now_ms]
            self.segments.append(last)
        self.end += 1
        last[0], last[1], last[3] = self.end, last[1] + self.batch_bytes, now_ms

    def apply_retention(self) -> None:
        facts = [SegmentFacts(end, size, newest) for end, size, _first, newest in self.segments]
        self.start = retained_from(facts, self.config, self.start, self.end, self.clock.time_ms())
        self.segments = [each for each in self.segments if each[0] > self.start]

    def headroom_s(self, offset: int) -> float | None:
        at = next(index for index, each in enumerate(self.segments) if each[0] > offset)
        _end, size, first, newest = self.segments[at]
        rate, now_ms = self.batch_bytes / self.interval_s, self.clock.time_ms()
        is_active = at == len(self.segments) - 1
        unread = UnreadSegment(
            newest,
            sum(each[1] for each in self.segments[: at + 1]),
            sum(each[1] for each in self.segments),
            growing_s(size, first, self.config, rate, now_ms) if is_active else 0,
        )
        return headroom_s(unread, self.config, rate, now_ms)


@pytest.mark.parametrize("seed", range(40))
def test_a_model_log_deletes_a_record_when_its_headroom_is_over(seed: int) -> None:
    choices = random.Random(seed)
    config = TopicConfig(
        retention_ms=choices.choice((-1, 60_000, 600_000)),
        retention_bytes=choices.choice((2 * MIB, 8 * MIB, 20 * MIB)),
        segment_bytes=choices.choice((MIB, 3 * MIB)),
        segment_ms=choices.choice((20_000, 10**9)),
    )
    model = Model(config, batch_bytes=choices.choice((20_000, 100_000)), interval_s=choices.choice((0.5, 2.0)))
    for _ in range(choices.randrange(1, 200)):
        model.append()
        model.apply_retention()
    offset = choices.randrange(model.start, model.end)
    predicted_s, begun_s = model.headroom_s(offset), model.clock.monotonic()
    assert predicted_s is not None
    while model.start <= offset:
        model.append()
        model.apply_retention()
    # Batches are whole, and so the ends of segments are not quite where a steady stream would put them.
    assert model.clock.monotonic() - begun_s == pytest.approx(predicted_s, abs=5 * model.interval_s)
