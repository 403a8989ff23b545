"""What a handler is given: the request's circumstances, and the broker's parts it may use.

A handler is a function `handle(services, context, request)` in `handlers/<api>.py`. It returns the response, or an
awaitable of it where it has to wait, or None where the protocol asks for no answer. It raises `ApiError` only where a
whole response has room for one error (dispatch then cannot know where to put it): otherwise errors go into the fields
of the response. `ProtocolError` closes the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from flowstone.broker.disk_space import Room
from flowstone.broker.log_starts import LogStarts
from flowstone.broker.metadata_parts import MetadataParts
from flowstone.broker.metrics import Metrics
from flowstone.broker.producer_admission import ProducerAdmission
from flowstone.broker.unsent import UnsentTotal
from flowstone.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from flowstone.broker.clustering import Clustering
    from flowstone.broker.fetch_sessions import FetchSessions
    from flowstone.broker.group_coordinator import GroupCoordinator
    from flowstone.broker.preparing import Preparing
    from flowstone.broker.waiting import Waiting
    from flowstone.broker.workers import Workers
    from flowstone.cluster.metadata import Metadata
    from flowstone.config import BrokerConfig, TopicDefaults
    from flowstone.log.manager import LogManager
    from flowstone.ports.clock import Clock
    from flowstone.replication.partitions import Partitions


class RequestContext(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    listener_name: str
    peer: str


@dataclass(slots=True)
class Services:
    """The parts of one broker, wired together by `app`."""

    config: BrokerConfig
    # Broker-wide values of topic settings that the broker was started with.
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
    # None where there is one broker.
    cluster: Clustering | None = None
    metrics: Metrics = field(default_factory=Metrics)
    metadata_parts: MetadataParts = field(default_factory=MetadataParts)
    room: Room = field(default_factory=Room)
    log_starts: LogStarts = field(default_factory=LogStarts)
    unsent: UnsentTotal = field(default_factory=UnsentTotal)
    producers: ProducerAdmission = field(init=False)
    # A test's wire faults: asked once per route, so that without it serving costs what it did.
    intercept: Intercept | None = None

    def __post_init__(self) -> None:
        self.producers = ProducerAdmission(self.clock, lambda: self.logs.logs.values())


def check_alone(services: Services, what: str) -> None:
    """ApiError in a cluster: files that are linked or brought in on one broker would be missing on the others."""
    if services.cluster is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} needs a single broker; this one is part of a cluster")


Handler = Callable[[Services, RequestContext, Any], Any | Awaitable[Any] | None]
# From an API's name and its handler to the handler that is called instead.
Intercept = Callable[[str, Handler], Handler]
