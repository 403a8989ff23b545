"""Puts together the services that request handlers use; see `requests.context.Services`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flowstone.broker.authentication.token_registry import open_tokens
from flowstone.broker.clustering.log_starts import LogStarts
from flowstone.broker.network.unsent_bytes import UnsentTotal
from flowstone.broker.quotas.client_quotas import ClientQuotas
from flowstone.broker.requests.access import open_access
from flowstone.broker.requests.audit import AuditLog, open_audit
from flowstone.broker.requests.broker_metrics import Metrics
from flowstone.broker.requests.client_telemetry import ClientTelemetry
from flowstone.broker.requests.context import Intercept, Services
from flowstone.broker.requests.disk_floor import DiskFloor
from flowstone.broker.requests.producer_admission import ProducerAdmission
from flowstone.broker.requests.transaction_verification import TransactionVerification
from flowstone.broker.sharing.share_partitions import SharePartitions
from flowstone.broker.topics.encoded_topics import MetadataParts

if TYPE_CHECKING:
    from flowstone.broker.clustering.cluster_node import Clustering
    from flowstone.broker.coordinators.group_coordinator import GroupCoordinator
    from flowstone.broker.coordinators.share.share_states import ShareStates
    from flowstone.broker.coordinators.transaction_coordinator import TransactionCoordinator
    from flowstone.broker.fetching.fetch_sessions import FetchSessions
    from flowstone.broker.loop.workers import Workers
    from flowstone.broker.requests.batch_preparation import Preparing
    from flowstone.broker.requests.parked import Waiting
    from flowstone.cluster.metadata import Metadata
    from flowstone.config import BrokerConfig, TopicDefaults
    from flowstone.log.manager import LogManager
    from flowstone.ports.clock import Clock
    from flowstone.ports.files import Files
    from flowstone.replication.served_partitions import Partitions

# Reserved: used neither for open log files nor for connections, so that a flush or checkpoint always gets one.
RESERVED_DESCRIPTORS = 64


def make_services(
    *,
    config: BrokerConfig,
    topic_defaults: TopicDefaults,
    clock: Clock,
    metadata: Metadata,
    logs: LogManager,
    partitions: Partitions,
    waiting: Waiting,
    fetch_sessions: FetchSessions,
    preparing: Preparing,
    workers: Workers,
    groups: GroupCoordinator,
    transactions: TransactionCoordinator,
    share_states: ShareStates,
    cluster: Clustering | None = None,
    intercept: Intercept | None = None,
    files: Files | None = None,
) -> Services:
    """Return the services of one broker: the given parts, and new ones that need nothing but these."""
    audit = AuditLog(clock, workers, None) if files is None else open_audit(config, files, clock, workers)
    quotas = ClientQuotas(config, metadata.image)
    metadata.on_change(quotas.follow)
    return Services(
        config=config,
        topic_defaults=topic_defaults,
        clock=clock,
        metadata=metadata,
        logs=logs,
        partitions=partitions,
        waiting=waiting,
        fetch_sessions=fetch_sessions,
        preparing=preparing,
        workers=workers,
        groups=groups,
        transactions=transactions,
        share_states=share_states,
        sharing=SharePartitions(
            *(partitions, share_states, groups.settings, clock, workers, metadata),
            config.producer_id_expiration_ms,
        ),
        cluster=cluster,
        metrics=Metrics(),
        telemetry=ClientTelemetry(metadata, clock),
        metadata_parts=MetadataParts(),
        disk_floor=DiskFloor(),
        log_starts=LogStarts(),
        unsent=UnsentTotal(),
        producers=ProducerAdmission(clock, lambda: logs.logs.values()),
        verification=TransactionVerification(clock),
        audit=audit,
        quotas=quotas,
        access=open_access(config, metadata, audit.denied),
        delegation_tokens=open_tokens(config, metadata, workers, clock),
        intercept=intercept,
    )


def within_descriptors(descriptors: int, config: BrokerConfig) -> BrokerConfig:
    """Return the settings limited to the available descriptors: half for log files, most others for connections."""
    log_files = min(config.log_open_files_max, descriptors // 2)
    connections = max(descriptors - log_files - RESERVED_DESCRIPTORS, 1)
    return replace(config, log_open_files_max=log_files, max_connections=min(config.max_connections, connections))
