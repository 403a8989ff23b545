"""DescribeQuorum, versions 0 to 2: show who decides on the cluster's metadata.

Kafka answers with the Raft group of `__cluster_metadata`. Here the metadata log is in ZooKeeper, or in a file of a
single broker: the leader is the controller, its epoch the controller's, and every live broker is a voter, because each
may append to the log and become the controller. The offsets are those of the metadata that this broker has applied;
what the others have applied is not known (-1). Dead brokers are observers.
"""

from __future__ import annotations

from flowstone.broker.requests.context import RequestContext, Services
from flowstone.cluster.decisions.registration import controller_id
from flowstone.cluster.image.cluster_image import BrokerImage, ClusterImage
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    DescribeQuorumRequest,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
    DescribeQuorumResponseListener,
    DescribeQuorumResponseNode,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseReplica,
    DescribeQuorumResponseTopic,
)

METADATA_TOPIC = "__cluster_metadata"
# Topics in one request: there is one that can be answered.
TOPICS_MAX = 100
_NOT_KNOWN = -1
_PORTS = 1 << 16
_SIGNED_MAX = (1 << 15) - 1


def handle(services: Services, context: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    image = services.metadata.image
    if len(request.topics) > TOPICS_MAX or any(len(each.partitions) > TOPICS_MAX for each in request.topics):
        return DescribeQuorumResponse(error_code=ErrorCode.INVALID_REQUEST, error_message="too many partitions")
    topics = [
        DescribeQuorumResponseTopic(
            topic_name=topic.topic_name,
            partitions=[_partition(services, image, topic, each.partition_index) for each in topic.partitions],
        )
        for topic in request.topics
    ]
    return DescribeQuorumResponse(topics=topics, nodes=[_node(each) for each in image.brokers.values()])


def _partition(
    services: Services, image: ClusterImage, topic: DescribeQuorumRequestTopic, index: int
) -> DescribeQuorumResponsePartition:
    if topic.topic_name != METADATA_TOPIC or index != 0:
        return DescribeQuorumResponsePartition(
            partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, leader_id=_NOT_KNOWN
        )
    now_ms, own_id = services.clock.time_ms(), services.config.node_id
    end = image.version + 1
    voters: list[DescribeQuorumResponseReplica] = []
    observers: list[DescribeQuorumResponseReplica] = []
    for broker in image.brokers.values():
        is_own = broker.node_id == own_id
        replica = DescribeQuorumResponseReplica(
            replica_id=broker.node_id,
            log_end_offset=end if is_own else _NOT_KNOWN,
            last_fetch_timestamp=now_ms if is_own else _NOT_KNOWN,
            last_caught_up_timestamp=now_ms if is_own else _NOT_KNOWN,
        )
        (observers if broker.is_fenced else voters).append(replica)
    return DescribeQuorumResponsePartition(
        partition_index=index,
        leader_id=controller_id(image),
        leader_epoch=image.controller_epoch,
        high_watermark=end,
        current_voters=voters,
        observers=observers,
    )


def _node(broker: BrokerImage) -> DescribeQuorumResponseNode:
    listeners = [
        DescribeQuorumResponseListener(name=name, host=each.host, port=_signed(each.port))
        for name, each in broker.listeners.items()
    ]
    return DescribeQuorumResponseNode(node_id=broker.node_id, listeners=listeners)


def _signed(port: int) -> int:
    """Return the 16 bits of a port as the signed number that the codec writes."""
    return port - _PORTS if port > _SIGNED_MAX else port
