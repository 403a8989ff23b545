"""Kafka's own command line tools from its jars: the newest version of every API."""

from __future__ import annotations

import re
from functools import partial

from scripts.client_suites.suite import CheckFailed, Server, Suite, Unavailable, expect, run
from scripts.fetch_kafka import FetchError, java_command, kafka_classpath

TOOLS = "org.apache.kafka.tools"
JVM_FLAGS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 1000

COMPATIBILITY_ANSWERS = {
    "offsets-for-times-supported": True,
    "cluster-id-supported": True,
    "expect-record-too-large-exception": False,
    "create-topics-supported": True,
    "describe-acls-supported": False,
    "describe-configs-supported": True,
    "idempotent-producer-supported": True,
}


class Java:
    """Runs programs from Kafka's jars and returns their output."""

    def __init__(self, server: Server) -> None:
        try:
            self._command = [java_command(), *JVM_FLAGS, "-cp", kafka_classpath()]
        except FetchError as error:
            raise Unavailable(str(error)) from error
        self._server = server

    def run(self, program: str, *arguments: str, input: str = "") -> str:
        return run([*self._command, program, *arguments], input=input)

    def tool(self, tool: str, *arguments: str, input: str = "") -> str:
        return self.run(f"{TOOLS}.{tool}", "--bootstrap-server", self._server.address, *arguments, input=input)


class Tools:
    """The checks, one per method."""

    def __init__(self, server: Server) -> None:
        java = Java(server)
        self._run, self._tool = java.run, java.tool
        self._server = server

    def api_versions(self) -> None:
        expect(self._tool("BrokerApiVersionsCommand"), "Produce(0): 0 to 13 [usable: 13]", "Fetch(1): 4 to 18")

    def create_topic(self) -> None:
        arguments = ("--create", "--topic", "t", "--partitions", "3", "--config", "segment.bytes=1048576")
        expect(self._tool("TopicCommand", *arguments), "Created topic t.")

    def list_topics(self) -> None:
        expect(self._tool("TopicCommand", "--list"), "t\n")

    def describe_topic(self) -> None:
        told = self._tool("TopicCommand", "--describe", "--topic", "t")
        expect(
            told,
            "PartitionCount: 3",
            f"ReplicationFactor: {self._server.brokers}",
            "segment.bytes=1048576",
            "Partition: 2\tLeader: ",
        )

    def add_partitions(self) -> None:
        self._tool("TopicCommand", "--alter", "--topic", "t", "--partitions", "4")
        expect(self._tool("TopicCommand", "--describe", "--topic", "t"), "PartitionCount: 4")

    def alter_config(self) -> None:
        self._config("--alter", "--topic", "t", "--add-config", "retention.ms=86400000")
        expect(self._config("--describe", "--topic", "t"), "retention.ms=86400000")

    def remove_config(self) -> None:
        self._config("--alter", "--topic", "t", "--delete-config", "retention.ms")
        if "retention.ms" in self._config("--describe", "--topic", "t"):
            raise CheckFailed("the removed setting is still shown")

    def broker_config(self) -> None:
        expect(self._config("--describe", "--broker", "1", "--all"), "log.dirs=")

    def _config(self, *arguments: str) -> str:
        return self._run("kafka.admin.ConfigCommand", "--bootstrap-server", self._server.address, *arguments)

    def produce_with(self, codec: str) -> None:
        told = self._tool(
            "ProducerPerformance", "--topic", "t", "--num-records", str(RECORDS), "--record-size", "1000",
            "--throughput", "-1", "--command-property", f"compression.type={codec}",
        )  # fmt: skip
        expect(told, f"{RECORDS} records sent")

    def end_offsets(self) -> None:
        told = self._tool("GetOffsetShell", "--topic", "t", "--time", "latest")
        counted = sum(int(line.rpartition(":")[2]) for line in told.splitlines())
        if counted != RECORDS * len(CODECS):
            raise CheckFailed(f"{counted} records by the end offsets, {RECORDS * len(CODECS)} were sent")

    def verifiable_producer(self) -> None:
        told = self._tool("VerifiableProducer", "--topic", "verified", "--max-messages", "20", "--acks", "-1")
        expect(told, '"acked":20')

    def console_round_trip(self) -> None:
        key = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
        self._tool("ConsoleProducer", "--topic", "console", *key, input="k1:v1\nk2:v2\n")
        told = self._tool(
            "consumer.ConsoleConsumer", "--topic", "console", "--partition", "0", "--offset", "earliest",
            "--max-messages", "2", "--formatter-property", "print.key=true",
        )  # fmt: skip
        if told != "k1\tv1\nk2\tv2\n":
            raise CheckFailed(f"read {told!r}")

    def compatibility(self) -> None:
        answers = [part for name, told in COMPATIBILITY_ANSWERS.items() for part in (f"--{name}", str(told).lower())]
        nodes = str(self._server.brokers)
        expect(
            self._tool("ClientCompatibilityTest", "--topic", "compat", "--num-cluster-nodes", nodes, *answers), "SUCC"
        )

    def log_directories(self) -> None:
        expect(self._tool("LogDirsCommand", "--describe", "--topic-list", "t"), '"partition":"t-0"')

    def dump_segments(self) -> None:
        segments = sorted(each for folder in self._server.log_directories for each in folder.glob("t-*/*.log"))
        told = self._run(f"{TOOLS}.DumpLogSegments", "--deep-iteration", "--files", ",".join(map(str, segments)))
        expect(told, "isvalid: true", *(f"compresscodec: {codec}" for codec in CODECS))
        if re.search(r"isvalid: false|invalid bytes", told):
            raise CheckFailed("a batch is not valid to Kafka")

    def delete_topic(self) -> None:
        self._tool("TopicCommand", "--delete", "--topic", "t")
        if "t" in self._tool("TopicCommand", "--list").split():
            raise CheckFailed("the deleted topic is still listed")


def run_suite(suite: Suite, server: Server) -> None:
    tools = Tools(server)
    suite.check("BrokerApiVersionsCommand", tools.api_versions)
    suite.check("TopicCommand --create", tools.create_topic)
    suite.check("TopicCommand --list", tools.list_topics)
    suite.check("TopicCommand --describe", tools.describe_topic)
    suite.check("TopicCommand --alter", tools.add_partitions)
    suite.check("ConfigCommand --add-config", tools.alter_config)
    suite.check("ConfigCommand --delete-config", tools.remove_config)
    suite.check("ConfigCommand of a broker", tools.broker_config)
    for codec in CODECS:
        suite.check(f"ProducerPerformance with {codec}", partial(tools.produce_with, codec))
    suite.check("GetOffsetShell", tools.end_offsets)
    suite.check("VerifiableProducer", tools.verifiable_producer)
    suite.check("ConsoleProducer and ConsoleConsumer", tools.console_round_trip)
    suite.check("ClientCompatibilityTest", tools.compatibility)
    suite.check("LogDirsCommand", tools.log_directories)
    suite.check("DumpLogSegments", tools.dump_segments)
    suite.check("TopicCommand --delete", tools.delete_topic)
