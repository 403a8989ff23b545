"""Brokers that register themselves: the cluster's founding, lives and their epochs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowstone.cluster.decisions.registration import NAMED_PARTITIONS_MAX, Registration, controller_id, register_broker
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, BrokerImage, ClusterImage, Endpoint, PartitionImage
from flowstone.cluster.image.features import (
    METADATA_VERSION,
    TRANSACTION_VERSION,
    FeatureRange,
    advertised_features,
)
from flowstone.cluster.image.ids import random_id
from flowstone.cluster.image.records import (
    BrokerFenced,
    BrokerRegistered,
    ControllerElected,
    MetadataRecord,
    TopicCreated,
)
from flowstone.cluster.image.replay import apply
from flowstone.errors import StartupError

SINGLE = BrokerImage(1, None, {"PLAINTEXT": Endpoint("127.0.0.1", 9092)})
MEMBER = replace(SINGLE, incarnation="first")


def register(
    image: ClusterImage, broker: BrokerImage, *, is_clean: bool = True, is_empty: bool = False
) -> tuple[list[MetadataRecord], Registration]:
    return register_broker(image, broker, is_clean=is_clean, new_id=random_id, is_empty=is_empty)


def registered(image: ClusterImage, broker: BrokerImage) -> ClusterImage:
    return apply(image, register(image, broker)[0])


def test_the_first_broker_founds_the_cluster() -> None:
    records, registration = register(EMPTY_IMAGE, SINGLE)
    image = apply(EMPTY_IMAGE, records)
    assert image.cluster_id == registration.cluster_id != ""
    assert list(image.brokers) == [1]


def test_a_single_broker_that_comes_back_changes_nothing_clean_or_not() -> None:
    image = registered(EMPTY_IMAGE, SINGLE)
    image = apply(image, [TopicCreated("t", bytes(16), (PartitionImage(1, 0, 0, (1,), (1,)),), {})])
    assert register(image, SINGLE, is_clean=False)[0] == []


def test_a_broker_that_was_registered_before_there_were_epochs_changes_nothing() -> None:
    image = apply(EMPTY_IMAGE, [BrokerRegistered(SINGLE)])
    records, registration = register(replace(image, cluster_id="c"), SINGLE)
    assert (records, registration) == ([], Registration("c", 0))


def test_another_address_is_registered_in_the_same_life() -> None:
    image = registered(EMPTY_IMAGE, MEMBER)
    moved = replace(MEMBER, listeners={"PLAINTEXT": Endpoint("127.0.0.1", 9093)})
    records, registration = register(image, moved)
    assert records == [BrokerRegistered(replace(moved, epoch=registration.epoch))]
    assert registration.epoch == image.brokers[1].epoch


def test_a_brokers_epoch_is_the_offset_of_its_registration() -> None:
    image = EMPTY_IMAGE
    for incarnation in ("first", "second", "third"):
        records, registration = register(image, replace(MEMBER, incarnation=incarnation))
        position = next(index for index, record in enumerate(records) if isinstance(record, BrokerRegistered))
        assert registration.epoch == image.version + 1 + position
        image = apply(image, records)
        assert image.brokers[1].epoch == registration.epoch


def test_a_new_cluster_begins_with_the_newest_transaction_protocol_that_its_first_broker_supports() -> None:
    for highest in (0, 1, 2):
        features = {METADATA_VERSION: FeatureRange(1, 1), TRANSACTION_VERSION: FeatureRange(0, highest)}
        image = registered(EMPTY_IMAGE, replace(MEMBER, features=features))
        assert image.feature_level(TRANSACTION_VERSION) == highest


def test_a_cluster_of_a_former_release_keeps_its_levels_when_a_new_broker_registers() -> None:
    former = registered(EMPTY_IMAGE, MEMBER)
    image = registered(former, replace(MEMBER, incarnation="new", features=advertised_features()))
    assert image.feature_level(TRANSACTION_VERSION) == 0


def test_a_member_that_was_fenced_registers_again_with_a_larger_epoch() -> None:
    image = registered(EMPTY_IMAGE, MEMBER)
    fenced = apply(image, [BrokerFenced(1, image.brokers[1].epoch)])
    _, registration = register(fenced, MEMBER)
    assert registration.epoch > image.brokers[1].epoch


def last_in_sync_of(count: int, replicas: tuple[int, ...] = (1, 2)) -> ClusterImage:
    image = registered(EMPTY_IMAGE, MEMBER)
    state = PartitionImage(1, 3, 5, replicas, (1,))
    return apply(image, [TopicCreated("t", bytes(16), (state,) * count, {})])


def test_an_empty_broker_does_not_start_where_others_would_drop_what_they_have() -> None:
    back = replace(MEMBER, incarnation="second")
    with pytest.raises(StartupError, match=r"last in-sync replica of t-0: the other"):
        register(last_in_sync_of(1), back, is_empty=True)
    with pytest.raises(StartupError, match=r"t-0, t-1, t-2 and 2 more"):
        register(last_in_sync_of(NAMED_PARTITIONS_MAX + 2), back, is_empty=True)


def test_an_empty_broker_starts_if_no_replica_has_records() -> None:
    image = last_in_sync_of(1, replicas=(1,))
    records, _ = register(image, replace(MEMBER, incarnation="second"), is_empty=True)
    assert apply(image, records).topics["t"].partitions == (PartitionImage(1, 4, 6, (1,), (1,)),)


def test_the_controller_is_the_elected_broker_else_the_lowest_that_is_alive() -> None:
    image = apply(EMPTY_IMAGE, [BrokerRegistered(BrokerImage(node_id, None, {})) for node_id in (3, 1, 2)])
    assert controller_id(EMPTY_IMAGE) == -1
    assert controller_id(image) == 1
    elected = apply(image, [ControllerElected(2, 1)])
    assert controller_id(elected) == 2
    assert controller_id(apply(elected, [BrokerFenced(1, 0), BrokerFenced(2, 0)])) == 3
