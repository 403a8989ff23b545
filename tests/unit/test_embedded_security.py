"""An embedded broker with encryption and logins, in both modes, as a project's tests use it."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from flowstone import Broker

TIMEOUT_S = 10


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_records_cross_an_encrypted_connection_with_a_login(mode):
    with Broker(mode=mode, security="sasl_tls") as broker:
        broker.create_topic("orders", partitions=2)
        producer = Producer(broker.client_config)
        producer.produce("orders", b"tea", partition=1)
        assert producer.flush(TIMEOUT_S) == 0
        assert [record.value for record in broker.wait_for("orders", 1)] == [b"tea"]


@pytest.mark.parametrize("security", ["tls", "sasl"])
def test_one_of_both_is_possible(security):
    with Broker(security=security) as broker:
        assert AdminClient(broker.client_config).list_topics(timeout=TIMEOUT_S).brokers


def test_a_client_without_the_password_is_refused():
    with Broker(security="sasl_tls") as broker:
        errors: list[KafkaError] = []
        wrong = {**broker.client_config, "sasl.password": "guess", "error_cb": errors.append, "log_level": 0}
        producer = Producer(wrong)
        with pytest.raises(KafkaException):
            producer.list_topics(timeout=0.5)
        producer.poll(0)
        assert KafkaError._AUTHENTICATION in [error.code() for error in errors]


def test_the_files_are_removed_at_the_end():
    broker = Broker(security="sasl_tls")
    location = Path(broker.client_properties["ssl.truststore.location"])
    assert location.exists()
    assert broker.client_properties["sasl.jaas.config"].endswith(";")
    broker.stop()
    assert not location.parent.exists()


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="security is one of 'none', 'tls', 'sasl', 'sasl_tls'"):
        Broker(security="ssl")  # type: ignore[arg-type]
