"""Requests that wait for their answer do not keep the bytes that they arrived in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowstone.broker.dispatch.deferred import Deferred
from flowstone.broker.requests.session import ClientSession
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.wire_client import batch_of, frame, produce_request

SESSION_MS = 30_000


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path / "data"), offsets_topic_num_partitions="1") as running:
        with running.client() as client:
            assert client.create_topic("t") == 0
            assert client.ask(0, m.FindCoordinatorRequest(key="g")).error_code == 0
        yield running


def parked(app: RunningApp, version: int, request: Any) -> Deferred:
    """Hand a request to the broker; fail if its bytes cannot be let go of while its answer is waited for."""
    received = bytearray(frame(version, request)[4:])

    def ask() -> Deferred:
        answer = app.app._server.answer(memoryview(received), ClientSession("PLAINTEXT", "127.0.0.1:1"))
        assert isinstance(answer, Deferred)
        received.clear()  # BufferError if there is a view of it
        return answer

    return app.call(ask)


def test_a_produce_that_waits_for_the_disk_does_not_keep_its_records(app: RunningApp) -> None:
    answer = parked(app, 9, produce_request("t", batch_of(b"x" * 100_000)))
    assert app.run(finished(answer)).responses[0].partition_responses[0].error_code == 0


async def finished(answer: Deferred) -> Any:
    return await answer.outcome


def test_a_join_that_waits_for_others_keeps_its_metadata_once(app: RunningApp) -> None:
    protocol = m.JoinGroupRequestProtocol(name="range", metadata=b"x" * 10_000)
    join = m.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        protocol_type="consumer",
        protocols=[protocol],
    )
    answer = parked(app, 3, join)
    kept = answer.encode.args[2]  # type: ignore[attr-defined]
    assert len(kept.protocols) == 0
    app.call(answer.outcome.cancel)
