"""How the topics of coordinators are created, whichever brokers are there."""

from __future__ import annotations

from flowstone.broker.coordinators.internal_topics import new_topic, offsets_topic
from flowstone.cluster.decisions.partition_plans import DEFAULT_COUNT
from flowstone.cluster.image.cluster_image import BrokerImage, ClusterImage
from flowstone.config import parse_broker_config

TOPIC = offsets_topic(
    parse_broker_config({"offsets.topic.num.partitions": "4", "offsets.topic.replication.factor": "3"})[0]
)


def cluster(brokers: int, fenced: int = 0) -> ClusterImage:
    members = [BrokerImage(node_id, "", {}, is_fenced=node_id <= fenced) for node_id in range(1, brokers + 1)]
    return ClusterImage(brokers={member.node_id: member for member in members})


def test_the_offsets_topic_is_compacted_and_takes_what_the_settings_say() -> None:
    new = new_topic(TOPIC, cluster(3))
    assert (new.name, new.num_partitions, new.replication_factor) == ("__consumer_offsets", 4, 3)
    assert ("cleanup.policy", "compact") in new.configs


def test_a_small_cluster_gets_as_many_replicas_as_it_has_brokers() -> None:
    assert new_topic(TOPIC, cluster(2)).replication_factor == 2
    assert new_topic(TOPIC, ClusterImage()).replication_factor == 1


def test_brokers_that_are_away_get_replicas_if_too_few_are_there() -> None:
    new = new_topic(TOPIC, cluster(3, fenced=1))
    assert (new.num_partitions, new.replication_factor) == (DEFAULT_COUNT, DEFAULT_COUNT)
    assert [(index, sorted(replicas)) for index, replicas in new.assignments] == [(at, [1, 2, 3]) for at in range(4)]


def test_brokers_that_are_away_are_left_out_if_enough_are_there() -> None:
    assert new_topic(TOPIC, cluster(4, fenced=1)).assignments == ()
