"""The cache of decisions: it forgets when rules or the session's principal change, and is limited."""

from __future__ import annotations

import pytest

from flowstone.broker.requests import access as access_module
from flowstone.broker.requests.access import Access, parse_super_users
from flowstone.broker.requests.permissions import TOPIC_READ, TOPIC_WRITE, Permission
from flowstone.broker.requests.session import ClientSession, Principal
from flowstone.cluster.decisions.authorizer import Authorizer
from flowstone.cluster.image.acl import ALLOW, LITERAL, Acl
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE
from flowstone.cluster.image.records import AclsCreated, AclsDeleted
from flowstone.errors import ConfigError

RULE = Acl(2, "t", LITERAL, "User:bob", "*", 3, ALLOW)


def session(name: str, peer: str = "10.0.0.1:5") -> ClientSession:
    made = ClientSession("PLAINTEXT", peer)
    made.principal = Principal("User", name)
    return made


class Denials(list[tuple[Permission, str]]):
    def __call__(self, _session: ClientSession, permission: Permission, name: str) -> None:
        self.append((permission, name))


@pytest.fixture
def denials() -> Denials:
    return Denials()


@pytest.fixture
def access(denials: Denials) -> Access:
    return Access(Authorizer(), denials)


def test_a_change_of_the_rules_counts_for_the_next_request(access: Access) -> None:
    bob = session("bob")
    assert not access.may(bob, TOPIC_READ, "t")
    access.follow(EMPTY_IMAGE, EMPTY_IMAGE, [AclsCreated((RULE,))])
    assert access.may(bob, TOPIC_READ, "t")
    access.follow(EMPTY_IMAGE, EMPTY_IMAGE, [AclsDeleted((RULE,))])
    assert not access.may(bob, TOPIC_READ, "t")


def test_a_session_that_logs_in_has_the_rights_of_its_new_principal(access: Access) -> None:
    access.follow(EMPTY_IMAGE, EMPTY_IMAGE, [AclsCreated((RULE,))])
    one = session("ANONYMOUS")
    assert not access.may(one, TOPIC_READ, "t")
    one.principal = Principal("User", "bob")
    assert access.may(one, TOPIC_READ, "t")


def test_sessions_of_a_principal_at_different_hosts_are_decided_alone(access: Access) -> None:
    access.follow(EMPTY_IMAGE, EMPTY_IMAGE, [AclsCreated((RULE._replace(host="10.0.0.1"),))])
    assert access.may(session("bob", "10.0.0.1:1"), TOPIC_READ, "t")
    assert access.may(session("bob", "[::ffff:10.0.0.1]:1"), TOPIC_READ, "t")
    assert not access.may(session("bob", "10.0.0.2:1"), TOPIC_READ, "t")


def test_a_denial_is_reported_each_time_and_a_silent_question_never(access: Access, denials: Denials) -> None:
    bob = session("bob")
    for _ in range(2):
        assert not access.check(bob, TOPIC_WRITE, "t")
        assert not access.may(bob, TOPIC_WRITE, "t")
    assert denials == [(TOPIC_WRITE, "t")] * 2


def test_cached_decisions_are_limited(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "DECISIONS_MAX", 10)
    bob = session("bob")
    for number in range(100):
        assert not access.may(bob, TOPIC_READ, f"t{number}")
        assert bob.decisions is not None
        assert sum(map(len, bob.decisions.values())) <= 10
    assert not access.may(bob, TOPIC_READ, "x" * 10_000)
    assert bob.decisions is not None
    assert all(len(name) < 300 for by_name in bob.decisions.values() for name in by_name)


def test_super_users_are_principals_separated_by_semicolons() -> None:
    assert parse_super_users(" User:admin; User:CN=broker,O=x;") == ["User:admin", "User:CN=broker,O=x"]
    with pytest.raises(ConfigError, match="'admin' is not TYPE:NAME"):
        parse_super_users("admin")
