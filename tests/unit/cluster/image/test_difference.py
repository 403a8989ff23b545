"""Whoever missed changes gets others that lead to the same image."""

from __future__ import annotations

from dataclasses import replace

from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, BrokerImage, ClusterImage, Endpoint, PartitionImage
from flowstone.cluster.image.records import (
    BrokerConfigChanged,
    BrokerFenced,
    BrokerRegistered,
    BrokerUnregistered,
    ClusterCreated,
    ControllerElected,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    ProducerIdsReserved,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from flowstone.cluster.image.replay import apply, difference

KEPT, GONE, AGAIN = (bytes([number]) * 16 for number in (1, 2, 3))
BROKER = BrokerImage(1, None, {"PLAINTEXT": Endpoint("127.0.0.1", 9092)}, "life", 5)


def partition(leader: int, epoch: int = 0) -> PartitionImage:
    return PartitionImage(leader, epoch, epoch, (1, 2), (1, 2))


def assert_leads(before: ClusterImage, after: ClusterImage) -> None:
    led = apply(before, difference(before, after))
    assert replace(led, version=0) == replace(after, version=0)


HISTORY: list[list[MetadataRecord]] = [
    [ClusterCreated("cluster"), BrokerRegistered(BROKER), ControllerElected(1, 1)],
    [TopicCreated("kept", KEPT, (partition(1), partition(2)), {"a": "1", "b": "2"})],
    [TopicCreated("name", GONE, (partition(1),), {})],
    [BrokerConfigChanged("", {"x": "1", "y": "2"}), BrokerConfigChanged("1", {"z": "3"})],
    [ProducerIdsReserved(1000), BrokerFenced(1, 5), ControllerElected(2, 2)],
    [PartitionChanged(KEPT, 1, partition(1, 1)), PartitionsAdded(KEPT, (partition(2),))],
    [TopicConfigChanged(KEPT, {"a": None, "b": "3", "c": "4"})],
    [TopicDeleted(GONE), TopicCreated("name", AGAIN, (partition(2),), {"d": "5"})],
    [BrokerConfigChanged("", {"x": None}), BrokerConfigChanged("1", {"z": None})],
    [BrokerUnregistered(1, 5)],
]


def test_the_difference_of_any_two_moments_leads_from_one_to_the_other() -> None:
    images = [EMPTY_IMAGE]
    for records in HISTORY:
        images.append(apply(images[-1], records))
    for number, before in enumerate(images):
        for after in images[number:]:
            assert_leads(before, after)


def test_equal_images_differ_in_nothing() -> None:
    image = EMPTY_IMAGE
    for records in HISTORY:
        image = apply(image, records)
    assert difference(image, image) == []


def test_between_equal_images_there_is_no_difference() -> None:
    image = EMPTY_IMAGE
    for records in HISTORY:
        assert list(difference(image, image)) == []
        image = apply(image, records)
        assert image.version > 0
    assert list(difference(image, image)) == []
