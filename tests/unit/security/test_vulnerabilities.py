"""Vulnerabilities of other brokers and their clients, one test for each: none of them is in this one.

`tests/unit/security/test_security_lines.py` checks that none of the list is missing.
"""

from __future__ import annotations

import hmac
import json
import logging
import struct
import tracemalloc
from base64 import urlsafe_b64encode
from collections.abc import Iterator

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from flowstone.app import App
from flowstone.authentication import scram
from flowstone.authentication.errors import LoginRefused
from flowstone.authentication.jaas import parse_jaas
from flowstone.authentication.oauthbearer import Expectations, validate
from flowstone.authentication.scram import ScramClient, ScramMechanism, salted_password
from flowstone.broker.authentication import mechanisms
from flowstone.broker.authentication.failed_logins import FailedLogins
from flowstone.client.security import parse_security
from flowstone.cluster.decisions.acl_operations import AclOperation, ResourceType
from flowstone.cluster.image.acl import ALLOW, DENY, LITERAL, Acl
from flowstone.cluster.image.records import AclsCreated
from flowstone.config.properties import parse_properties
from flowstone.errors import ConfigError, ErrorCode, ProtocolError
from flowstone.wire import messages as m
from flowstone.wire.apis import APIS
from flowstone.wire.codec import request_decoder
from flowstone.wire.frames import encode_request_header
from tests.support.acl_clients import codes_in
from tests.support.running_app import RunningApp
from tests.support.security.secured import PASSWORD, USER, authenticate, handshake, log_in, secured_app
from tests.support.security.tokens import app_with_tokens, logged_in
from tests.support.wire_client import Client, batch_of, framed

LISTENER = "SASL_PLAINTEXT"
TOPIC, GROUP, MINE = "payments", "billing", "alice-only"
HUGE = struct.pack(">i", 2**31 - 1)
HUGE_VARINT = b"\xff\xff\xff\xff\x0f"
MEMORY_BYTES_MAX = 4 << 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    settings = {"authorizer.class.name": "StandardAuthorizer", "super.users": f"User:{USER};User:carol"}
    with app_with_tokens(tmp_path_factory.mktemp("broker"), **settings) as app:
        with logged_in(app, "carol") as carol:
            assert carol.create_topic(TOPIC) == 0
            assert carol.produce(TOPIC, batch_of(b"secret")).error_code == 0
        yield app


def allow(
    broker: RunningApp, who: str, kind: ResourceType, name: str, *operations: AclOperation, how: int = ALLOW
) -> None:
    rules = tuple(Acl(kind, name, LITERAL, f"User:{who}", "*", each, how) for each in operations)
    broker.run(broker.app.services.metadata.append([AclsCreated(rules)]))


def test_cve_2026_33557_an_unsigned_jwt_is_refused() -> None:
    key = RSAKey.generate_key(2048, {"kid": "one"})
    claims = {"iss": "i", "aud": "a", "sub": "root", "exp": 2_000}
    expected = Expectations("i", ("a",))
    signed = jwt.encode({"alg": "RS256", "kid": "one"}, claims, key)
    assert validate(signed, KeySet([key]), expected, 1_000).user == "root"
    for algorithm in ("none", "None", "NONE", "HS256", ""):
        head = urlsafe_b64encode(json.dumps({"alg": algorithm, "kid": "one"}).encode()).rstrip(b"=").decode()
        for signature in ("", signed.split(".")[2]):
            with pytest.raises(LoginRefused):
                validate(f"{head}.{signed.split('.')[1]}.{signature}", KeySet([key]), expected, 1_000)


def test_cve_2026_110985_without_keys_for_tokens_the_broker_does_not_start(tmp_path) -> None:
    settings = {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.expected.issuer": "i"}
    app = secured_app(tmp_path, f"{LISTENER}://127.0.0.1:0", **settings, **{"sasl.oauthbearer.expected.audience": "a"})
    with pytest.raises(ConfigError, match=r"jwks\.endpoint\.url: OAUTHBEARER needs it"), app:
        pass


@pytest.mark.parametrize("change", [b"r=other", b"r=nonce", None])
def test_cve_2024_56128_the_nonce_of_the_final_message_is_checked(broker: RunningApp, change: bytes | None) -> None:
    with broker.client(LISTENER) as client:
        handshake(client)
        login = ScramClient(ScramMechanism.SHA_512, USER, "nonce")
        challenge = login.parse_challenge(bytes(authenticate(client, login.first()).auth_bytes))
        if change is not None:  # signed with the changed nonce, as an attacker who replays would
            login._nonce = change[2:].decode()
        final = login.final(salted_password(ScramMechanism.SHA_512, PASSWORD, *challenge))
        assert (authenticate(client, final).error_code == 0) == (change is None)


def test_cve_2017_12610_nobody_logs_in_for_another_user(broker: RunningApp) -> None:
    with broker.client(LISTENER) as client:
        handshake(client, "PLAIN")
        assert authenticate(client, b"carol\0alice\0alice").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    with broker.client(LISTENER) as client:
        handshake(client)
        login = ScramClient(ScramMechanism.SHA_512, USER, "nonce")
        first = login.first().replace(b"n,,", b"n,a=carol,", 1)
        assert authenticate(client, first).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_cve_2021_38153_secrets_are_compared_in_constant_time(
    broker: RunningApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    class Spy:
        digest = staticmethod(hmac.digest)

        @staticmethod
        def compare_digest(one: bytes, other: bytes) -> bool:
            compared.append((one, other))
            return hmac.compare_digest(one, other)

    monkeypatch.setattr(scram, "hmac", Spy)
    monkeypatch.setattr(mechanisms, "hmac", Spy)
    with broker.client(LISTENER) as client:
        handshake(client, "PLAIN")
        authenticate(client, b"\0alice\0guess")
    assert compared == [(b"alice", b"guess")]
    compared.clear()
    with broker.client(LISTENER) as client:  # PLAIN with the stored keys of SCRAM
        handshake(client, "PLAIN")
        authenticate(client, f"\0{USER}\0guess".encode())
    assert len(compared) == 1
    compared.clear()
    with broker.client(LISTENER) as client:
        assert log_in(client, password="guess").error_code != 0
    assert len(compared) == 2  # the nonce and the proof


def test_cve_2022_34917_a_stranger_gets_no_memory(broker: RunningApp) -> None:
    for size in (524_289, 100 << 20, 2**31 - 1):
        with broker.client(LISTENER) as client:
            client.send(struct.pack(">i", size) + bytes(1000))
            client.closed_after_s()
    with broker.client(LISTENER) as client:
        handshake(client)
        client.send(struct.pack(">i", 524_289))
        client.closed_after_s()


@pytest.mark.parametrize(
    ("name", "version", "body"),
    [
        ("Metadata", 1, HUGE),
        ("Metadata", 9, HUGE_VARINT),
        ("DescribeGroups", 0, HUGE),
        ("CreateTopics", 5, HUGE_VARINT),
        ("DescribeDelegationToken", 2, HUGE_VARINT),
    ],
)
def test_cve_2026_111108_an_announced_array_takes_no_memory(name: str, version: int, body: bytes) -> None:
    decode = request_decoder(_key(name), version)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(memoryview(body + bytes(64)), 0)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("tags", [HUGE_VARINT, b"\x01\x00" + HUGE_VARINT, b"\xff\x7f" * 10])
def test_cve_2026_111115_announced_tags_take_no_memory(broker: RunningApp, tags: bytes) -> None:
    header = encode_request_header(18, 3, 1, "client")
    before = tracing()
    for head in (header[:-1] + tags, header + b"\x02a\x021" + tags):  # in the header, and in the body
        with broker.client(LISTENER) as client:
            client.send(framed(head + bytes(64)))
            client.closed_after_s()
    assert tracing() - before < MEMORY_BYTES_MAX
    tracemalloc.stop()


def test_cve_2018_1288_a_client_does_not_fetch_as_a_replica(broker: RunningApp) -> None:
    allow(broker, "alice", ResourceType.TOPIC, TOPIC, AclOperation.DESCRIBE)
    own = broker.app.services.metadata.image.brokers[broker.app.config.node_id]
    state = m.FetchRequestReplicaState(replica_id=own.node_id, replica_epoch=own.epoch)
    partition = m.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic_id = broker.app.services.metadata.image.topics[TOPIC].topic_id
    request = m.FetchRequest(
        max_bytes=1 << 20, replica_state=state, topics=[m.FetchRequestTopic(topic_id=topic_id, partitions=[partition])]
    )
    with logged_in(broker, "alice") as alice:
        answer = alice.ask(15, request)
    assert set(codes_in(answer)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert not any(each.records for topic in answer.responses for each in topic.partitions)


def test_cve_2023_50976_a_transaction_needs_its_permissions(broker: RunningApp) -> None:
    allow(broker, "alice", ResourceType.TOPIC, TOPIC, AclOperation.WRITE)
    topics = [m.AddPartitionsToTxnRequestTopic(name=TOPIC, partitions=[0])]
    added = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=MINE,
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=topics,
    )
    ended = m.EndTxnRequest(transactional_id=MINE, producer_id=1, producer_epoch=0, committed=True)
    with logged_in(broker, "alice") as alice:
        for version, request in ((3, added), (3, ended)):
            codes = set(codes_in(alice.ask(version, request)))
            assert codes == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}


def test_cve_2026_105931_nobody_takes_over_another_users_transactions(broker: RunningApp) -> None:
    allow(broker, "alice", ResourceType.TRANSACTIONAL_ID, MINE, AclOperation.WRITE)
    begin = m.InitProducerIdRequest(transactional_id=MINE, transaction_timeout_ms=60_000, producer_id=-1)
    offsets = m.AddOffsetsToTxnRequest(transactional_id=MINE, producer_id=1, producer_epoch=0, group_id=GROUP)
    refused = {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    with logged_in(broker, "bob") as bob, logged_in(broker, "alice") as alice:
        assert set(codes_in(bob.ask(4, begin))) == refused
        assert set(codes_in(bob.ask(3, offsets))) == refused
        assert ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED not in set(codes_in(alice.ask(4, begin)))


def test_cve_2026_82266_the_admin_port_is_not_open_to_the_network(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"needs http\.ssl\.enable=true and http\.tokens\.file"):
        App({"log.dirs": str(tmp_path), "http.listener": "0.0.0.0:0"})


def test_cve_2024_31141_no_value_of_a_setting_reads_a_file_or_the_environment(broker: RunningApp, tmp_path) -> None:
    (tmp_path / "other").write_text("stolen")
    texts = (f"${{file:{tmp_path}/other}}", "${env:HOME}", f"${{directory:{tmp_path}:other}}")
    for text in texts:
        assert parse_properties(f"ssl.truststore.certificates={text}", "x") == {"ssl.truststore.certificates": text}
        known = parse_security({"security.protocol": "SSL", "ssl.truststore.certificates": text})
        assert known.pem.trusted_certificates == text
        change = m.IncrementalAlterConfigsRequestConfig(name="retention.ms", config_operation=0, value=text)
        resource = m.IncrementalAlterConfigsRequestResource(resource_type=2, resource_name=TOPIC, configs=[change])
        with logged_in(broker, "carol") as carol:
            answer = carol.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
        assert "stolen" not in answer.responses[0].error_message


def test_cve_2025_27817_no_url_comes_from_a_clients_configuration_or_an_administrators_request(
    broker: RunningApp,
) -> None:
    for name in ("sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.jwks.endpoint.url"):
        with pytest.raises(ConfigError, match="this client has no such property"):
            parse_security({"security.protocol": "SASL_SSL", name: "file:///etc/passwd"})
    change = m.IncrementalAlterConfigsRequestConfig(
        name="sasl.oauthbearer.jwks.endpoint.url", config_operation=0, value="file:///etc/passwd"
    )
    resource = m.IncrementalAlterConfigsRequestResource(resource_type=4, resource_name="1", configs=[change])
    with logged_in(broker, "carol") as carol:
        answer = carol.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code != 0


@pytest.mark.parametrize(
    "module", ["com.sun.security.auth.module.LdapLoginModule", "com.sun.security.auth.module.JndiLoginModule"]
)
def test_cve_2025_27818_and_cve_2025_27819_no_other_login_module_is_taken(module: str) -> None:
    with pytest.raises(ConfigError, match="the login module must be one of"):
        parse_jaas(f'{module} required user.provider.url="ldap://192.0.2.1/x";')


def test_cve_2026_33558_no_secret_is_in_a_debug_log(
    broker: RunningApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def log_each(_failed: FailedLogins, _peer: str, _kind: str, level: int, message: str, *args: object) -> None:
        logging.getLogger(__name__).log(level, message, *args)

    monkeypatch.setattr(FailedLogins, "note", log_each)  # also those that are only counted
    caplog.set_level(logging.DEBUG)
    canary = b"canary-0a6c41".ljust(64, b"!")
    change = m.AlterUserScramCredentialsRequestScramCredentialUpsertion(
        name="dora", mechanism=2, iterations=4096, salt=b"salt", salted_password=canary
    )
    with logged_in(broker, "carol") as carol:
        assert carol.ask(0, m.AlterUserScramCredentialsRequest(upsertions=[change])).results[0].error_code == 0
    with broker.client(LISTENER) as client:
        handshake(client, "PLAIN")
        authenticate(client, b"\0alice\0" + canary)
    with broker.client(LISTENER) as client:  # neither is what cannot be parsed
        handshake(client, "PLAIN")
        authenticate(client, b"a\0b\0c\0" + canary)
    assert "login from" in caplog.text
    assert "canary" not in caplog.text


def test_cve_2026_41115_describing_a_group_needs_describe(broker: RunningApp) -> None:
    allow(broker, "alice", ResourceType.GROUP, GROUP, AclOperation.DESCRIBE)
    allow(broker, "bob", ResourceType.GROUP, GROUP, AclOperation.READ)
    allow(broker, "bob", ResourceType.GROUP, GROUP, AclOperation.DESCRIBE, how=DENY)
    requests = (
        (5, m.DescribeGroupsRequest(groups=[GROUP])),
        (1, m.ConsumerGroupDescribeRequest(group_ids=[GROUP])),
        (1, m.ShareGroupDescribeRequest(group_ids=[GROUP])),
    )
    with logged_in(broker, "alice") as alice, logged_in(broker, "bob") as bob:
        for version, request in requests:
            assert ErrorCode.GROUP_AUTHORIZATION_FAILED not in codes(alice, version, request)
            assert codes(bob, version, request) == {ErrorCode.GROUP_AUTHORIZATION_FAILED}


def codes(client: Client, version: int, request: object) -> set[int]:
    return set(codes_in(client.ask(version, request)))


def tracing() -> int:
    """The most memory that Python has had at once since the first call."""
    if not tracemalloc.is_tracing():
        tracemalloc.start()
    return tracemalloc.get_traced_memory()[1]


def _key(name: str) -> int:
    return next(key for key, api in APIS.items() if api.name == name)
