from __future__ import annotations

from dataclasses import replace

from flowstone.authentication.delegation_tokens import DelegationToken
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE
from flowstone.cluster.image.records import DelegationTokensChanged, decode, encode
from flowstone.cluster.image.replay import apply, snapshot


def token(token_id: str) -> DelegationToken:
    return DelegationToken(token_id, "User:alice", "User:bob", ("User:carol",), 1, 30, 20)


def test_a_snapshot_has_the_tokens_and_nothing_secret():
    image = apply(EMPTY_IMAGE, [DelegationTokensChanged((token(each),), ()) for each in ("a", "b")])
    assert apply(EMPTY_IMAGE, snapshot(image)).delegation_tokens == image.delegation_tokens
    stored = [encode(record) for record in snapshot(image) if isinstance(record, DelegationTokensChanged)]
    assert [decode(each) for each in stored] == [DelegationTokensChanged(tuple(image.delegation_tokens.values()), ())]
    assert b"hmac" not in b"".join(stored)
    fewer = replace(image, delegation_tokens={"a": image.delegation_tokens["a"]})
    assert list(DelegationTokensChanged.difference(image, fewer)) == [DelegationTokensChanged((), ("b",))]
