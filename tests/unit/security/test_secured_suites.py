"""The plugin that runs suites over SASL_SSL: their brokers are secured, and clients that name no security are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.pages import ROOT
from tests.support.security.secured_suites import VARIABLE

SUITE = """
import socket

import confluent_kafka
import kafka

import flowstone


def test_records_arrive():
    with flowstone.Broker() as broker:
        assert broker.client_properties["security.protocol"] == "SASL_SSL"
        broker.create_topic("t")
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("t", b"one")
        assert producer.flush(20) == 0
        with kafka.KafkaProducer(bootstrap_servers=broker.bootstrap) as other:
            other.send("t", b"two").get(20)
        assert {record.value for record in broker.wait_for("t", 2)} == {b"one", b"two"}
        host, _, port = broker.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), 20) as plain:  # a Metadata request of version 0
            plain.sendall(bytes.fromhex("00000010000300000000000100027878") + bytes(4))
            try:
                answer = plain.recv(4)
            except ConnectionResetError:
                answer = b""
            assert answer[:1] in (b"", b"\\x15")  # nothing, or a TLS alert
"""


def test_clients_that_name_no_security_are_encrypted_and_logged_in(tmp_path: Path) -> None:
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.security.secured_suites"]
    command += ["-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider", str(suite)]
    environment = {**os.environ, VARIABLE: "sasl_tls", "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
    result = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout
