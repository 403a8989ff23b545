from __future__ import annotations

import random

import pytest

from flowstone.broker.topics.topic_slices import PART_PARTITIONS, is_large, join_topics, split_topics
from flowstone.wire.messages import OffsetDeleteRequestPartition as Partition
from flowstone.wire.messages import OffsetDeleteRequestTopic as Topic


def topics_of(*sizes: int) -> list[Topic]:
    return [
        Topic(name=f"t{number}", partitions=[Partition(partition_index=index) for index in range(size)])
        for number, size in enumerate(sizes)
    ]


CASES = [
    (),
    (0,),
    (1,),
    (PART_PARTITIONS,),
    (3 * PART_PARTITIONS + 7,),
    (1,) * 2 * PART_PARTITIONS,
    (0, 700, 0, 1, 1500),
]


@pytest.mark.parametrize("sizes", CASES)
def test_parts_are_small_and_together_are_the_whole(sizes: tuple[int, ...]) -> None:
    topics = topics_of(*sizes)
    whole: list[Topic] = []
    for part in split_topics(topics, "partitions"):
        assert len(part.topics) + sum(len(topic.partitions) for topic in part.topics) <= PART_PARTITIONS + 1
        join_topics(whole, part.topics, part.is_continued)
    assert whole == topics_of(*sizes)
    assert topics == topics_of(*sizes)


def test_parts_of_any_topics_are_the_whole() -> None:
    chance = random.Random(5)
    for _ in range(200):
        sizes = [chance.choice((0, 1, 2, 499, 500, 501, chance.randrange(1200))) for _ in range(chance.randrange(8))]
        whole: list[Topic] = []
        for part in split_topics(topics_of(*sizes), "partitions"):
            join_topics(whole, part.topics, part.is_continued)
        assert whole == topics_of(*sizes)


def test_topics_count_as_much_as_partitions() -> None:
    assert not is_large(topics_of(PART_PARTITIONS - 1), "partitions")
    assert is_large(topics_of(PART_PARTITIONS), "partitions")
    assert is_large(topics_of(*[0] * (PART_PARTITIONS + 1)), "partitions")
