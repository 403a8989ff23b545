"""The arguments of a handler: the request's context, with the connection's session, and the broker's parts it may use.

A handler is a function `handle(services, context, request)` in `handlers/<api>.py`. It returns the response, or an
awaitable of it if it has to wait, or None if the protocol expects no response. Errors go into the fields of the
response. A handler raises `ApiError` only for a whole request, in whose response dispatch finds the field by the
schema. It raises `ProtocolError` to have the connection closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from flowstone.broker.requests.session import ClientSession
from flowstone.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from flowstone.broker.authentication.token_registry import TokenRegistry
    from flowstone.broker.clustering.cluster_node import Clustering
    from flowstone.broker.clustering.log_starts import LogStarts
    from flowstone.broker.coordinators.group_coordinator import GroupCoordinator
    from flowstone.broker.coordinators.share.share_states import ShareStates
    from flowstone.broker.coordinators.transaction_coordinator import TransactionCoordinator
    from flowstone.broker.fetching.fetch_sessions import FetchSessions
    from flowstone.broker.loop.workers import Workers
    from flowstone.broker.network.unsent_bytes import UnsentTotal
    from flowstone.broker.quotas.client_quotas import ClientQuotas
    from flowstone.broker.requests.access import Access
    from flowstone.broker.requests.audit import AuditLog
    from flowstone.broker.requests.batch_preparation import Preparing
    from flowstone.broker.requests.broker_metrics import Metrics
    from flowstone.broker.requests.client_telemetry import ClientTelemetry
    from flowstone.broker.requests.disk_floor import DiskFloor
    from flowstone.broker.requests.parked import Waiting
    from flowstone.broker.requests.producer_admission import ProducerAdmission
    from flowstone.broker.requests.transaction_verification import TransactionVerification
    from flowstone.broker.sharing.share_partitions import SharePartitions
    from flowstone.broker.topics.encoded_topics import MetadataParts
    from flowstone.cluster.metadata import Metadata
    from flowstone.config import BrokerConfig, TopicDefaults
    from flowstone.log.manager import LogManager
    from flowstone.ports.clock import Clock
    from flowstone.replication.served_partitions import Partitions


class RequestContext(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    session: ClientSession
    # Adds what authorization has refused, or removes what it hides: a handler that encodes its response calls it first.
    complete: Callable[[Any], Any] | None = None


@dataclass(slots=True)
class Services:
    """The parts of one broker that handlers may use, put together by `broker.wiring`."""

    config: BrokerConfig
    # Topic settings from the configuration with which the broker was started.
    topic_defaults: TopicDefaults
    clock: Clock
    metadata: Metadata
    logs: LogManager
    partitions: Partitions
    waiting: Waiting
    fetch_sessions: FetchSessions
    preparing: Preparing
    workers: Workers
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    share_states: ShareStates
    sharing: SharePartitions
    # None if this broker is not part of a cluster.
    cluster: Clustering | None
    metrics: Metrics
    # Metrics that clients push.
    telemetry: ClientTelemetry
    metadata_parts: MetadataParts
    disk_floor: DiskFloor
    log_starts: LogStarts
    unsent: UnsentTotal
    producers: ProducerAdmission
    verification: TransactionVerification
    audit: AuditLog
    quotas: ClientQuotas
    # None if no authorizer is configured: everybody may do everything.
    access: Access | None
    # None if the settings have no secret for delegation tokens.
    delegation_tokens: TokenRegistry | None
    # A test's wire faults, applied once per route, so that they cost requests nothing when there are none.
    intercept: Intercept | None


def check_alone(services: Services, what: str) -> None:
    """Raise ApiError if the broker is part of a cluster: files linked or imported here would be missing elsewhere."""
    if services.cluster is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} needs a single broker; this one is part of a cluster")


Handler = Callable[[Services, RequestContext, Any], Any | Awaitable[Any] | None]
# A function from an API's name and handler to the handler that is called instead.
Intercept = Callable[[str, Handler], Handler]
