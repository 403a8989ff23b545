"""Three brokers whose only listener needs TLS and a login: they replicate, and fail over."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from flowstone.broker.authentication.listener_security import parse_security
from flowstone.broker.authentication.peer_network import inter_broker_listener
from flowstone.config import parse_broker_config
from flowstone.embedded.cluster import Cluster
from flowstone.errors import ConfigError
from tests.support.security.secured import PASSWORD, USER, write_files

TIMEOUT_S = 20


def test_brokers_replicate_over_encrypted_connections_with_a_login(tmp_path, caplog):
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings = {
        **write_files(tmp_path),
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL",
        "sasl.jaas.config": f'{module} required username="{USER}" password="{PASSWORD}";',
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": f"User:{USER}",
        "connections.max.reauth.ms": "2000",
    }
    with Cluster(3, settings=settings) as cluster:
        cluster.create_topic("orders", partitions=3)
        client = {
            "bootstrap.servers": cluster.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "transactional.id": "writer",
            "log_level": 0,
        }
        producer = Producer(client)
        producer.init_transactions(TIMEOUT_S)  # markers cross brokers too
        producer.begin_transaction()
        for number in range(300):
            producer.produce("orders", f"{number}", partition=number % 3)
        producer.commit_transaction(TIMEOUT_S)
        cluster.brokers[cluster.leader("orders", 0)].kill()
        values = cluster.wait_for("orders", 300, TIMEOUT_S, read_committed=True)
        assert len(values) == 300
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, "A"),
        ({"inter.broker.listener.name": "b"}, "B"),
        ({"security.inter.broker.protocol": "SASL_SSL"}, "B"),
    ],
)
def test_the_listener_between_brokers(values, found):
    values = {"listener.security.protocol.map": "A:PLAINTEXT,B:SASL_SSL", **values}
    config, _ = parse_broker_config(values)
    assert inter_broker_listener(config, parse_security(values, config, ["A", "B"])) == found


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inter.broker.listener.name": "C"}, "no listener named C"),
        ({"security.inter.broker.protocol": "SSL"}, "no listener has the protocol SSL"),
        ({"inter.broker.listener.name": "A", "security.inter.broker.protocol": "SSL"}, "not both"),
    ],
)
def test_a_listener_that_does_not_exist_is_refused(values, message):
    values = {"listener.security.protocol.map": "A:PLAINTEXT,B:SASL_SSL", **values}
    config, _ = parse_broker_config(values)
    with pytest.raises(ConfigError, match=message):
        inter_broker_listener(config, parse_security(values, config, ["A", "B"]))
