"""Consumer groups with Kafka's own client and tools from its jars: the newest version of every group API."""

from __future__ import annotations

import re

from scripts.client_suites.java_tools import Java
from scripts.client_suites.suite import CheckFailed, Server, Suite, expect

TOPIC, GROUP = "grouped", "readers"
PARTITIONS, RECORDS = 3, 300
MOVED_TO = 40


class Groups:
    """The checks, one per method; later ones depend on earlier ones."""

    def __init__(self, server: Server) -> None:
        self._java = Java(server)

    def fill(self) -> None:
        self._java.tool("TopicCommand", "--create", "--topic", TOPIC, "--partitions", str(PARTITIONS))
        told = self._java.tool(
            "ProducerPerformance", "--topic", TOPIC, "--num-records", str(RECORDS), "--record-size", "100",
            "--throughput", "-1", "--command-property", "batch.size=1000",
        )  # fmt: skip
        expect(told, f"{RECORDS} records sent")

    def console_consumer(self) -> None:
        self._consume("--from-beginning", "--max-messages", str(RECORDS), count=RECORDS)

    def goes_on(self) -> None:
        self._java.tool("ConsoleProducer", "--topic", TOPIC, input="one more\n")
        self._consume("--max-messages", "1", count=1)

    def _consume(self, *arguments: str, count: int) -> None:
        told = self._java.tool("consumer.ConsoleConsumer", "--topic", TOPIC, "--group", GROUP, *arguments)
        if len(told.splitlines()) != count:
            raise CheckFailed(f"read {len(told.splitlines())} records, not {count}")

    def list_groups(self) -> None:
        expect(self._command("--list", "--state"), GROUP, "Empty")

    def describe_offsets(self) -> None:
        told = self._command("--describe", "--group", GROUP)
        lags = re.findall(rf"^{GROUP} +{TOPIC} +\d+ +(\d+) +(\d+) +(\d+)", told, re.MULTILINE)
        if len(lags) != PARTITIONS or any(lag != "0" or offset != end for offset, end, lag in lags):
            raise CheckFailed(f"not {PARTITIONS} partitions without a lag: {told}")

    def describe_state(self) -> None:
        expect(self._command("--describe", "--group", GROUP, "--state"), GROUP, "Empty", " 0")

    def describe_members(self) -> None:
        self._command("--describe", "--group", GROUP, "--members")

    def reset_dry_run(self) -> None:
        told = self._reset("--to-earliest", "--dry-run")
        if len(re.findall(rf"^{GROUP} +{TOPIC} +\d+ +0", told, re.MULTILINE)) != PARTITIONS:
            raise CheckFailed(f"not {PARTITIONS} partitions at 0: {told}")
        self.describe_offsets()  # nothing has moved

    def reset(self) -> None:
        self._reset("--to-offset", str(MOVED_TO), "--execute")
        told = self._command("--describe", "--group", GROUP)
        if len(re.findall(rf"^{GROUP} +{TOPIC} +\d+ +{MOVED_TO} ", told, re.MULTILINE)) != PARTITIONS:
            raise CheckFailed(f"not {PARTITIONS} partitions at {MOVED_TO}: {told}")

    def _reset(self, *arguments: str) -> str:
        return self._command("--reset-offsets", "--group", GROUP, "--topic", TOPIC, *arguments)

    def reads_after_reset(self) -> None:
        count = RECORDS + 1 - PARTITIONS * MOVED_TO
        self._consume("--max-messages", str(count), count=count)

    def delete_offsets(self) -> None:
        expect(self._command("--delete-offsets", "--group", GROUP, "--topic", TOPIC), "Successful")

    def delete(self) -> None:
        expect(self._command("--delete", "--group", GROUP), "was successful")
        if GROUP in self._command("--list").split():
            raise CheckFailed("the deleted group is still listed")

    def _command(self, *arguments: str) -> str:
        return self._java.tool("consumer.group.ConsumerGroupCommand", *arguments)

    def performance(self) -> None:
        told = self._java.tool(
            "ConsumerPerformance", "--topic", TOPIC, "--num-records", str(RECORDS), "--group", "fast"
        )  # fmt: skip
        figures = told.splitlines()[-1].split(", ")
        if int(figures[4]) < RECORDS:
            raise CheckFailed(f"read {figures[4]} records, not {RECORDS}")

    def verifiable_consumer(self) -> None:
        told = self._java.tool(
            "VerifiableConsumer", "--topic", TOPIC, "--group-id", "verified", "--max-messages", "100",
            "--reset-policy", "earliest", "--assignment-strategy",
            "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        )  # fmt: skip
        expect(told, '"name":"partitions_assigned"', '"name":"offsets_committed"', '"success":true')

    def end_to_end_latency(self) -> None:
        told = self._java.tool(
            "EndToEndLatency", "--topic", "latency", "--num-records", "50", "--producer-acks", "all",
            "--record-size", "100",
        )  # fmt: skip
        expect(told, "Percentiles: 50th")


def run_suite(suite: Suite, server: Server) -> None:
    groups = Groups(server)
    suite.check("a topic with records", groups.fill)
    suite.check("ConsoleConsumer --group", groups.console_consumer)
    suite.check("ConsoleConsumer goes on where the group was", groups.goes_on)
    suite.check("ConsumerGroupCommand --list", groups.list_groups)
    suite.check("ConsumerGroupCommand --describe", groups.describe_offsets)
    suite.check("ConsumerGroupCommand --describe --state", groups.describe_state)
    suite.check("ConsumerGroupCommand --describe --members", groups.describe_members)
    suite.check("ConsumerGroupCommand --reset-offsets --dry-run", groups.reset_dry_run)
    suite.check("ConsumerGroupCommand --reset-offsets --execute", groups.reset)
    suite.check("ConsoleConsumer reads again what was reset", groups.reads_after_reset)
    suite.check("ConsumerGroupCommand --delete-offsets", groups.delete_offsets)
    suite.check("ConsumerGroupCommand --delete", groups.delete)
    suite.check("ConsumerPerformance", groups.performance)
    suite.check("VerifiableConsumer with cooperative-sticky", groups.verifiable_consumer)
    suite.check("EndToEndLatency", groups.end_to_end_latency)
