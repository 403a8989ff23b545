"""The settings of a broker, beside the broker-wide values of topic settings; those of clusters are `cluster`'s."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from flowstone.config.cluster import ClusterConfig
from flowstone.config.setting import DAY_MS, HOUR_MS, INT_MAX, KIB, MIB, MINUTE_MS, SECOND_MS, Kind, broker_setting


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(ClusterConfig):
    """What can be set for a broker, beside the broker-wide values of topic settings."""

    log_dirs: str = broker_setting(
        "log.dirs",
        Kind.STRING,
        "flowstone-data",
        "The data directory, or several with commas: new partitions go where the fewest are, and one that fails goes "
        "offline with its own.",
    )
    listeners: tuple[str, ...] = broker_setting(
        "listeners",
        Kind.LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses to listen on, as NAME://HOST:PORT; port 0 takes any free one.",
    )
    advertised_listeners: tuple[str, ...] = broker_setting(
        "advertised.listeners",
        Kind.LIST,
        (),
        "Addresses told to clients, by listener name, where they differ from listeners.",
    )
    http_listener: str = broker_setting(
        "http.listener",
        Kind.STRING,
        "",
        "HOST:PORT to serve health and metrics on over HTTP, port 0 for any free one; off where empty or off. "
        "`flowstone up` serves them on 127.0.0.1:9080 unless told otherwise.",
    )
    http_allowed_hosts: tuple[str, ...] = broker_setting(
        "http.allowed.hosts",
        Kind.LIST,
        (),
        "Host names, without scheme and port, by which HTTP requests may ask for this broker, beside localhost, IP "
        "addresses, this machine's name and the hosts of listeners, advertised.listeners and http.listener. Requests "
        "for other hosts are refused, so that web pages cannot reach the broker (DNS rebinding); * allows all.",
    )
    num_partitions: int = broker_setting(
        "num.partitions", Kind.INT, 1, "Partitions of a topic made without a number.", low=1, read_only=False
    )
    default_replication_factor: int = broker_setting(
        "default.replication.factor", Kind.INT, 1, "Replicas of a topic made without a number.", low=1, read_only=False
    )
    auto_create_topics_enable: bool = broker_setting(
        "auto.create.topics.enable", Kind.BOOLEAN, True, "Whether asking for an unknown topic makes it."
    )
    delete_topic_enable: bool = broker_setting(
        "delete.topic.enable", Kind.BOOLEAN, True, "Whether topics can be deleted."
    )
    max_partitions: int = broker_setting(
        "max.partitions", Kind.INT, 100_000, "The most partitions, over all topics, that the broker takes.", low=1
    )
    socket_request_max_bytes: int = broker_setting(
        "socket.request.max.bytes", Kind.INT, 100 * MIB, "The largest request taken.", low=1
    )
    socket_send_buffer_bytes: int = broker_setting(
        "socket.send.buffer.bytes",
        Kind.INT,
        256 * KIB,
        "What the system may hold of a connection's unsent bytes; -1 leaves it to the system. Raise it for distant "
        "clients on fast lines.",
        low=-1,
    )
    queued_max_request_bytes: int = broker_setting(
        "queued.max.request.bytes",
        Kind.LONG,
        256 * MIB,
        "The most bytes of requests held over all connections; beyond it reading pauses.",
        low=MIB,
    )
    max_connections: int = broker_setting(
        "max.connections", Kind.INT, 4000, "The most connections; a further one is closed at once.", low=1
    )
    max_connections_per_ip: int = broker_setting(
        "max.connections.per.ip", Kind.INT, INT_MAX, "The most connections from one address.", low=1
    )
    connections_max_idle_ms: int = broker_setting(
        "connections.max.idle.ms", Kind.LONG, 10 * MINUTE_MS, "How long a connection may stay silent.", low=1
    )
    connection_frame_timeout_ms: int = broker_setting(
        "connection.frame.timeout.ms",
        Kind.LONG,
        30 * SECOND_MS,
        "How long a request may take to arrive once begun, and a response to be taken.",
        low=1,
    )
    connection_max_pipelined_requests: int = broker_setting(
        "connection.max.pipelined.requests",
        Kind.INT,
        1000,
        "Requests of one connection that may wait for their answers; beyond it reading pauses.",
        low=1,
    )
    connection_max_queued_response_bytes: int = broker_setting(
        "connection.max.queued.response.bytes",
        Kind.INT,
        64 * MIB,
        "Bytes of responses one connection may leave unread before reading from it pauses.",
        low=1,
    )
    fetch_max_bytes: int = broker_setting(
        "fetch.max.bytes", Kind.INT, 55 * MIB, "The most bytes one fetch is answered with.", low=1024
    )
    max_incremental_fetch_session_cache_slots: int = broker_setting(
        "max.incremental.fetch.session.cache.slots", Kind.INT, 1000, "The most incremental fetch sessions kept.", low=0
    )
    max_parked_requests: int = broker_setting(
        "max.parked.requests", Kind.INT, 20_000, "The most requests waiting for data or for the disk.", low=1
    )
    group_min_session_timeout_ms: int = broker_setting(
        "group.min.session.timeout.ms",
        Kind.INT,
        6 * SECOND_MS,
        "The shortest session timeout a group's member may ask for.",
        low=1,
    )
    group_max_session_timeout_ms: int = broker_setting(
        "group.max.session.timeout.ms",
        Kind.INT,
        30 * MINUTE_MS,
        "The longest session timeout a group's member may ask for.",
        low=1,
    )
    group_initial_rebalance_delay_ms: int = broker_setting(
        "group.initial.rebalance.delay.ms",
        Kind.INT,
        3 * SECOND_MS,
        "How long an empty group's first rebalance waits for more members.",
        low=0,
    )
    group_max_size: int = broker_setting("group.max.size", Kind.INT, INT_MAX, "The most members of one group.", low=1)
    group_memory_max_bytes: int = broker_setting(
        "group.memory.max.bytes",
        Kind.LONG,
        256 * MIB,
        "Memory that all groups of this broker may take together: what members say, assignments, committed offsets. A "
        "group may grow as long as it is then no larger than what is left, so that small groups go on working.",
        low=MIB,
    )
    group_headroom_warning_ms: int = broker_setting(
        "group.headroom.warning.ms",
        Kind.LONG,
        HOUR_MS,
        "A group is warned of, in the log and in metrics, when retention deletes its next unread record sooner than "
        "this, or than half of what a new record has, if that is less; 0: never.",
        low=0,
    )
    offset_metadata_max_bytes: int = broker_setting(
        "offset.metadata.max.bytes", Kind.INT, 4096, "The longest text kept with a committed offset.", low=0
    )
    offsets_retention_minutes: int = broker_setting(
        "offsets.retention.minutes",
        Kind.INT,
        7 * DAY_MS // MINUTE_MS,
        "How long a group's offsets are kept once it has no members, or does not subscribe to the topic.",
        low=1,
    )
    offsets_retention_check_interval_ms: int = broker_setting(
        "offsets.retention.check.interval.ms", Kind.LONG, 10 * MINUTE_MS, "How often old offsets are looked for.", low=1
    )
    offsets_topic_num_partitions: int = broker_setting(
        "offsets.topic.num.partitions",
        Kind.INT,
        50,
        "Partitions of __consumer_offsets; it cannot change once groups exist.",
        low=1,
    )
    offsets_topic_replication_factor: int = broker_setting(
        "offsets.topic.replication.factor",
        Kind.SHORT,
        3,
        "Replicas of __consumer_offsets; as many as there are brokers, where there are fewer when it is made.",
        low=1,
    )
    offsets_topic_segment_bytes: int = broker_setting(
        "offsets.topic.segment.bytes",
        Kind.INT,
        4 * MIB,
        "Segment size of __consumer_offsets. The last segment is not compacted, and all of it is read at a start.",
        low=MIB,
    )
    log_open_files_max: int = broker_setting(
        "log.open.files.max", Kind.INT, 4096, "The most log files kept open; lowered to what the system allows.", low=16
    )
    log_dir_free_min_bytes: int = broker_setting(
        "log.dir.free.min.bytes",
        Kind.LONG,
        -1,
        "Free space of a log directory's file system below which clients' new records are refused, and all else goes "
        "on; -1: a hundredth of the file system, 512 MiB at most; 0: none is kept free.",
        low=-1,
    )
    log_dir_full_warning_ms: int = broker_setting(
        "log.dir.full.warning.ms",
        Kind.LONG,
        6 * HOUR_MS,
        "A log directory is warned of, in the log and in metrics, when it will be full sooner than this at the rate of "
        "the last quarter of an hour; 0: never.",
        low=0,
    )
    log_cleaner_enable: bool = broker_setting(
        "log.cleaner.enable", Kind.BOOLEAN, True, "Whether compacted topics are compacted."
    )
    log_cleaner_backoff_ms: int = broker_setting(
        "log.cleaner.backoff.ms", Kind.LONG, 15 * SECOND_MS, "How often logs to compact are looked for.", low=1
    )
    log_cleaner_dedupe_buffer_size: int = broker_setting(
        "log.cleaner.dedupe.buffer.size",
        Kind.LONG,
        128 * MIB,
        "Memory for the keys of a log that is compacted, 30 bytes each; with more keys it takes several rounds.",
        low=MIB,
    )
    log_cleaner_io_max_bytes_per_second: float = broker_setting(
        "log.cleaner.io.max.bytes.per.second",
        Kind.DOUBLE,
        sys.float_info.max,
        "The most bytes a second that compaction reads and writes.",
        low=1,
    )
    log_scrub_bytes_per_second: int = broker_setting(
        "log.scrub.bytes.per.second",
        Kind.LONG,
        MIB,
        "How fast old segments are read to find damage before a reader does; 0: not at all.",
        low=0,
    )
    log_scrub_interval_ms: int = broker_setting(
        "log.scrub.interval.ms", Kind.LONG, 7 * DAY_MS, "How long a segment is left alone once it was read.", low=1
    )
    log_retention_check_interval_ms: int = broker_setting(
        "log.retention.check.interval.ms", Kind.LONG, 5 * MINUTE_MS, "How often old segments are looked for.", low=1
    )
    log_flush_offset_checkpoint_interval_ms: int = broker_setting(
        "log.flush.offset.checkpoint.interval.ms", Kind.INT, MINUTE_MS, "How often recovery points are saved.", low=1
    )
    producer_id_expiration_ms: int = broker_setting(
        "producer.id.expiration.ms", Kind.INT, DAY_MS, "How long an idle producer's sequence is remembered.", low=1
    )
    idle_poll_us: int = broker_setting(
        "idle.poll.us",
        Kind.INT,
        400,
        "How long the loop looks for the next request of a client that alone sends one after the other, each when the "
        "one before is answered, before it sleeps: half the latency for a processor's idle time. 0: it sleeps at once.",
        low=0,
        high=10_000,
    )
    num_flush_threads: int = broker_setting(
        "num.flush.threads",
        Kind.INT,
        4,
        "Threads that flush files: more flush sooner, fewer flush more together.",
        low=1,
        high=64,
    )
    num_reader_threads: int = broker_setting(
        "num.reader.threads", Kind.INT, 2, "Threads that read what is not in the page cache.", low=1, high=64
    )
    slow_request_ms: int = broker_setting(
        "slow.request.ms", Kind.LONG, SECOND_MS, "Requests that take longer, waiting aside, are logged.", low=0
    )
    shutdown_timeout_ms: int = broker_setting(
        "shutdown.timeout.ms", Kind.LONG, 10 * SECOND_MS, "How long a clean stop may take.", low=1
    )

    @property
    def log_directories(self) -> tuple[str, ...]:
        """The paths in log.dirs."""
        return tuple(path.strip() for path in self.log_dirs.split(",") if path.strip())
