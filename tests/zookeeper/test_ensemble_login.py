"""Brokers with a login to a real ZooKeeper, with TLS and without: they form a cluster, and strangers read nothing."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from flowstone.authentication.scram import ScramMechanism
from flowstone.cluster.zookeeper.ensemble_login import ensemble_login
from flowstone.config import parse_broker_config
from flowstone.embedded.zookeeper_server import ZooKeeperServer
from flowstone.errors import ConfigError, StartupError
from flowstone.ports.secret_files import write_secret
from tests.support.ports import free_ports
from tests.support.running_app import RunningApp
from tests.support.security.secured import credential, secured_app, write_files


def every_node(client: KazooClient, path: str) -> list[str]:
    return [path, *(node for child in client.get_children(path) for node in every_node(client, f"{path}/{child}"))]


def test_only_brokers_read_and_change_what_they_store(zookeeper, tmp_path):
    write_secret(str(tmp_path / "zookeeper.auth"), "broker:zookeeper-secret\n")
    connect = f"{zookeeper.address}/locked"
    settings = {"zookeeper.connect": connect, "zookeeper.auth.file": str(tmp_path / "zookeeper.auth")}
    stranger = KazooClient(zookeeper.address)
    stranger.start()
    own = KazooClient(zookeeper.address, auth_data=[("digest", "broker:zookeeper-secret")])
    own.start()
    with secured_app(tmp_path, "SASL_PLAINTEXT://127.0.0.1:0", **settings) as broker:
        assert broker.app.services.metadata.image.scram_credentials
        nodes = every_node(own, "/locked")
        assert len(nodes) > 5
        for node in nodes:
            with pytest.raises(NoAuthError):
                stranger.get(node)
            with pytest.raises(NoAuthError):
                stranger.get_children(node)
            with pytest.raises(NoAuthError):
                stranger.create(f"{node}/intruder", b"")
            if node != "/locked":  # whose parent is not the brokers'
                with pytest.raises(NoAuthError):
                    stranger.delete(node)
    intruder = RunningApp(str(tmp_path / "other"), zookeeper_connect=connect, node_id="2")
    with pytest.raises((StartupError, NoAuthError)):
        intruder.__enter__()
    stored = b"".join(own.get(node)[0] for node in every_node(own, "/locked"))
    assert b"zookeeper-secret" not in stored
    assert credential(ScramMechanism.SHA_512).stored_key.hex().encode() in stored  # why it must be locked
    for client in (stranger, own):
        client.stop()
        client.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"zookeeper.ssl.client.enable": "true"}, "needs zookeeper.ssl.truststore.location"),
        ({"zookeeper.auth.file": "missing"}, "missing cannot be read: No such file"),
    ],
)
def test_what_cannot_be_used_is_said(settings, message):
    config, _ = parse_broker_config(settings)
    with pytest.raises((ConfigError, StartupError), match=message):
        ensemble_login(config)


def test_a_malformed_file_is_not_repeated(tmp_path):
    write_secret(str(tmp_path / "auth"), "canary\n")
    config, _ = parse_broker_config({"zookeeper.auth.file": str(tmp_path / "auth")})
    with pytest.raises(ConfigError, match="one line user:password") as caught:
        ensemble_login(config)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("client_auth", ["none", "need"])
def test_connections_to_zookeeper_are_encrypted(tmp_path, client_auth):
    files = write_files(tmp_path)
    port = free_ports(1)
    settings = {
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": files["ssl.keystore.location"],
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": files["ssl.truststore.location"],
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": client_auth,
    }
    secured = {
        "zookeeper.connect": f"localhost:{port}/encrypted",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": files["ssl.truststore.location"],
        "zookeeper.ssl.keystore.location": files["ssl.keystore.location"] if client_auth == "need" else "",
    }
    with ZooKeeperServer(settings=settings), RunningApp(str(tmp_path / "data"), **secured) as broker:
        assert list(broker.app.services.metadata.image.brokers) == [1]
