"""An image being changed: what records see of those before them, and what the finished image shares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, PartitionImage, TopicImage
from flowstone.cluster.image.draft import Draft
from flowstone.errors import StorageFault

ID = b"i" * 16
OLD, NEW = PartitionImage(1, 0, 0, (1,), (1,)), PartitionImage(2, 1, 1, (2,), (2,))
TOPIC = TopicImage("t", ID, (OLD, OLD))


def draft_with_topic() -> Draft:
    draft = Draft(EMPTY_IMAGE)
    draft.topics.create(TOPIC)
    return Draft(draft.finish(0))


def test_partitions_changed_one_by_one_are_seen_by_the_next_record() -> None:
    draft = draft_with_topic()
    draft.topics.change_partition(ID, 1, NEW)
    draft.topics.put(replace(draft.topics.get(ID), configs={"a": "1"}))
    draft.topics.change_partition(ID, 0, NEW)
    assert draft.finish(1).topics["t"] == TopicImage("t", ID, (NEW, NEW), {"a": "1"})


def test_partitions_are_counted_as_they_come_and_go() -> None:
    draft = draft_with_topic()
    draft.topics.put(replace(TOPIC, partitions=(OLD, OLD, NEW)))
    assert draft.finish(1).partition_count == 3
    draft.topics.delete(ID)
    assert draft.finish(2).partition_count == 0


def test_the_next_record_does_not_see_a_deleted_topic() -> None:
    draft = draft_with_topic()
    draft.topics.change_partition(ID, 0, NEW)
    draft.topics.delete(ID)
    with pytest.raises(StorageFault, match="unknown topic"):
        draft.topics.get(ID)
    draft.topics.create(TOPIC)
    assert draft.finish(1).topics_by_id[ID] == TOPIC


def test_an_image_whose_topics_did_not_change_shares_them() -> None:
    before = draft_with_topic().image
    draft = Draft(before)
    draft.image = replace(draft.image, next_producer_id=5)
    after = draft.finish(7)
    assert after.topics is before.topics
    assert (after.next_producer_id, after.version) == (5, 7)


def test_a_map_is_copied_once_for_all_records_and_that_of_the_image_before_stays_as_it_is() -> None:
    before = replace(EMPTY_IMAGE, quotas={(("user", "a"),): {"producer_byte_rate": 1.0}})
    draft = Draft(before)
    first = draft.copied("quotas")
    first[(("user", "b"),)] = {}
    assert draft.copied("quotas") is first
    assert draft.finish(1).quotas is first
    assert len(before.quotas) == 1
