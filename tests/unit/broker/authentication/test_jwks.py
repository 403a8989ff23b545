"""Reading the keys of tokens: once at a time, however many tokens come, and however slow or broken the source is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from flowstone.authentication.errors import LoginRefused
from flowstone.authentication.oauthbearer import Expectations
from flowstone.broker.authentication import jwks
from flowstone.broker.authentication.jwks import RETRY_INTERVAL_S, TokenVerifier
from flowstone.broker.loop.workers import Workers
from flowstone.broker.requests.session import ClientSession
from flowstone.ports.clock import SystemClock
from tests.unit.broker.authentication.test_oauthbearer import AUDIENCE, ISSUER, KEY, OTHER, KeySet, token

URL = "https://issuer.example.org/keys"
TOKENS = 40


class Source:
    """What is at the URL; it answers when it is told to."""

    def __init__(self) -> None:
        self.reads = 0
        self.answer: bytes | OSError = OSError("unreachable")

    def read(self, url: str, bytes_max: int) -> bytes:
        assert url == URL
        self.reads += 1
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


class LateClock(SystemClock):
    late_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.late_s


def verify(test: Callable[[TokenVerifier, Source, LateClock], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    monkeypatch.setattr(jwks, "read_document", source.read)

    async def body() -> None:
        clock, workers = LateClock(), Workers(2)
        verifier = TokenVerifier(URL, 3_600_000, Expectations(ISSUER, (AUDIENCE,)), workers, clock)
        try:
            await test(verifier, source, clock)
        finally:
            workers.close()

    asyncio.run(body())


def keys(*named: Any) -> bytes:
    return json.dumps(KeySet(list(named)).as_dict(private=False)).encode()


async def log_in(verifier: TokenVerifier, count: int, key: Any = KEY) -> list[str]:
    """What becomes of so many tokens that come at once, each from an address of its own."""
    askers = [ClientSession("SASL", f"10.0.0.{number}:1") for number in range(count)]
    found = await asyncio.gather(*(verifier.verify(token(key), each) for each in askers), return_exceptions=True)
    return [each.user if not isinstance(each, BaseException) else type(each).__name__ for each in found]


def test_tokens_that_come_at_once_wait_for_one_reading(monkeypatch):
    async def test(verifier: TokenVerifier, source: Source, _clock: LateClock) -> None:
        source.answer = keys(KEY)
        assert await log_in(verifier, TOKENS) == ["alice"] * TOKENS
        assert source.reads == 1

    verify(test, monkeypatch)


def test_a_source_that_cannot_be_reached_is_asked_again_after_an_interval(monkeypatch):
    async def test(verifier: TokenVerifier, source: Source, clock: LateClock) -> None:
        for _ in range(3):
            assert await log_in(verifier, TOKENS) == [LoginRefused.__name__] * TOKENS
        assert source.reads == 1
        source.answer = keys(KEY)
        clock.late_s += RETRY_INTERVAL_S
        assert await log_in(verifier, TOKENS) == ["alice"] * TOKENS
        assert source.reads == 2

    verify(test, monkeypatch)


def test_tokens_of_a_new_key_that_come_at_once_wait_for_one_reading(monkeypatch):
    async def test(verifier: TokenVerifier, source: Source, clock: LateClock) -> None:
        source.answer = keys(KEY)
        assert await log_in(verifier, 1) == ["alice"]
        source.answer = keys(KEY, OTHER)
        assert await log_in(verifier, TOKENS, OTHER) == ["UnknownKey"] * TOKENS  # too soon
        clock.late_s += jwks.UNKNOWN_KEY_INTERVAL_S
        assert await log_in(verifier, TOKENS, OTHER) == ["alice"] * TOKENS
        assert source.reads == 2

    verify(test, monkeypatch)
