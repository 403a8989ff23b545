"""Batch reads of topics by a real Spark session."""

from __future__ import annotations


def values(frame):
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def test_a_topic_is_read_from_the_first_to_the_last_record(topic, fill, load):
    fill(topic, [f"v{number}" for number in range(100)])
    assert values(load(topic)) == sorted(f"v{number}" for number in range(100))
