from __future__ import annotations

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from confluent_kafka.admin import ScramMechanism as Mechanism

from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequestUserName,
)
from tests.support.running_app import RunningApp
from tests.support.security.secured import secured_app

Deletion = AlterUserScramCredentialsRequestScramCredentialDeletion
UserName = DescribeUserScramCredentialsRequestUserName


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with secured_app(tmp_path_factory.mktemp("broker"), "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0") as app:
        yield app


def settings(broker: RunningApp, user: str, password: str) -> dict[str, str | int]:
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.app.addresses['SASL_PLAINTEXT'][1]}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


def test_a_user_is_added_described_and_removed(broker):
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.app.addresses['PLAINTEXT'][1]}"})
    info = ScramCredentialInfo(Mechanism.SCRAM_SHA_256, 8192)
    for future in admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", info, b"builder")]).values():
        future.result(10)
    told = admin.describe_user_scram_credentials(["bob"])["bob"].result(10)
    assert [(each.mechanism, each.iterations) for each in told.scram_credential_infos] == [
        (Mechanism.SCRAM_SHA_256, 8192)
    ]
    assert set(admin.describe_user_scram_credentials().result(10)) == {"admin", "bob"}
    assert AdminClient(settings(broker, "bob", "builder")).list_topics(timeout=10).brokers
    removal = [UserScramCredentialDeletion("bob", Mechanism.SCRAM_SHA_256)]
    for future in admin.alter_user_scram_credentials(removal).values():
        future.result(10)
    assert set(admin.describe_user_scram_credentials().result(10)) == {"admin"}


def test_errors_are_those_of_each_user(broker):
    with broker.client() as client:
        names = [UserName(name=name) for name in ("admin", "nobody", "twice", "twice")]
        told = client.ask(0, DescribeUserScramCredentialsRequest(users=names))
        assert [(each.user, each.error_code, len(each.credential_infos)) for each in told.results] == [
            ("admin", 0, 2),
            ("nobody", ErrorCode.RESOURCE_NOT_FOUND, 0),
            ("twice", ErrorCode.DUPLICATE_RESOURCE, 0),
        ]
        deletions = [Deletion(name="nobody", mechanism=1), Deletion(name="", mechanism=1)]
        altered = client.ask(0, AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[]))
        assert {each.user: each.error_code for each in altered.results} == {
            "nobody": ErrorCode.RESOURCE_NOT_FOUND,
            "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        }


def test_too_many_changes_are_refused(broker):
    deletions = [Deletion(name="nobody", mechanism=1)] * 1001
    with broker.client() as client:
        altered = client.ask(0, AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[]))
        assert [each.error_code for each in altered.results] == [ErrorCode.INVALID_REQUEST]
