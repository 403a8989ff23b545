"""Settings that are altered while a broker runs: of compaction, limits and threads, and those without effect."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource

from flowstone.config.properties import parse_properties
from flowstone.errors import ErrorCode
from flowstone.ports.thread_pool import ThreadPool
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client, Closed

BROKER = 4
RATE = "log.cleaner.io.max.bytes.per.second"


def rates(app: RunningApp) -> set[float]:
    return {each.cleaner._config.log_cleaner_io_max_bytes_per_second for each in app.app.services.logs.directories}


def test_an_altered_rate_of_compaction_holds_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as app, app.client() as client:
        config = m.IncrementalAlterConfigsRequestConfig(name=RATE, config_operation=0, value="12345")
        resource = m.IncrementalAlterConfigsRequestResource(resource_type=BROKER, resource_name="", configs=[config])
        (answer,) = client.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource])).responses
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        assert rates(app) == {12345.0}
    with RunningApp(str(tmp_path)) as app:
        assert rates(app) == {12345.0}


def alter(client: Client, name: str, value: str) -> m.IncrementalAlterConfigsResponseResource:
    config = m.IncrementalAlterConfigsRequestConfig(name=name, config_operation=0, value=value)
    resource = m.IncrementalAlterConfigsRequestResource(resource_type=BROKER, resource_name="", configs=[config])
    (answer,) = client.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource])).responses
    return answer


def test_altered_limits_of_connections_and_producers_hold_at_once(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as app, app.client() as client:
        assert alter(client, "max.connections.per.ip", "1").error_code == ErrorCode.NONE
        with app.client() as refused, pytest.raises(Closed):
            refused.ask(0, m.ApiVersionsRequest())
        assert alter(client, "max.connections.per.ip.overrides", "127.0.0.1").error_code == ErrorCode.INVALID_REQUEST
        assert alter(client, "max.connections.per.ip.overrides", "127.0.0.1:2").error_code == ErrorCode.NONE
        with app.client() as second:
            assert second.ask(0, m.ApiVersionsRequest()).error_code == ErrorCode.NONE
        assert alter(client, "producer.id.expiration.ms", "1234").error_code == ErrorCode.NONE
        kept = {each.housekeeping._config.producer_id_expiration_ms for each in app.app.services.logs.directories}
        assert kept == {1234}


def counts(app: RunningApp) -> tuple[int, set[int]]:
    """The numbers of threads that read, and of those that flush each directory."""
    services = app.app.services
    readers = services.workers._readers
    assert isinstance(readers, ThreadPool)
    return readers._thread_count, {each.flusher.thread_count for each in services.logs.directories}


def alter_threads(admin: AdminClient, reader: int, flush: int) -> None:
    counts = {"num.reader.threads": str(reader), "num.flush.threads": str(flush)}
    entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in counts.items()]
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=entries)
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(10)


def test_a_client_alters_the_numbers_of_threads_while_another_produces(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as app:
        host, port = app.app.addresses["PLAINTEXT"]
        bootstrap = {"bootstrap.servers": f"{host}:{port}"}
        admin, producer = AdminClient(bootstrap), Producer({**bootstrap, "linger.ms": 0})
        outcomes: list[KafkaError | None] = []
        assert counts(app) == (2, {4})
        for reader, flush in ((4, 2), (8, 1), (4, 2), (2, 4)):
            for _ in range(20):
                producer.produce("t", b"v", on_delivery=lambda error, _message: outcomes.append(error))
                producer.poll(0)
            alter_threads(admin, reader, flush)
            assert counts(app) == (reader, {flush})
        assert producer.flush(20) == 0
        assert outcomes == [None] * 80
        with pytest.raises(KafkaException) as refused:
            alter_threads(admin, 5, 4)
        error = refused.value.args[0]
        assert error.code() == KafkaError.INVALID_REQUEST
        assert "value should not be greater than double the current value 2" in error.str()
        assert counts(app) == (2, {4})
        alter_threads(admin, 4, 8)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        described = admin.describe_configs([resource])[resource].result(10)
        for name, value in (("num.reader.threads", "4"), ("num.flush.threads", "8")):
            entry = described[name]
            assert (entry.value, entry.is_read_only, entry.is_default) == (value, False, False)
            assert ConfigSource(entry.source) is ConfigSource.DYNAMIC_BROKER_CONFIG
    with RunningApp(str(tmp_path)) as app:
        assert counts(app) == (4, {8})


def test_numbers_of_threads_for_all_brokers_hold_where_a_broker_has_none_of_its_own(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as app, app.client() as client:
        assert alter(client, "num.reader.threads", "3").error_code == ErrorCode.NONE
        assert alter(client, "num.flush.threads", "9").error_code == ErrorCode.INVALID_REQUEST
        assert alter(client, "num.flush.threads", "8").error_code == ErrorCode.NONE
        assert counts(app) == (3, {8})


# The file that Kafka 4.3 ships as config/server.properties, with other ports and a listener on loopback.
SERVER_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
queued.max.request.bytes=-1
connections.max.idle.ms=-1
"""


def test_a_configuration_file_of_kafka_starts_a_broker_that_reports_what_has_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowstone.broker.network.live_settings")
    values = parse_properties(SERVER_PROPERTIES, "server.properties")
    with RunningApp(str(tmp_path), **values) as app, app.client() as client:
        assert list(app.app.addresses) == ["PLAINTEXT"]
        for name in ("num.io.threads", "num.replica.fetchers", "num.io.threads"):
            config = m.IncrementalAlterConfigsRequestConfig(name=name, config_operation=0, value="7")
            resource = m.IncrementalAlterConfigsRequestResource(
                resource_type=BROKER, resource_name="1", configs=[config]
            )
            (answer,) = client.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource])).responses
            assert answer.error_code == ErrorCode.NONE, answer.error_message
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert told == [
        "controller.quorum.bootstrap.servers, num.io.threads, num.network.threads, "
        "num.recovery.threads.per.data.dir, process.roles, socket.receive.buffer.bytes",
        "num.replica.fetchers",
    ]
