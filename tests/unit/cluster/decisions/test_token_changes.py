from __future__ import annotations

import pytest

from flowstone.cluster.decisions import token_changes
from flowstone.cluster.decisions.token_changes import (
    NewToken,
    TokenLifetimes,
    create_token,
    expire_token,
    remove_expired,
    renew_token,
)
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.records import DelegationTokensChanged
from flowstone.cluster.image.replay import apply
from flowstone.errors import ApiError, ErrorCode

LIFETIMES = TokenLifetimes(max_ms=700, expiry_ms=100)


def created(image: ClusterImage, token_id: str, owner: str = "User:alice", now_ms: int = 1000) -> ClusterImage:
    records, token = create_token(image, NewToken(token_id, owner, owner, ("User:bob",), -1), LIFETIMES, now_ms)
    image = apply(image, records)
    assert image.delegation_tokens[token_id] == token
    return image


def code_of(raised: pytest.ExceptionInfo[ApiError]) -> ErrorCode:
    return raised.value.code


def test_a_token_is_renewed_up_to_its_longest_lifetime():
    image = created(EMPTY_IMAGE, "t")
    token = image.delegation_tokens["t"]
    assert (token.issued_ms, token.expires_ms, token.max_ms) == (1000, 1100, 1700)
    for now_ms, period_ms, expires_ms in ((1050, -1, 1150), (1100, 20, 1120), (1110, 10_000, 1210)):
        records, told = renew_token(image, "t", "User:bob", period_ms, LIFETIMES, now_ms)
        image = apply(image, records)
        assert told == image.delegation_tokens["t"].expires_ms == expires_ms
    image = apply(image, [DelegationTokensChanged((token._replace(expires_ms=1690),), ())])
    assert renew_token(image, "t", "User:alice", -1, LIFETIMES, 1680)[1] == 1700
    with pytest.raises(ApiError) as raised:
        renew_token(image, "t", "User:alice", -1, LIFETIMES, 1691)
    assert code_of(raised) == ErrorCode.DELEGATION_TOKEN_EXPIRED


def test_a_token_expires_sooner_and_is_removed():
    image = created(EMPTY_IMAGE, "t")
    image = apply(image, expire_token(image, "t", "User:alice", 30, 1010)[0])
    assert image.delegation_tokens["t"].expires_ms == 1040
    with pytest.raises(ApiError) as raised:
        expire_token(image, "t", "User:carol", 30, 1010)
    assert code_of(raised) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    records, expires_ms = expire_token(image, "t", "User:alice", -1, 5000)
    assert expires_ms == 5000
    assert apply(image, records).delegation_tokens == {}
    with pytest.raises(ApiError) as raised:
        expire_token(EMPTY_IMAGE, "t", "User:alice", -1, 5000)
    assert code_of(raised) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_expired_tokens_make_place_and_are_removed():
    image = created(created(EMPTY_IMAGE, "old"), "new", now_ms=1101)
    assert set(image.delegation_tokens) == {"new"}
    records, count = remove_expired(image, 1201)
    assert (count, set(image.delegation_tokens)) == (0, {"new"})
    records, count = remove_expired(image, 1202)
    assert count == 1
    assert apply(image, records).delegation_tokens == {}


def test_the_number_of_tokens_is_limited(monkeypatch):
    monkeypatch.setattr(token_changes, "TOKENS_PER_OWNER_MAX", 2)
    monkeypatch.setattr(token_changes, "TOKENS_MAX", 3)
    image = created(created(EMPTY_IMAGE, "a"), "b")
    for owner, renewers in (("User:alice", ()), ("User:carol", ("User:x",) * 21), ("User:" + "c" * 255, ())):
        with pytest.raises(ApiError) as raised:
            create_token(image, NewToken("c", owner, owner, renewers, -1), LIFETIMES, 1000)
        assert code_of(raised) == ErrorCode.POLICY_VIOLATION
    image = created(image, "c", "User:carol")
    with pytest.raises(ApiError) as raised:
        create_token(image, NewToken("d", "User:dora", "User:dora", (), -1), LIFETIMES, 1000)
    assert code_of(raised) == ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize(("lifetime_ms", "max_ms"), [(-1, 700), (0, 700), (1, 1), (699, 699), (700, 700), (701, 700)])
def test_a_lifetime_is_what_is_asked_for_up_to_the_longest(lifetime_ms: int, max_ms: int) -> None:
    wanted = NewToken("t", "User:alice", "User:admin", ("User:bob",), lifetime_ms)
    records, token = create_token(EMPTY_IMAGE, wanted, LIFETIMES, 1000)
    assert tuple(token[:4]) == ("t", "User:alice", "User:admin", ("User:bob",))
    assert (token.max_ms, token.expires_ms) == (1000 + max_ms, 1000 + min(max_ms, 100))
    assert records == [DelegationTokensChanged((token,), ())]


def test_renewers_and_names_may_be_as_many_and_as_long_as_the_limits() -> None:
    renewers = tuple(f"User:{number}" for number in range(token_changes.RENEWERS_MAX))
    longest = "User:".ljust(token_changes.PRINCIPAL_CHARACTERS_MAX, "x")
    create_token(EMPTY_IMAGE, NewToken("t", longest, "User:a", renewers, -1), LIFETIMES, 1000)
    create_token(EMPTY_IMAGE, NewToken("t", "User:a", "User:a", (longest,), -1), LIFETIMES, 1000)
    for owner, refused in (
        ("User:a", (*renewers, "User:x")),
        (longest + "x", ()),
        ("User:a", ("User:b", longest + "x")),
    ):
        with pytest.raises(ApiError) as raised:
            create_token(EMPTY_IMAGE, NewToken("t", owner, "User:a", refused, -1), LIFETIMES, 1000)
        assert code_of(raised) == ErrorCode.POLICY_VIOLATION


def test_a_token_that_expires_now_can_still_be_renewed_and_shortened() -> None:
    image = created(EMPTY_IMAGE, "t")
    assert renew_token(image, "t", "User:bob", 50, LIFETIMES, 1100)[1] == 1150
    records, expires_ms = expire_token(image, "t", "User:bob", 0, 1100)
    assert expires_ms == 1100 == apply(image, records).delegation_tokens["t"].expires_ms
    assert expire_token(image, "t", "User:bob", 10_000, 1100)[1] == 1700
    with pytest.raises(ApiError) as raised:
        expire_token(image, "t", "User:bob", 0, 1101)
    assert code_of(raised) == ErrorCode.DELEGATION_TOKEN_EXPIRED
    with pytest.raises(ApiError) as raised:
        renew_token(image, "t", "User:carol", 50, LIFETIMES, 1100)
    assert code_of(raised) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def test_no_more_tokens_are_removed_at_once_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_changes, "REMOVED_AT_ONCE_MAX", 2)
    image = EMPTY_IMAGE
    for name in "abc":
        image = created(image, name)
    records, count = remove_expired(image, 1101)
    assert (count, len(apply(image, records).delegation_tokens)) == (2, 1)
    assert remove_expired(image, 1100) == ([], 0)
