"""The commands of Kafka's bin directory that are run against Flowstone and Kafka alike, in order.

Each case is a command line without --bootstrap-server, with words that `tool_comparison` fills in: DATA is the broker's
first log directory, FILE a file with the text of `file`. `differs` explains an output that is not Kafka's.
"""

from __future__ import annotations

from typing import NamedTuple

TOOLS = "org.apache.kafka.tools"


class Case(NamedTuple):
    tool: str
    asked: str
    input: str = ""
    file: str = ""
    differs: str = ""
    # A regular expression of what may differ from run to run, beyond numbers of rates, ids, addresses and times.
    varies: str = ""


# The classes that the scripts of the bin directory run, and the option that names the brokers.
PROGRAMS = {
    "kafka-acls": f"{TOOLS}.AclCommand",
    "kafka-broker-api-versions": f"{TOOLS}.BrokerApiVersionsCommand",
    "kafka-client-metrics": f"{TOOLS}.ClientMetricsCommand",
    "kafka-cluster": f"{TOOLS}.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": f"{TOOLS}.consumer.ConsoleConsumer",
    "kafka-console-producer": f"{TOOLS}.ConsoleProducer",
    "kafka-console-share-consumer": f"{TOOLS}.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": f"{TOOLS}.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": f"{TOOLS}.ConsumerPerformance",
    "kafka-delegation-tokens": f"{TOOLS}.DelegationTokenCommand",
    "kafka-delete-records": f"{TOOLS}.DeleteRecordsCommand",
    "kafka-dump-log": f"{TOOLS}.DumpLogSegments",
    "kafka-e2e-latency": f"{TOOLS}.EndToEndLatency",
    "kafka-features": f"{TOOLS}.FeatureCommand",
    "kafka-get-offsets": f"{TOOLS}.GetOffsetShell",
    "kafka-groups": f"{TOOLS}.GroupsCommand",
    "kafka-leader-election": f"{TOOLS}.LeaderElectionCommand",
    "kafka-log-dirs": f"{TOOLS}.LogDirsCommand",
    "kafka-metadata-quorum": f"{TOOLS}.MetadataQuorumCommand",
    "kafka-producer-perf-test": f"{TOOLS}.ProducerPerformance",
    "kafka-reassign-partitions": f"{TOOLS}.reassign.ReassignPartitionsCommand",
    "kafka-share-groups": f"{TOOLS}.consumer.group.ShareGroupCommand",
    "kafka-streams-application-reset": f"{TOOLS}.StreamsResetter",
    "kafka-topics": f"{TOOLS}.TopicCommand",
    "kafka-transactions": f"{TOOLS}.TransactionsCommand",
    "kafka-verifiable-consumer": f"{TOOLS}.VerifiableConsumer",
    "kafka-verifiable-producer": f"{TOOLS}.VerifiableProducer",
}
WITHOUT_BROKER = {"kafka-dump-log"}
# Their first word is a command, which options follow; in other tools the options come first.
COMMAND_FIRST = {"kafka-cluster"}

# Why the other scripts are not run.
NOT_RUN = {
    "kafka-server-start, kafka-server-stop, kafka-storage, kafka-metadata-shell": "they run and inspect Kafka's own "
    "broker and its KRaft metadata",
    "connect-distributed, connect-mirror-maker, connect-plugin-path, connect-standalone": "`make ecosystem` runs them",
    "kafka-jmx": "there is no JVM",
    "kafka-replica-verification": "it never ends",
    "kafka-streams-groups": "groups of the streams protocol are not served",
    "kafka-run-class, trogdor, kafka-verifiable-share-consumer": "they are for Kafka's own development",
}
_DURABLE = "flush.messages is 1 here, and Flowstone has settings of its own"
_FORMATTED = "Kafka's storage tool sets min.insync.replicas for all brokers, which it shows here"
_REASSIGNED = '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1],"log_dirs":["any"]}]}'

CASES = (
    Case("kafka-broker-api-versions", "", differs="APIs that Kafka has for its own brokers and controllers"),
    Case("kafka-topics", "--create --topic t --partitions 2 --config retention.ms=86400000"),
    Case("kafka-topics", "--create --topic t --partitions 2"),
    Case("kafka-topics", "--create --topic u --if-not-exists --config nonsense=1"),
    Case("kafka-topics", "--alter --topic t --partitions 3"),
    Case("kafka-topics", "--alter --topic t --partitions 1"),
    Case("kafka-topics", "--list"),
    Case("kafka-topics", "--describe --topic t", differs=_FORMATTED),
    Case("kafka-topics", "--describe --topics-with-overrides", differs=_FORMATTED),
    Case("kafka-topics", "--describe --topic absent"),
    Case("kafka-configs", "--alter --topic t --add-config cleanup.policy=[compact,delete],segment.ms=3600000"),
    Case("kafka-configs", "--alter --topic t --delete-config segment.ms"),
    Case("kafka-configs", "--describe --topic t"),
    Case("kafka-configs", "--describe --topic t --all", differs=_DURABLE),
    Case("kafka-configs", "--alter --topic t --add-config retention.ms=soon"),
    Case("kafka-configs", "--alter --broker 1 --add-config log.cleaner.threads=2,background.threads=12"),
    Case("kafka-configs", "--describe --broker 1"),
    Case("kafka-configs", "--describe --broker 1 --all", differs="defaults and settings of its own"),
    Case("kafka-configs", "--alter --group g --add-config consumer.session.timeout.ms=50000"),
    Case("kafka-configs", "--describe --group g"),
    Case("kafka-configs", "--alter --client c --add-config producer_byte_rate=1000000"),
    Case("kafka-configs", "--describe --client c"),
    Case("kafka-configs", "--describe --broker-logger 1", differs="loggers have the names of Python packages"),
    Case("kafka-client-metrics", "--alter --name m --metrics org.apache.kafka.producer. --interval 30000"),
    Case("kafka-client-metrics", "--describe --name m"),
    Case("kafka-client-metrics", "--list"),
    Case("kafka-console-producer", "--topic t --reader-property parse.key=true --reader-property key.separator=:",
         input="a:1\nb:2\nc:3\n"),
    Case("kafka-console-consumer", "--topic t --group g --from-beginning --max-messages 3", varies=r"[123]"),
    Case("kafka-console-consumer", "--topic t --group n --from-beginning --max-messages 3 "
         "--command-property group.protocol=consumer", varies=r"[123]"),
    Case("kafka-configs", "--alter --group s --add-config share.auto.offset.reset=earliest"),
    Case("kafka-console-share-consumer", "--topic t --group s --max-messages 3", varies=r"[123]"),
    Case("kafka-get-offsets", "--topic t"),
    Case("kafka-get-offsets", "--topic t --time earliest"),
    Case("kafka-groups", "--list"),
    Case("kafka-consumer-groups", "--list --state --type"),
    Case("kafka-consumer-groups", "--describe --group g"),
    Case("kafka-consumer-groups", "--describe --group n --state"),
    Case("kafka-consumer-groups", "--describe --group n --members --verbose"),
    Case("kafka-consumer-groups", "--describe --group absent"),
    Case("kafka-consumer-groups", "--reset-offsets --group g --topic t --to-earliest --dry-run"),
    Case("kafka-consumer-groups", "--reset-offsets --group g --topic t --to-offset 1 --execute"),
    Case("kafka-consumer-groups", "--delete-offsets --group g --topic t"),
    Case("kafka-consumer-groups", "--delete --group g"),
    Case("kafka-share-groups", "--list --state"),
    Case(
        "kafka-share-groups",
        "--describe --group s",
        differs="start offsets: Kafka shows 0, with a lag of 0, for records that were accepted",
    ),
    Case("kafka-share-groups", "--describe --group s --state"),
    Case("kafka-share-groups", "--delete --group s"),
    Case("kafka-delete-records", "--offset-json-file FILE",
         file='{"partitions":[{"topic":"t","partition":0,"offset":0}],"version":1}'),
    Case("kafka-log-dirs", "--describe --topic-list t"),
    Case("kafka-leader-election", "--election-type preferred --all-topic-partitions"),
    Case("kafka-reassign-partitions", "--generate --broker-list 1 --topics-to-move-json-file FILE",
         file='{"topics":[{"topic":"t"}],"version":1}'),
    Case("kafka-reassign-partitions", "--execute --reassignment-json-file FILE", file=_REASSIGNED),
    Case("kafka-reassign-partitions", "--verify --reassignment-json-file FILE", file=_REASSIGNED),
    Case("kafka-reassign-partitions", "--list"),
    Case("kafka-transactions", "list"),
    Case("kafka-transactions", "describe-producers --topic t --partition 0"),
    Case("kafka-transactions", "describe --transactional-id absent"),
    Case("kafka-features", "describe", differs="levels of features that this broker has not"),
    Case("kafka-cluster", "cluster-id"),
    Case("kafka-cluster", "list-endpoints", varies=r"\b\d{5}\b"),
    Case("kafka-cluster", "unregister --id 99"),
    Case("kafka-metadata-quorum", "describe --status", differs="there is no Raft quorum: positions and directories"),
    Case("kafka-acls", "--list"),
    Case("kafka-delegation-tokens", "--describe --command-config FILE", file="retries=0\n"),
    Case("kafka-producer-perf-test", "--topic t --num-records 100 --record-size 100 --throughput -1"),
    Case("kafka-consumer-perf-test", "--topic p --num-records 100", varies=r"\d+"),
    Case("kafka-e2e-latency", "--topic p --num-records 20 --producer-acks all --record-size 100", varies=r"\d+"),
    Case("kafka-verifiable-producer", "--topic p --max-messages 5 --acks -1"),
    Case("kafka-verifiable-consumer", "--topic p --group-id v --max-messages 5 --reset-policy earliest"),
    Case("kafka-streams-application-reset", "--application-id app --input-topics t"),
    Case("kafka-dump-log", "--files DATA/t-1/00000000000000000000.log --print-data-log"),
    Case("kafka-topics", "--delete --topic t"),
    Case("kafka-topics", "--list"),
)  # fmt: skip
