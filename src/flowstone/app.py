"""The composition root: parses the settings and connects all parts of a broker.

The order of steps matters. Start: lock the data directory, recover its logs, load the metadata, bind addresses,
register the broker, open partitions, and only then accept connections. Stop: accept no more connections, answer open
requests, flush and close the logs, and write the clean-shutdown marker last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING

from flowstone import kernel
from flowstone.broker.authentication.credential_import import import_users
from flowstone.broker.authentication.listener_security import parse_security
from flowstone.broker.authentication.peer_network import inter_broker_listener, peer_network
from flowstone.broker.authentication.token_registry import TokenCleaner
from flowstone.broker.clustering.assignments import Assignments
from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.broker.coordinators.coordinator_host import HostServices
from flowstone.broker.coordinators.group_coordinator import GroupCoordinator
from flowstone.broker.coordinators.local_markers import LocalMarkers
from flowstone.broker.coordinators.share.state_initializer import states_for_groups
from flowstone.broker.coordinators.transaction_coordinator import TransactionCoordinator
from flowstone.broker.disks.disk_space import DiskSpace
from flowstone.broker.fetching.fetch_sessions import FetchSessions
from flowstone.broker.http.listener import HttpListener, allowed_hosts, parse_address
from flowstone.broker.lag.group_survey import GroupSurvey
from flowstone.broker.lag.late_transactions import LateTransactions
from flowstone.broker.loop.workers import Workers
from flowstone.broker.network.exposure import check_exposure
from flowstone.broker.network.listeners import advertise, parse_listeners
from flowstone.broker.network.server import Server
from flowstone.broker.requests.batch_preparation import Preparing
from flowstone.broker.requests.context import Intercept, Services
from flowstone.broker.requests.parked import Waiting
from flowstone.broker.wiring import make_services, within_descriptors
from flowstone.cluster.decisions.registration import found_cluster, register_broker
from flowstone.cluster.decisions.topic_names import is_internal
from flowstone.cluster.image.cluster_image import BrokerImage, Endpoint
from flowstone.cluster.image.features import advertised_features
from flowstone.cluster.image.ids import parse_id, random_id
from flowstone.cluster.logs.consensus import Consensus
from flowstone.cluster.logs.file_log import FileLog
from flowstone.cluster.logs.metadata_copies import MetadataCopies, is_only_a_copy
from flowstone.cluster.metadata import Metadata
from flowstone.config import parse_broker_config, parse_topic_config
from flowstone.errors import ConfigError, StartupError, StorageFault
from flowstone.log.directories.opened_directories import check_unused
from flowstone.log.manager import LogManager
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.ports.clock import Clock, SystemClock
from flowstone.ports.files import Files
from flowstone.ports.network import Network, SystemNetwork
from flowstone.ports.system_files import SystemFiles, open_files_limit
from flowstone.replication.served_partitions import Partitions

if TYPE_CHECKING:
    from flowstone.broker.clustering.cluster_node import Clustering
    from flowstone.broker.http.page import Site
    from flowstone.broker.http.pages.page_context import PageContext

logger = logging.getLogger(__name__)

# Groups are usually loaded in milliseconds, and then no client sees an error. Longer loading continues while the
# broker serves.
COORDINATORS_LOAD_WAIT_S = 3.0


class App:
    """One broker, from its settings to its end."""

    def __init__(
        self,
        values: Mapping[str, str],
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
        consensus: Consensus | None = None,
        intercept: Intercept | None = None,
        default_http: str = "",
    ) -> None:
        """Create a broker from settings by Kafka's names. Raises ConfigError if one is invalid.

        `consensus` makes the broker part of a cluster, as `zookeeper.connect` does. `default_http` is used if the
        settings have no `http.listener`; if that address is taken, the broker runs without HTTP pages.
        """
        config, self._topic_defaults = parse_broker_config(values)
        if not config.log_directories or len(set(config.log_directories)) < len(config.log_directories):
            raise ConfigError(f"log.dirs: name a directory, or several different ones, not {config.log_dirs!r}")
        self.config = within_descriptors(open_files_limit(), config)
        self._listeners, self._advertised = parse_listeners(self.config)
        self._security = parse_security(values, self.config, [each.name for each in self._listeners])
        self._http_chosen = "http.listener" in values
        self._http_wanted = parse_address(self.config.http_listener if self._http_chosen else default_http)
        check_exposure(self._listeners, self._security, self._http_wanted, self.config)
        self._files: Files = files or SystemFiles()
        self._clock: Clock = clock or SystemClock()
        self._network: Network = network or SystemNetwork()
        self._inter_broker_listener = inter_broker_listener(self.config, self._security)
        own = self._security[self._inter_broker_listener]
        self._peer_network = peer_network(self._network, self.config, own)
        self._consensus = consensus
        self._cluster: Clustering | None = None
        self._deleted_topic_ids: frozenset[bytes] | None = None
        self._intercept = intercept
        hosts = [each.host for each in (*self._listeners, *self._advertised.values())]
        self._http_access = allowed_hosts(self._http_wanted, hosts, self.config)
        self._http: HttpListener | None = None
        self._http_problem: StartupError | None = None
        self._pages: PageContext | None = None
        self._serving = False
        # Listener name -> the address it got.
        self.addresses: dict[str, tuple[str, int]] = {}

    @property
    def data_directory(self) -> str:
        return self.config.log_dirs

    @property
    def kernel(self) -> str:
        return kernel.KERNEL

    @property
    def flush_mode(self) -> str:
        flush_messages = parse_topic_config(self._topic_defaults, {}).flush_messages
        if flush_messages == 1:
            return "every acks=all produce is on disk before it is acknowledged"
        return f"the page cache decides (flush.messages={flush_messages}); acknowledged records survive a process kill"

    async def start(self) -> None:
        """Start the broker and return when it accepts connections. Raises StartupError if it cannot start."""
        self._failed: asyncio.Future[StorageFault] = asyncio.get_running_loop().create_future()
        self._partitions = Partitions()
        self._workers = Workers(self.config.num_reader_threads)
        try:
            await self._open_logs_and_metadata()
            self._bind_http()
            self.services = self._wire()
            remote_offsets = self._cluster.remote_offsets if self._cluster is not None else None
            self.survey = GroupSurvey(self.services, remote_offsets)
            self._disks = DiskSpace(self.services)
            self._late_transactions = LateTransactions(self.services)
            self._token_cleaner = TokenCleaner(self.config, self._metadata, self._clock)
            self._server = Server(self.services, self._network, self._security)
            await self._register(self._bind())
            await import_users(self.config.scram_credentials_file, self._metadata)
            for each in (self._groups, self._transactions, self._share_states):
                await each.wait_loaded(COORDINATORS_LOAD_WAIT_S)
        except BaseException:
            self.kill()
            raise
        interval_ms = self.config.share_coordinator_state_topic_prune_interval_ms
        self._share_states.start_pruning(self._partitions, self._logs, interval_ms)
        self._disks.start()
        self._server.start()
        self.survey.start()
        self._late_transactions.start()
        self._token_cleaner.start()
        self._serving = True
        if self._http is not None:
            self._http.start()
        elif self._http_problem is not None:
            logger.warning("%s", self._http_problem)

    async def stop(self) -> None:
        """Answer open requests, make all data durable and write the clean-shutdown marker."""
        self._serving = False
        self._disks.stop()
        if self._pages is not None:
            self._pages.stop()
        self.survey.stop()
        self._late_transactions.stop()
        self._token_cleaner.stop()
        if self._cluster is not None:
            await self._cluster.leave()
        self._close_coordinators()
        await self._server.stop(self.config.shutdown_timeout_ms / 1000)
        if self._http is not None:
            await self._http.stop()
        await self._metadata.close()
        self._assignments.stop()
        self._workers.close()
        self.services.audit.close()
        self._logs.close()

    def kill(self) -> None:
        """End like a killed process: close connections and write nothing more."""
        if hasattr(self, "_server"):
            self._server.kill()
        if self._http is not None:
            self._http.kill()
        if self._pages is not None:
            self._pages.stop()
        if hasattr(self, "_token_cleaner"):  # nothing was started before
            for each in (self.survey, self._disks, self._late_transactions, self._token_cleaner):
                each.stop()
        self._close_coordinators()
        if self._cluster is not None:
            self._cluster.abort()
        elif self._consensus is not None:
            self._consensus.abort()
        if hasattr(self, "_metadata"):
            self._metadata.abort()
        if hasattr(self, "_assignments"):
            self._assignments.stop()
        if hasattr(self, "_logs"):
            self._logs.abort()
        self._workers.close()

    def _close_coordinators(self) -> None:
        if hasattr(self, "services"):
            self.services.sharing.close()
            self._share_states.close()
        if hasattr(self, "_transactions"):
            self._transactions.close()
        if hasattr(self, "_groups"):
            self._groups.close()

    async def wait_failed(self) -> StorageFault:
        """Wait until the last log directory has failed or the metadata needs a newer release; return the fault."""
        return await asyncio.shield(self._failed)

    # HTTP pages

    @property
    def http_address(self) -> str | None:
        """HOST:PORT of the HTTP pages, or None if they are off."""
        return self._http.address if self._http is not None else None

    def failure(self) -> str | None:
        return str(self._failed.result()) if self._failed.done() else None

    def is_serving(self) -> bool:
        return self._serving and not self._failed.done()

    def _open_site(self) -> Site:
        from flowstone.broker.http.page import Site
        from flowstone.broker.http.pages.page_context import PageContext
        from flowstone.broker.http.pages.page_list import PAGES

        self._pages = PageContext(self, self.services, self._server, self.survey, self._disks, self._late_transactions)
        return Site(PAGES, self._pages, self.services.access, self.services.audit)

    # Starting

    async def _open_logs_and_metadata(self) -> None:
        """Open the logs and load the metadata, from the log directories or from the cluster.

        A single broker stores its metadata in its log directories. A cluster's metadata names the cluster to which the
        directories must belong.
        """
        if self._consensus is None and self.config.zookeeper_connect:
            self._consensus = self._open_zookeeper()
        if self._consensus is None:
            self._logs = self._open_logs(None)
            paths = [directory.path for directory in self._logs.directories]
            member_of = next((path for path in paths if is_only_a_copy(self._files, path)), None)
            if member_of is not None:
                raise StartupError(
                    f"the data directory {member_of} belongs to a broker of a cluster, whose metadata is in "
                    "ZooKeeper: set zookeeper.connect, or --zookeeper HOST:PORT"
                )
            copies = MetadataCopies(self._files, paths, is_incomplete=self._logs.is_incomplete)
            metadata_log = FileLog(copies, self._clock)
            self._metadata = Metadata(metadata_log)
            self._deleted_topic_ids = metadata_log.deleted_topic_ids
            return
        from flowstone.broker.clustering.cluster_node import Clustering  # without it a single broker starts faster

        self._metadata = Metadata(self._consensus.log)
        found = partial(found_cluster, new_id=random_id, supported=advertised_features())
        self._logs = self._open_logs(await self._metadata.change(found))
        self._cluster = Clustering(
            self.config,
            self._topic_defaults,
            self._inter_broker_listener,
            self._consensus,
            self._metadata,
            self._logs,
            self._partitions,
            self._clock,
            self._peer_network,
        )

    def _open_zookeeper(self) -> Consensus:
        from flowstone.cluster.logs.local_copy import LocalCopy
        from flowstone.cluster.zookeeper.consensus import ZooKeeperConsensus
        from flowstone.cluster.zookeeper.ensemble_login import ensemble_login

        check_unused(self._files, self.config.log_directories)
        copy = LocalCopy(self._files, self.config.log_directories, self._clock)
        session_timeout_s = self.config.zookeeper_session_timeout_ms / 1000
        login = ensemble_login(self.config)
        return ZooKeeperConsensus(self.config.zookeeper_connect, session_timeout_s, copy, self._clock, login)

    def _open_logs(self, cluster_id: str | None) -> LogManager:
        return LogManager(
            self._files,
            self._clock,
            self.config,
            on_flushed=self._partitions.flushed,
            on_fault=self._storage_failed,
            high_watermark_of=self._partitions.high_watermark_of,
            decides_retention=self._partitions.leads,
            stamps_records=self._stamps_records,
            cluster_id=cluster_id,
        )

    def _stamps_records(self, log: PartitionLog) -> bool:
        """Return whether this broker may have given the newest records of the log their timestamps."""
        if is_internal(log.topic_partition.topic):
            return True
        return log.config.message_timestamp_type == "LogAppendTime" and self._partitions.leads(log)

    def _wire(self) -> Services:
        opened = self._topic_defaults, self._logs, self._partitions, self._cluster
        self._assignments = Assignments(self.config.node_id, *opened)
        self._assignments.open_all(self._metadata.image, self._deleted_topic_ids)
        self._metadata.on_change(self._assignments.follow)
        self._metadata.on_wait(self._assignments.settled)
        self._metadata.on_failure(self._fail)
        hosted = self.config, self._clock, self._metadata, self._partitions, self._workers
        self._groups = GroupCoordinator(*hosted, self._logs.steady_clock.time_ms)
        make_peers = partial(BrokerPeers, self._inter_broker_listener, self._metadata, self._clock, self._peer_network)
        host_services = HostServices(*hosted)
        markers = LocalMarkers(self._partitions, self._metadata, self._clock, self._groups)
        self._transactions = TransactionCoordinator(host_services, markers, make_peers)
        self._share_states = states_for_groups(self._groups, host_services, make_peers())
        slots = self.config.max_incremental_fetch_session_cache_slots
        return make_services(
            config=self.config,
            topic_defaults=self._topic_defaults,
            clock=self._clock,
            metadata=self._metadata,
            logs=self._logs,
            partitions=self._partitions,
            waiting=Waiting(self._clock, self.config.max_parked_requests),
            fetch_sessions=FetchSessions(self._clock, slots, SystemRandom()),
            preparing=Preparing(self._workers, self._clock),
            workers=self._workers,
            groups=self._groups,
            transactions=self._transactions,
            share_states=self._share_states,
            cluster=self._cluster,
            intercept=self._intercept,
            files=self._files,
        )

    def _bind(self) -> dict[str, Endpoint]:
        """Bind the listeners; return the addresses that clients are told."""
        told = {}
        for listener in self._listeners:
            port = self._server.bind(listener.name, listener.host, listener.port)
            self.addresses[listener.name] = (listener.host, port)
            told[listener.name] = Endpoint(*advertise(replace(listener, port=port), self._advertised))
        return told

    def _bind_http(self) -> None:
        """Bind the HTTP address and show it in DescribeConfigs."""
        if self._http_wanted is not None and self._http_access is not None:
            try:
                self._http = HttpListener(*self._http_wanted, self._open_site, self._http_access, self.config)
            except StartupError as error:
                if self._http_chosen:
                    raise
                self._http_problem = error
        self.config = replace(self.config, http_listener=self.http_address or "")

    async def _register(self, listeners: dict[str, Endpoint]) -> None:
        rack = self.config.broker_rack or None
        broker = BrokerImage(self.config.node_id, rack, listeners, features=advertised_features())
        if self._cluster is not None:
            await self._cluster.join(broker)
            return
        identity = parse_id(self._logs.identity.cluster_id)
        registration = await self._metadata.change(
            lambda image: register_broker(image, broker, is_clean=self._logs.was_clean, new_id=lambda: identity)
        )
        cluster_id = registration.cluster_id
        if cluster_id != self._logs.identity.cluster_id:
            raise StartupError(
                f"the data directory {self.data_directory} belongs to cluster {self._logs.identity.cluster_id}, "
                f"its metadata log to cluster {cluster_id}; one of the two does not belong to this broker"
            )

    def _storage_failed(self, fault: StorageFault) -> None:
        logger.error("the data directory has failed: %s", fault)
        for directory in self._logs.directories:
            if directory.fault is not None:
                self._partitions.fail(directory.logs.values(), directory.fault)
        if self._logs.has_failed:
            self._fail(fault)

    def _fail(self, fault: StorageFault) -> None:
        if not self._failed.done():
            self._failed.set_result(fault)
