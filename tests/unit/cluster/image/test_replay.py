"""Replay: any way of cutting a log into appends, and any snapshot of it, adds up to the same image."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, BrokerImage, ClusterImage, Endpoint, PartitionImage
from flowstone.cluster.image.records import (
    BrokerConfigChanged,
    BrokerFenced,
    BrokerRegistered,
    BrokerUnregistered,
    ClusterCreated,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    ProducerIdsReserved,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    decode,
    encode,
)
from flowstone.cluster.image.replay import apply, snapshot
from flowstone.cluster.logs.log_batches import encode_batch, encode_snapshot, read_batches
from flowstone.errors import StorageFault
from flowstone.types import TopicPartition

PARTITION = PartitionImage(1, 0, 0, (1,), (1,))

numbers = st.integers(0, 2**31 - 1)
node_ids = st.integers(0, 5)
partitions = st.builds(
    PartitionImage,
    st.integers(-1, 5),
    numbers,
    numbers,
    st.lists(node_ids, max_size=3).map(tuple),
    st.lists(node_ids, max_size=3).map(tuple),
)
several_partitions = st.lists(partitions, min_size=1, max_size=4).map(tuple)
names = st.sampled_from(["", "a", "b.c", "b_c", "\u00fc", "\U0001f40d"]) | st.text(max_size=4)
changes = st.dictionaries(names, st.none() | names, max_size=3)
endpoints = st.dictionaries(names, st.builds(Endpoint, names, st.integers(0, 65535)), max_size=2)
broker_records = st.builds(BrokerRegistered, st.builds(BrokerImage, node_ids, st.none() | names, endpoints))


@st.composite
def logs(draw: Any) -> list[MetadataRecord]:
    """A log as controllers write it: every record fits the image of those before it."""
    image, log = EMPTY_IMAGE, []
    for _ in range(draw(st.integers(0, 15))):
        record = draw(_next_record(image))
        image = apply(image, [record])
        log.append(record)
    return log


def _next_record(image: ClusterImage) -> st.SearchStrategy[MetadataRecord]:
    new_name = names.filter(lambda name: name not in image.topics)
    new_id = st.binary(min_size=16, max_size=16).filter(lambda topic_id: topic_id not in image.topics_by_id)
    values = st.dictionaries(names, names, max_size=3)
    possible: list[st.SearchStrategy[MetadataRecord]] = [
        broker_records,
        st.builds(TopicCreated, new_name, new_id, several_partitions, values),
        st.builds(BrokerConfigChanged, st.sampled_from(["", "1", "2"]), changes),
        st.builds(ProducerIdsReserved, st.integers(image.next_producer_id, 2**62)),
    ]
    if image.brokers:
        life = st.sampled_from([(broker.node_id, broker.epoch) for broker in image.brokers.values()])
        possible += [life.map(lambda each: BrokerFenced(*each)), life.map(lambda each: BrokerUnregistered(*each))]
    if not image.cluster_id:
        possible.append(st.builds(ClusterCreated, names.filter(bool)))
    if image.topics:
        topic = st.sampled_from(sorted(image.topics_by_id))
        possible += [
            st.builds(TopicDeleted, topic),
            st.builds(TopicConfigChanged, topic, changes),
            st.builds(PartitionsAdded, topic, several_partitions),
            topic.flatmap(
                lambda topic_id: st.builds(
                    PartitionChanged,
                    st.just(topic_id),
                    st.integers(0, len(image.topics_by_id[topic_id].partitions) - 1),
                    partitions,
                )
            ),
        ]
    return st.one_of(possible)


@given(logs())
@settings(max_examples=30, deadline=None)
def test_every_record_survives_its_json_form(log: list[MetadataRecord]) -> None:
    assert [decode(encode(record)) for record in log] == log


@given(logs(), st.data())
@settings(max_examples=25, deadline=None)
def test_however_a_log_is_cut_into_appends_the_image_is_the_same(log: list[MetadataRecord], data: Any) -> None:
    cut = data.draw(st.integers(0, len(log)))
    one_by_one = reduce(lambda image, record: apply(image, [record]), log, EMPTY_IMAGE)
    assert apply(EMPTY_IMAGE, log) == one_by_one == apply(apply(EMPTY_IMAGE, log[:cut]), log[cut:])
    assert one_by_one.version == len(log) - 1


@given(logs())
@settings(max_examples=25, deadline=None)
def test_names_ids_and_counts_of_an_image_agree(log: list[MetadataRecord]) -> None:
    image = apply(EMPTY_IMAGE, log)
    assert {topic.topic_id: topic for topic in image.topics.values()} == image.topics_by_id
    assert all(name == topic.name for name, topic in image.topics.items())
    assert image.partition_count == sum(len(topic.partitions) for topic in image.topics.values())


@given(logs())
@settings(max_examples=25, deadline=None)
def test_a_snapshot_read_back_is_the_image_down_to_its_version(log: list[MetadataRecord]) -> None:
    image = apply(EMPTY_IMAGE, log)
    first_offset, records, _ = read_batches(encode_snapshot(image, timestamp_ms=0))
    if records:
        assert apply(ClusterImage(version=first_offset - 1), records) == image
    assert len(snapshot(image)) <= len(log)


def test_creating_a_topic_copies_no_other_topics_partitions() -> None:
    many = [TopicCreated(f"t{n}", n.to_bytes(16, "big"), (PARTITION,), {}) for n in range(10_000)]
    before = apply(EMPTY_IMAGE, many)
    after = apply(before, [TopicCreated("one more", b"\xff" * 16, (PARTITION,), {})])
    assert all(after.topics[name] is topic for name, topic in before.topics.items())
    assert "one more" not in before.topics


def test_what_did_not_change_is_shared_between_images() -> None:
    before = apply(EMPTY_IMAGE, [TopicCreated("a", b"a" * 16, (PARTITION,), {})])
    after = apply(before, [ProducerIdsReserved(1000)])
    assert after.topics is before.topics
    assert after.brokers is before.brokers


def test_removing_the_last_dynamic_value_of_a_broker_removes_the_broker_from_the_map() -> None:
    image = apply(EMPTY_IMAGE, [BrokerConfigChanged("1", {"a": "b"}), BrokerConfigChanged("1", {"a": None})])
    assert image.broker_configs == {}


def test_a_partition_is_found_by_topic_and_number_only() -> None:
    image = apply(EMPTY_IMAGE, [TopicCreated("a", b"a" * 16, (PARTITION,), {})])
    assert image.partition(TopicPartition("a", 0)) == PARTITION
    assert image.partition(TopicPartition("a", 1)) is None
    assert image.partition(TopicPartition("a", -1)) is None
    assert image.partition(TopicPartition("b", 0)) is None


@pytest.mark.parametrize(
    "records",
    [
        [ClusterCreated("a"), ClusterCreated("b")],
        [TopicDeleted(b"x" * 16)],
        [TopicConfigChanged(b"x" * 16, {})],
        [TopicCreated("a", b"x" * 16, (PARTITION,), {}), TopicCreated("a", b"y" * 16, (PARTITION,), {})],
        [TopicCreated("a", b"x" * 16, (PARTITION,), {}), TopicCreated("b", b"x" * 16, (PARTITION,), {})],
        [TopicCreated("a", b"x" * 16, (PARTITION,), {}), PartitionChanged(b"x" * 16, 1, PARTITION)],
        [ProducerIdsReserved(1000), ProducerIdsReserved(999)],
        [BrokerFenced(1, 0)],
        [BrokerUnregistered(1, 0)],
        [BrokerRegistered(BrokerImage(1, None, {}, epoch=2)), BrokerUnregistered(1, 1)],
    ],
)
def test_a_record_that_does_not_fit_the_image_is_a_storage_fault(records: list[MetadataRecord]) -> None:
    with pytest.raises(StorageFault, match="the metadata log"):
        apply(EMPTY_IMAGE, records)


def test_a_large_snapshot_is_cut_into_batches_that_follow_one_another() -> None:
    image = apply(EMPTY_IMAGE, [TopicCreated(f"t{n}", n.to_bytes(16, "big"), (PARTITION,), {}) for n in range(2500)])
    data = encode_snapshot(image, timestamp_ms=0)
    assert apply(EMPTY_IMAGE, read_batches(data)[1]) == image
    follow_up = encode_batch([ProducerIdsReserved(1)], image.version + 1, timestamp_ms=0)
    assert read_batches(data + follow_up)[2] == len(data) + len(follow_up)


def test_a_broker_is_fenced_from_its_record_on_until_it_registers_again() -> None:
    registered = BrokerImage(1, None, {})
    image = apply(EMPTY_IMAGE, [BrokerRegistered(registered), BrokerFenced(1, registered.epoch)])
    assert image.brokers[1].is_fenced
    assert not apply(image, [BrokerRegistered(registered)]).brokers[1].is_fenced
