"""The settings of a broker, except those of the modules it inherits from and broker-wide values of topic settings."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from flowstone.config.classic_groups import ClassicGroupConfig
from flowstone.config.setting import DAY_MS, HOUR_MS, INT_MAX, KIB, MIB, MINUTE_MS, SECOND_MS, Kind, broker_setting

REQUEST_BYTES_MAX = 256 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(ClassicGroupConfig):
    """The settings of a broker, except broker-wide values of topic settings."""

    log_dirs: str = broker_setting(
        "log.dirs",
        Kind.STRING,
        "flowstone-data",
        "The data directory, or several separated by commas. New partitions are placed in the directory with the "
        "fewest partitions. A directory that fails goes offline with its partitions.",
    )
    listeners: tuple[str, ...] = broker_setting(
        "listeners",
        Kind.LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses to listen on, as NAME://HOST:PORT; port 0 selects a free port.",
    )
    advertised_listeners: tuple[str, ...] = broker_setting(
        "advertised.listeners",
        Kind.LIST,
        (),
        "Addresses that clients connect to, by listener name, if they differ from listeners.",
    )
    http_listener: str = broker_setting(
        "http.listener",
        Kind.STRING,
        "",
        "HOST:PORT of the HTTP pages for health and metrics, port 0 for a free port; empty or off: no pages. "
        "`flowstone up` uses 127.0.0.1:9080 by default.",
    )
    http_allowed_hosts: tuple[str, ...] = broker_setting(
        "http.allowed.hosts",
        Kind.LIST,
        (),
        "Host names, without scheme and port, that HTTP requests may contain in addition to localhost, IP addresses, "
        "this machine's name and the hosts of listeners, advertised.listeners and http.listener. Requests for other "
        "hosts are refused, so that web pages cannot reach the broker (DNS rebinding); * allows all.",
    )
    num_partitions: int = broker_setting(
        "num.partitions", Kind.INT, 1, "Default number of partitions of a new topic.", low=1, read_only=False
    )
    default_replication_factor: int = broker_setting(
        "default.replication.factor", Kind.INT, 1, "Default number of replicas of a new topic.", low=1, read_only=False
    )
    auto_create_topics_enable: bool = broker_setting(
        "auto.create.topics.enable", Kind.BOOLEAN, True, "Whether a request for an unknown topic creates it."
    )
    delete_topic_enable: bool = broker_setting(
        "delete.topic.enable", Kind.BOOLEAN, True, "Whether topics can be deleted."
    )
    max_partitions: int = broker_setting(
        "max.partitions", Kind.INT, 100_000, "Maximum number of partitions over all topics.", low=1
    )
    socket_request_max_bytes: int = broker_setting(
        "socket.request.max.bytes", Kind.INT, 100 * MIB, "Maximum size of a request.", low=1
    )
    socket_send_buffer_bytes: int = broker_setting(
        "socket.send.buffer.bytes",
        Kind.INT,
        256 * KIB,
        "Size of the system's send buffer per connection; -1: the system's default. Raise it for distant clients with "
        "high bandwidth.",
        low=-1,
    )
    queued_max_request_bytes: int = broker_setting(
        "queued.max.request.bytes",
        Kind.LONG,
        REQUEST_BYTES_MAX,
        "Maximum bytes of requests in memory over all connections, at least 1 MiB; reading pauses beyond it. Negative: "
        "256 MiB.",
    )
    max_connections: int = broker_setting(
        "max.connections", Kind.INT, 4000, "Maximum number of connections; further ones are closed at once.", low=1
    )
    max_connections_per_ip: int = broker_setting(
        "max.connections.per.ip",
        Kind.INT,
        INT_MAX,
        "Maximum number of connections from one address.",
        low=0,
        read_only=False,
    )
    connections_max_idle_ms: int = broker_setting(
        "connections.max.idle.ms",
        Kind.LONG,
        10 * MINUTE_MS,
        "How long a connection may be idle before it is closed; negative: without limit.",
    )
    connection_frame_timeout_ms: int = broker_setting(
        "connection.frame.timeout.ms",
        Kind.LONG,
        30 * SECOND_MS,
        "How long a request may take to arrive after its first byte, and a response to be read.",
        low=1,
    )
    connection_max_pipelined_requests: int = broker_setting(
        "connection.max.pipelined.requests",
        Kind.INT,
        1000,
        "Maximum number of unanswered requests per connection; reading pauses beyond it.",
        low=1,
    )
    connection_max_queued_response_bytes: int = broker_setting(
        "connection.max.queued.response.bytes",
        Kind.INT,
        64 * MIB,
        "Maximum unread response bytes per connection; reading pauses beyond it.",
        low=1,
    )
    fetch_max_bytes: int = broker_setting(
        "fetch.max.bytes", Kind.INT, 55 * MIB, "Maximum bytes of a fetch response.", low=1024
    )
    max_incremental_fetch_session_cache_slots: int = broker_setting(
        "max.incremental.fetch.session.cache.slots",
        Kind.INT,
        1000,
        "Maximum number of incremental fetch sessions.",
        low=0,
    )
    max_parked_requests: int = broker_setting(
        "max.parked.requests", Kind.INT, 20_000, "Maximum number of requests that wait for data or for the disk.", low=1
    )
    transaction_max_timeout_ms: int = broker_setting(
        "transaction.max.timeout.ms",
        Kind.INT,
        15 * MINUTE_MS,
        "Maximum transaction timeout that a producer may use.",
        low=1,
    )
    transactional_id_expiration_ms: int = broker_setting(
        "transactional.id.expiration.ms",
        Kind.INT,
        7 * DAY_MS,
        "Time after which the broker forgets a transactional id that has no open transaction and is not used.",
        low=1,
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = broker_setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Kind.INT,
        10 * SECOND_MS,
        "How often the broker checks for transactions that have timed out, and aborts them.",
        low=1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = broker_setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Kind.INT,
        HOUR_MS,
        "How often the broker checks for expired transactional ids.",
        low=1,
    )
    transaction_memory_max_bytes: int = broker_setting(
        "transaction.memory.max.bytes",
        Kind.LONG,
        256 * MIB,
        "Maximum memory of all transactional ids of this broker and of the partitions of their transactions. A "
        "transaction may grow only up to the size of the remaining memory, so that small ones continue to work.",
        low=MIB,
    )
    transaction_state_log_num_partitions: int = broker_setting(
        "transaction.state.log.num.partitions",
        Kind.INT,
        50,
        "Number of partitions of __transaction_state; it cannot change once transactional ids exist.",
        low=1,
    )
    transaction_state_log_replication_factor: int = broker_setting(
        "transaction.state.log.replication.factor",
        Kind.SHORT,
        3,
        "Number of replicas of __transaction_state; limited to the number of brokers when it is created.",
        low=1,
    )
    transaction_state_log_min_isr: int = broker_setting(
        "transaction.state.log.min.isr",
        Kind.INT,
        2,
        "In-sync replicas that __transaction_state needs before a transaction may change; limited to its number of "
        "replicas when it is created.",
        low=1,
    )
    transaction_state_log_segment_bytes: int = broker_setting(
        "transaction.state.log.segment.bytes",
        Kind.INT,
        4 * MIB,
        "Segment size of __transaction_state. The last segment is not compacted and is read completely at start.",
        low=4 * MIB,
    )
    log_open_files_max: int = broker_setting(
        "log.open.files.max", Kind.INT, 4096, "Maximum number of open log files; lowered to the system's limit.", low=16
    )
    log_dir_free_min_bytes: int = broker_setting(
        "log.dir.free.min.bytes",
        Kind.LONG,
        -1,
        "Minimum free space of a log directory's file system. Below it, new records from clients are refused, and "
        "everything else continues; -1: 1 % of the file system, at most 512 MiB; 0: no minimum.",
        low=-1,
    )
    log_dir_full_warning_ms: int = broker_setting(
        "log.dir.full.warning.ms",
        Kind.LONG,
        6 * HOUR_MS,
        "The broker warns about a log directory, in the log and in metrics, when it will be full sooner than this at "
        "its recent growth rate; 0: never.",
        low=0,
    )
    log_cleaner_enable: bool = broker_setting(
        "log.cleaner.enable", Kind.BOOLEAN, True, "Whether compacted topics are compacted."
    )
    log_cleaner_backoff_ms: int = broker_setting(
        "log.cleaner.backoff.ms",
        Kind.LONG,
        15 * SECOND_MS,
        "How often the broker checks for logs to compact; at most once per millisecond.",
        low=0,
        read_only=False,
    )
    log_cleaner_dedupe_buffer_size: int = broker_setting(
        "log.cleaner.dedupe.buffer.size",
        Kind.LONG,
        128 * MIB,
        "Memory for the keys of a log during compaction, 30 bytes per key; more keys take several rounds.",
        low=MIB,
        read_only=False,
    )
    log_cleaner_io_max_bytes_per_second: float = broker_setting(
        "log.cleaner.io.max.bytes.per.second",
        Kind.DOUBLE,
        sys.float_info.max,
        "Maximum bytes per second that compaction reads and writes.",
        low=1,
        read_only=False,
    )
    log_scrub_bytes_per_second: int = broker_setting(
        "log.scrub.bytes.per.second",
        Kind.LONG,
        MIB,
        "Maximum bytes per second that the scrubber reads to detect damage in old segments; 0: off.",
        low=0,
    )
    log_scrub_interval_ms: int = broker_setting(
        "log.scrub.interval.ms",
        Kind.LONG,
        7 * DAY_MS,
        "How long after a check the scrubber checks a segment again.",
        low=1,
    )
    log_retention_check_interval_ms: int = broker_setting(
        "log.retention.check.interval.ms",
        Kind.LONG,
        5 * MINUTE_MS,
        "How often the broker checks for segments to delete.",
        low=1,
    )
    log_flush_offset_checkpoint_interval_ms: int = broker_setting(
        "log.flush.offset.checkpoint.interval.ms", Kind.INT, MINUTE_MS, "How often recovery points are saved.", low=0
    )
    producer_id_expiration_ms: int = broker_setting(
        "producer.id.expiration.ms",
        Kind.INT,
        DAY_MS,
        "How long the sequence number of an idle producer is kept.",
        low=1,
        read_only=False,
    )
    idle_poll_us: int = broker_setting(
        "idle.poll.us",
        Kind.INT,
        400,
        "How long the event loop busy-polls for the next request before it sleeps, while only one client sends "
        "requests, each after the previous response. This halves the latency and uses idle processor time. 0: no "
        "busy-polling.",
        low=0,
        high=10_000,
    )
    num_flush_threads: int = broker_setting(
        "num.flush.threads",
        Kind.INT,
        4,
        "Number of threads that flush files of each log directory. More threads flush sooner; fewer threads combine "
        "more flushes. While the broker runs it can be halved or doubled, or changed by less.",
        low=1,
        high=64,
        read_only=False,
    )
    num_reader_threads: int = broker_setting(
        "num.reader.threads",
        Kind.INT,
        2,
        "Number of threads that read data that is not in the page cache. While the broker runs it can be halved or "
        "doubled, or changed by less.",
        low=1,
        high=64,
        read_only=False,
    )
    slow_request_ms: int = broker_setting(
        "slow.request.ms",
        Kind.LONG,
        SECOND_MS,
        "Requests that take longer than this, not counting waiting, are logged.",
        low=0,
    )
    shutdown_timeout_ms: int = broker_setting(
        "shutdown.timeout.ms", Kind.LONG, 10 * SECOND_MS, "Maximum duration of a clean stop.", low=1
    )

    @property
    def request_bytes_max(self) -> int:
        """The limit that queued.max.request.bytes sets."""
        return REQUEST_BYTES_MAX if self.queued_max_request_bytes < 0 else max(self.queued_max_request_bytes, MIB)

    @property
    def log_directories(self) -> tuple[str, ...]:
        """The paths in log.dirs."""
        return tuple(path.strip() for path in self.log_dirs.split(",") if path.strip())
