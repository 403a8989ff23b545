"""DescribeDelegationToken from the wire: who sees which token."""

from __future__ import annotations

from flowstone.authentication.delegation_tokens import DelegationToken
from flowstone.cluster.decisions.acl_operations import AclOperation, ResourceType
from flowstone.cluster.image.acl import ALLOW, LITERAL, Acl
from flowstone.cluster.image.records import AclsCreated, DelegationTokensChanged
from flowstone.wire.messages import (
    DescribeDelegationTokenRequest,
)
from tests.support.security.tokens import create, logged_in, seen

DAY_MS = 86_400_000


def test_a_token_is_seen_by_those_it_concerns_and_by_permission(token_broker):
    with (
        logged_in(token_broker, "alice") as alice,
        logged_in(token_broker, "bob") as bob,
        logged_in(token_broker, "carol") as carol,
    ):
        token, shared = create(alice), create(alice, "bob")
        both = {token.token_id, shared.token_id}
        assert both <= seen(alice)
        assert both <= seen(alice, "alice", version=1)
        assert both.isdisjoint(seen(alice, "carol"))
        assert seen(bob) & both == {shared.token_id}
        assert seen(carol) & both == set()
        rules = (
            Acl(ResourceType.USER, "User:alice", LITERAL, "User:carol", "*", AclOperation.DESCRIBE_TOKENS, ALLOW),
            Acl(ResourceType.DELEGATION_TOKEN, token.token_id, LITERAL, "User:bob", "*", AclOperation.DESCRIBE, ALLOW),
        )
        token_broker.run(token_broker.app.services.metadata.append([AclsCreated(rules)]))
        assert seen(carol) & both == both
        assert seen(bob) & both == both
        nobody = bob.ask(3, DescribeDelegationTokenRequest(owners=[]))
        assert (nobody.error_code, nobody.tokens) == (0, [])


def test_a_long_list_is_encoded_in_slices(token_broker):
    far_ms = 1 << 50
    tokens = tuple(
        DelegationToken(f"many-{number}", "User:dora", "User:carol", ("User:x",), 0, far_ms, far_ms)
        for number in range(1500)
    )
    token_broker.run(token_broker.app.services.metadata.append([DelegationTokensChanged(tokens, ())]))
    with logged_in(token_broker, "carol") as carol:
        assert len([each for each in seen(carol) if each.startswith("many-")]) == 1500
    removed = tuple(token.token_id for token in tokens)
    token_broker.run(token_broker.app.services.metadata.append([DelegationTokensChanged((), removed)]))
