"""DescribeCluster, versions 0 to 2: list the brokers with their addresses on the client's listener.

Since version 2 a request may include brokers that are not alive. Only brokers can be described: the controller has no
listener of its own, so a request for controllers is refused.
"""

from __future__ import annotations

from flowstone.broker.requests.access import operations_of_cluster
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.partition_lookup import live_brokers
from flowstone.cluster.decisions.acl_operations import NOT_ASKED
from flowstone.cluster.decisions.registration import controller_id
from flowstone.errors import ErrorCode
from flowstone.wire.messages import DescribeClusterRequest, DescribeClusterResponse, DescribeClusterResponseBroker

ENDPOINT_BROKERS = 1
ENDPOINT_CONTROLLERS = 2


def handle(services: Services, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    image = services.metadata.image
    if request.endpoint_type != ENDPOINT_BROKERS:
        return _refused(request.endpoint_type)
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=controller_id(image),
        brokers=[
            DescribeClusterResponseBroker(
                broker_id=broker.node_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=broker.rack,
                is_fenced=broker.is_fenced,
            )
            for broker in (image.brokers.values() if request.include_fenced_brokers else live_brokers(image))
            if (endpoint := broker.listeners.get(context.session.listener_name)) is not None
        ],
        cluster_authorized_operations=(
            operations_of_cluster(services.access, context.session)
            if request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )


def _refused(endpoint_type: int) -> DescribeClusterResponse:
    if endpoint_type == ENDPOINT_CONTROLLERS:
        error, message = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "Controllers were asked for, and this endpoint is a broker's",
        )
    else:
        error, message = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {endpoint_type}"
    return DescribeClusterResponse(error_code=error, error_message=message)
