"""The cluster settings of a broker: identity, ZooKeeper, and replication."""

from __future__ import annotations

from dataclasses import dataclass

from flowstone.config.connection_security import ConnectionSecurityConfig
from flowstone.config.setting import INT_MAX, LONG_MAX, MIB, SECOND_MS, Kind, broker_setting

# The only one of Kafka's selectors that is not its default.
RACK_AWARE_REPLICA_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig(ConnectionSecurityConfig):
    """The settings of a broker as a member of a cluster."""

    node_id: int = broker_setting("node.id", Kind.INT, 1, "This broker's id in the cluster.", low=0)
    broker_rack: str = broker_setting(
        "broker.rack",
        Kind.STRING,
        "",
        "The broker's rack. Replicas of a partition are placed in different racks while there are enough; empty: "
        "unknown.",
    )
    zookeeper_connect: str = broker_setting(
        "zookeeper.connect",
        Kind.STRING,
        "",
        "The ZooKeeper ensemble of the cluster, as HOST:PORT,HOST:PORT, optionally followed by a path; empty: a "
        "single broker.",
    )
    zookeeper_session_timeout_ms: int = broker_setting(
        "zookeeper.session.timeout.ms",
        Kind.INT,
        4 * SECOND_MS,
        "How long a broker may send no heartbeat to ZooKeeper before others take over leadership. The default is the "
        "minimum that a ZooKeeper with the default tick time (2 s) allows. A leader that is cut off stops "
        "acknowledging after two thirds of it.",
        low=1,
    )
    zookeeper_ssl_client_enable: bool = broker_setting(
        "zookeeper.ssl.client.enable", Kind.BOOLEAN, False, "Whether connections to ZooKeeper are encrypted."
    )
    zookeeper_ssl_truststore_location: str = broker_setting(
        "zookeeper.ssl.truststore.location",
        Kind.STRING,
        "",
        "A PEM file with the certificates of the authorities that sign the certificates of ZooKeeper servers.",
    )
    zookeeper_ssl_keystore_location: str = broker_setting(
        "zookeeper.ssl.keystore.location",
        Kind.STRING,
        "",
        "A PEM file with the key and the certificate that this broker shows to ZooKeeper.",
    )
    zookeeper_ssl_keystore_password: str = broker_setting(
        "zookeeper.ssl.keystore.password",
        Kind.PASSWORD,
        "",
        "The password of the key in zookeeper.ssl.keystore.location, if it is encrypted.",
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = broker_setting(
        "zookeeper.ssl.endpoint.identification.algorithm",
        Kind.STRING,
        "https",
        "With https the certificate of a ZooKeeper server must be for the name in zookeeper.connect; empty: for any "
        "name.",
        choices=("", "https"),
    )
    zookeeper_auth_file: str = broker_setting(
        "zookeeper.auth.file",
        Kind.STRING,
        "",
        "A file with a line user:password, which only its owner may read. Brokers log in to ZooKeeper with it "
        "(digest), and only this login may read and change what they store there: users, access rules, all metadata.",
    )
    inter_broker_listener_name: str = broker_setting(
        "inter.broker.listener.name",
        Kind.STRING,
        "",
        "The listener that brokers use to connect to each other; empty: the first of listeners.",
    )
    controller_listener_names: tuple[str, ...] = broker_setting(
        "controller.listener.names",
        Kind.LIST,
        (),
        "Listeners of controllers in a configuration of Kafka. There are no such controllers here, and these listeners "
        "are not opened.",
    )
    replica_lag_time_max_ms: int = broker_setting(
        "replica.lag.time.max.ms",
        Kind.LONG,
        30 * SECOND_MS,
        "A follower that has not caught up with its leader for this long is removed from the ISR.",
        low=1,
    )
    replica_fetch_max_bytes: int = broker_setting(
        "replica.fetch.max.bytes",
        Kind.INT,
        MIB,
        "Maximum bytes per partition in a follower's fetch; a larger batch is sent whole.",
        low=0,
    )
    replica_fetch_response_max_bytes: int = broker_setting(
        "replica.fetch.response.max.bytes",
        Kind.INT,
        10 * MIB,
        "Maximum bytes of a follower's fetch over all partitions.",
        low=0,
    )
    replica_fetch_wait_max_ms: int = broker_setting(
        "replica.fetch.wait.max.ms",
        Kind.INT,
        500,
        "How long a leader may delay a follower's fetch while there are no new records; must be less than "
        "replica.lag.time.max.ms.",
        low=0,
    )
    replica_selector_class: str = broker_setting(
        "replica.selector.class",
        Kind.STRING,
        "",
        "With Kafka's name of the rack-aware selector, a consumer with a rack reads from the replica in that rack; "
        "empty: from the leader.",
        choices=("", RACK_AWARE_REPLICA_SELECTOR),
    )
    leader_replication_throttled_rate: int = broker_setting(
        "leader.replication.throttled.rate",
        Kind.LONG,
        LONG_MAX,
        "Maximum bytes per second that this broker sends to followers that are catching up.",
        low=0,
        read_only=False,
    )
    follower_replication_throttled_rate: int = broker_setting(
        "follower.replication.throttled.rate",
        Kind.LONG,
        LONG_MAX,
        "Maximum bytes per second that this broker fetches from leaders while it catches up.",
        low=0,
        read_only=False,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = broker_setting(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        Kind.LONG,
        LONG_MAX,
        "Maximum bytes per second that this broker copies to move replicas between its log directories.",
        low=0,
        read_only=False,
    )
    auto_leader_rebalance_enable: bool = broker_setting(
        "auto.leader.rebalance.enable",
        Kind.BOOLEAN,
        True,
        "Whether the controller gives leadership back to the preferred replica, the first of each partition.",
    )
    leader_imbalance_per_broker_percentage: int = broker_setting(
        "leader.imbalance.per.broker.percentage",
        Kind.INT,
        10,
        "A broker gets its leadership back when other brokers lead more than this percentage of the partitions for "
        "which it is preferred.",
        low=0,
        high=100,
    )
    leader_imbalance_check_interval_seconds: int = broker_setting(
        "leader.imbalance.check.interval.seconds",
        Kind.LONG,
        300,
        "How often the controller compares leaders with preferred replicas.",
        low=1,
        high=INT_MAX,
    )
    controlled_shutdown_enable: bool = broker_setting(
        "controlled.shutdown.enable",
        Kind.BOOLEAN,
        True,
        "Whether a stopping broker first hands over leadership of its partitions.",
    )
