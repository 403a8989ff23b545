"""Java's console share consumer and kafka-share-groups.sh of Apache Kafka 4.3.1, from a fetched Kafka.

Each tool starts a Java machine: `FLOWSTONE_JAVA_SHARE=1` has them run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import ExitStack

import pytest
from scripts.fetch_kafka import cache_folder, kafka_classpath

import flowstone
from tests.support.wire_client import Client, batch_of

pytestmark = pytest.mark.skipif(
    not os.environ.get("FLOWSTONE_JAVA_SHARE") or shutil.which("java") is None or not cache_folder().is_dir(),
    reason="needs FLOWSTONE_JAVA_SHARE=1, java and a fetched Kafka (scripts/fetch_kafka.py)",
)
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
TOOL = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
TIMEOUT_S = 90
GROUP, TOPIC = "java", "tasks"


def command(broker: flowstone.Broker, name: str, *arguments: str) -> list[str]:
    return ["java", "-Xmx256m", "-cp", kafka_classpath(), name, "--bootstrap-server", broker.bootstrap, *arguments]


def tool(broker: flowstone.Broker, *arguments: str) -> list[list[str]]:
    """The words of each line that kafka-share-groups.sh prints."""
    done = subprocess.run(
        command(broker, TOOL, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return [line.split() for line in done.stdout.splitlines() if line and "SLF4J" not in line]


def produce(broker: flowstone.Broker, *values: bytes) -> None:
    host, _, port = broker.bootstrap.rpartition(":")
    with Client((host, int(port))) as client:
        assert not client.produce(TOPIC, bytes(batch_of(*values))).error_code


def test_javas_share_consumer_and_tools_do_their_work() -> None:
    with flowstone.Broker() as broker, ExitStack() as ends:
        broker.create_topic(TOPIC, partitions=1)
        produce(broker, b"before")  # not consumed: a share group begins at the end
        consumer = command(broker, CONSUMER, "--topic", TOPIC, "--group", GROUP, "--max-messages", "3")
        consuming = subprocess.Popen(consumer, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        ends.callback(consuming.kill)
        deadline = time.monotonic() + TIMEOUT_S
        while not any(line[-1] == f"{TOPIC}:0" for line in tool(broker, "--describe", "--group", GROUP, "--members")):
            assert time.monotonic() < deadline
        assert ["Share", "group", f"'{GROUP}'", "is", "not", "empty."] in tool(
            broker, "--reset-offsets", "--group", GROUP, "--topic", TOPIC, "--to-earliest", "--execute"
        )
        produce(broker, b"a", b"b", b"c")
        assert consuming.communicate(timeout=TIMEOUT_S)[0].split() == ["a", "b", "c"]
        assert [GROUP, TOPIC, "0", "4", "0"] in tool(broker, "--describe", "--group", GROUP, "--offsets")
        tool(broker, "--reset-offsets", "--group", GROUP, "--topic", TOPIC, "--to-earliest", "--execute")
        assert [GROUP, TOPIC, "0", "0", "4"] in tool(broker, "--describe", "--group", GROUP)
        assert [TOPIC, "Successful"] in tool(broker, "--delete-offsets", "--group", GROUP, "--topic", TOPIC)
        assert [GROUP, "Empty"] in tool(broker, "--list", "--state")
        assert "successful." in tool(broker, "--delete", "--group", GROUP)[-1]
        assert tool(broker, "--list") == []
