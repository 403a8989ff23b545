"""What authorization costs a request: at most a microsecond of processor time, and nothing if it is off."""

from __future__ import annotations

from collections.abc import Iterator
from time import thread_time
from typing import Any

import pytest

from flowstone.broker.authorization.guards import guarded
from flowstone.broker.authorization.table import guard_of
from flowstone.broker.dispatch.dispatcher import Dispatcher
from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.broker.handlers import produce
from flowstone.broker.requests.context import RequestContext
from flowstone.broker.requests.session import ClientSession, Principal
from flowstone.cluster.decisions.acl_operations import AclOperation as Op
from flowstone.cluster.decisions.acl_operations import ResourceType as Kind
from flowstone.wire import messages as m
from tests.support.acl_clients import app_with_rules, user
from tests.support.running_app import RunningApp

COST_S_MAX = 1e-6
ROUNDS, CALLS = 7, 5_000


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with app_with_rules(str(tmp_path_factory.mktemp("data"))) as app, user(app) as admin:
        admin.allow("bob", Op.WRITE, Kind.TOPIC, "t")
        admin.allow("bob", Op.READ, Kind.GROUP, "g")
        admin.allow("bob", Op.READ, Kind.TOPIC, "t")
        yield app


def nothing(_services: Any, _context: Any, _request: Any) -> None:
    """A handler that does nothing."""


@pytest.mark.measures_time
@pytest.mark.parametrize(
    ("key", "version", "request_"),
    [
        (0, 9, m.ProduceRequest(acks=1, topic_data=[m.ProduceRequestTopic(name="t")])),
        (2, 8, m.ListOffsetsRequest(topics=[m.ListOffsetsRequestTopic(name="t")])),
        (8, 8, m.OffsetCommitRequest(group_id="g", topics=[m.OffsetCommitRequestTopic(name="t")])),
        (12, 4, m.HeartbeatRequest(group_id="g")),
    ],
)
def test_a_check_adds_at_most_a_microsecond(app: RunningApp, key: int, version: int, request_: Any) -> None:
    services = app.app.services
    session = ClientSession("PLAINTEXT", "127.0.0.1:1")
    session.principal = Principal("User", "bob")
    context = RequestContext(key, version, 1, session)
    guard = guard_of(key, ENDPOINTS[key].permissions)
    assert guard is not None
    assert guard.allows(services, context, request_)
    cost_s = _best_s(guarded(guard, nothing), services, context, request_) - _best_s(
        nothing, services, context, request_
    )
    assert cost_s < COST_S_MAX


def _best_s(handler: Any, *arguments: Any) -> float:
    """The processor time of one call, in the best of several rounds."""
    best_s = 1.0
    for _ in range(ROUNDS):
        started = thread_time()
        for _ in range(CALLS):
            handler(*arguments)
        best_s = min(best_s, (thread_time() - started) / CALLS)
    return best_s


def test_without_an_authorizer_the_handler_is_called_as_it_is(tmp_path_factory: pytest.TempPathFactory) -> None:
    with RunningApp(str(tmp_path_factory.mktemp("data"))) as app:
        assert app.app.services.access is None
        assert Dispatcher(app.app.services)._find_route(0, 9).handler is produce.handle
