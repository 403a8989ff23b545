"""The cluster benchmark's own bytes, placements and gates."""

from __future__ import annotations

from struct import pack

from bench import cluster_wire
from bench.cases import Case
from bench.cluster_gates import DEFAULTS, EQUAL, FAILOVER, IDLE, THROUGHPUT, verdicts
from bench.cluster_load import spread
from bench.cluster_wire import Placed
from bench.load import Figures
from bench.modes import FLOWSTONE, KAFKA
from flowstone.wire.codec import request_decoder, response_encoder
from flowstone.wire.messages import (
    CreateTopicsRequest,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

REQUEST_HEADER_BYTES = 4 + 8 + 2 + len("flowstone-bench")


def test_a_topic_is_asked_for_with_the_brokers_of_each_partition() -> None:
    frame = cluster_wire.create_topic("t", [[1, 2, 3], [2, 3, 1]])
    request = request_decoder(19, 2)(memoryview(frame), REQUEST_HEADER_BYTES)
    assert isinstance(request, CreateTopicsRequest)
    (topic,) = request.topics
    placed = [(each.partition_index, list(each.broker_ids)) for each in topic.assignments]
    assert (topic.name, placed) == ("t", [(0, [1, 2, 3]), (1, [2, 3, 1])])


def test_metadata_is_asked_for_of_one_topic() -> None:
    request = request_decoder(3, 1)(memoryview(cluster_wire.metadata("t")), REQUEST_HEADER_BYTES)
    assert isinstance(request, MetadataRequest)
    assert [topic.name for topic in request.topics or []] == ["t"]


def test_leaders_and_replicas_in_sync_are_read_from_metadata() -> None:
    partitions = [
        MetadataResponsePartition(partition_index=0, leader_id=2, replica_nodes=[2, 3], isr_nodes=[2]),
        MetadataResponsePartition(partition_index=1, leader_id=-1, replica_nodes=[3, 2], isr_nodes=[3, 2]),
    ]
    assert cluster_wire.partitions(metadata(MetadataResponseTopic(name="t", partitions=partitions))) == [
        Placed(0, 2, (2,)),
        Placed(1, -1, (3, 2)),
    ]


def test_a_topic_that_a_broker_does_not_know_yet_has_no_partitions() -> None:
    unknown = MetadataResponseTopic(error_code=3, name="t", partitions=[])
    assert cluster_wire.partitions(metadata(unknown)) == []


def test_leaders_go_round_and_every_broker_has_each_partition() -> None:
    assert spread(4) == [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]


def test_throughput_is_judged_flushed_and_not_flushed() -> None:
    theirs: Figures = {"produce_mb_per_s": 10.0, "produce_cpu_s_per_gb": 10.0}
    cases = [
        case(THROUGHPUT, EQUAL, {"produce_mb_per_s": 11.9, "produce_cpu_s_per_gb": 6.0}, theirs),
        case(THROUGHPUT, DEFAULTS, {"produce_mb_per_s": 10.0, "produce_cpu_s_per_gb": 6.0}, theirs),
    ]
    judged = [(each.case.mode, each.gate.metric, each.passed) for each in verdicts(cases) if each.gate.binding]
    assert judged == [
        (EQUAL, "produce_mb_per_s", False),
        (DEFAULTS, "produce_mb_per_s", True),
        (EQUAL, "produce_cpu_s_per_gb", True),
    ]


def test_memory_is_judged_by_itself_and_a_failover_by_kafkas() -> None:
    cases = [
        case(IDLE, DEFAULTS, {"rss_mb": 351.0}, {"rss_mb": 2_000.0}),
        case(FAILOVER, DEFAULTS, {"longest_gap_s": 4.0}, {"longest_gap_s": 5.0}),
    ]
    judged = {each.gate.metric: each.passed for each in verdicts(cases) if each.gate.binding}
    assert judged == {"rss_mb": False, "longest_gap_s": True}


def test_a_cluster_without_a_round_that_counts_misses_its_gate() -> None:
    empty = Case(FAILOVER, DEFAULTS, "", "longest_gap_s", {FLOWSTONE: [], KAFKA: [{"longest_gap_s": 5.0}]})
    assert not any(each.passed for each in verdicts([empty]))


def case(workload: str, mode: str, ours: Figures, theirs: Figures) -> Case:
    return Case(workload, mode, "", next(iter(ours)), {FLOWSTONE: [ours], KAFKA: [theirs]})


def metadata(topic: MetadataResponseTopic) -> bytes:
    brokers = [
        MetadataResponseBroker(node_id=2, host="h", port=9, rack=None),
        MetadataResponseBroker(node_id=3, host="h", port=9, rack="r"),
    ]
    encoded = response_encoder(3, 1)(MetadataResponse(brokers=brokers, controller_id=2, topics=[topic]))
    parts: list[bytes] = encoded  # type: ignore[assignment]  # there are no records among them
    return pack(">i", 0) + b"".join(parts)
