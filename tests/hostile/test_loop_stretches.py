"""No request holds the event loop for long, however large the limits let it be: a search over every API and version.

What counts is the time of the loop's thread but for what other programs took of it (`loop_watch`). A request that seems
to hold the loop is sent again, a few times, and the least counts: other programs also evict what is in caches. What it
has changed is undone before, or it would have less to do.

`make test` searches with requests of some thousand elements. FLOWSTONE_HOSTILE_LONG=1 makes them as large as the limits
allow (docs/limits.md says how long it takes). FLOWSTONE_HOSTILE_ACCESS=allowed or denied runs it with an authorizer
that allows or denies everything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial

import pytest

from flowstone.broker.dispatch.dispatcher import PRODUCE_KEY, REQUEST_BYTES_MAX_BUT_PRODUCE
from flowstone.errors import ProtocolError
from flowstone.wire import messages as m
from flowstone.wire.codec import request_decoder
from flowstone.wire.frames import parse_request_header
from flowstone.wire.record_batch import Record, build_batch
from tests.hostile.stretches.id_cases import id_cases
from tests.hostile.stretches.produce_cases import KEYED, produce_cases
from tests.hostile.stretches.search import IS_LONG, TIMEOUT_S, answered, check, collector_of_a_broker
from tests.hostile.stretches.undoing import undoing
from tests.hostile.stretches.versions import covered, other_versions, served
from tests.support.acl_clients import STANDARD
from tests.support.running_app import RunningApp
from tests.support.transactions import TransactionClient
from tests.support.wire_client import Client, api_key, frame, produce_request

from .worst_case import WIDE_ID, Case
from .worst_requests import GROUP, TRANSACTIONAL_ID, WIDE, WIDE_PARTITIONS, cases

# A topic that takes large batches: the promised size in the quick search, and more in the long one.
LARGE, LARGE_BATCH_MIB = "large", (16, 40, 96)
SIZE_BYTES = 4
# What has no response: a request that follows it has one.
FOLLOWING = frame(0, m.ApiVersionsRequest())

ACCESS = os.environ.get("FLOWSTONE_HOSTILE_ACCESS", "")
CASES = [*cases(), *id_cases(), *produce_cases()]
VERSIONS = list(other_versions(CASES))

pytestmark = pytest.mark.measures_time


@pytest.fixture(scope="module", autouse=True)
def collector() -> Iterator[None]:
    with collector_of_a_broker():
        yield


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    data = str(tmp_path_factory.mktemp("stretches"))
    settings = {"group_initial_rebalance_delay_ms": "0", "max_partitions": "60000"}
    if ACCESS:
        settings |= {"authorizer_class_name": STANDARD, "super_users": "User:ANONYMOUS"}
    with RunningApp(data, **settings) as running:
        with Client(running.app.addresses["PLAINTEXT"], TIMEOUT_S) as client:
            assert client.create_topic(WIDE, WIDE_PARTITIONS) == 0
            assert client.create_topic(LARGE, max_message_bytes=str(LARGE_BATCH_MIB[-1] << 20)) == 0
            assert client.create_topic(KEYED, cleanup_policy="compact") == 0
            for name in ("FindCoordinator", "FindCoordinator of transactions"):
                find = next(case for case in CASES if case.name == name)
                client.ask(find.version, find.make(1))
            producer = TransactionClient(client, TRANSACTIONAL_ID)
            producer.begin()
            assert producer.pair == (0, 0)
            commit = next(case for case in CASES if case.name == "OffsetCommit of many partitions")
            assert client.ask(commit.version, commit.make(WIDE_PARTITIONS)).topics[0].partitions[0].error_code == 0
        if ACCESS == "denied":
            access = running.app.services.access
            assert access is not None
            running.call(partial(setattr, access._authorizer, "_super_users", frozenset()))
            running.call(access._forget)
        yield running


def test_every_api_and_version_has_a_worst_request() -> None:
    assert covered([*CASES, *VERSIONS]) == served()
    assert {name for name, _ in covered(CASES)} == {name for name, _ in served()}
    assert GROUP


@pytest.mark.parametrize("size_mib", LARGE_BATCH_MIB if IS_LONG else LARGE_BATCH_MIB[:1])
def test_a_produce_of_one_large_batch_does_not_hold_the_loop(app: RunningApp, size_mib: int) -> None:
    value = bytes((size_mib << 20) - 1000)
    request = frame(9, produce_request(LARGE, build_batch([Record(0, int(time.time() * 1000), None, value)])))
    check(app, f"Produce of {size_mib} MiB", lambda: ask(app, request))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.version}")
def test_no_request_holds_the_loop(app: RunningApp, case: Case) -> None:
    check_case(app, case)


@pytest.mark.parametrize("case", VERSIONS, ids=lambda case: f"{case.name} {case.version}")
def test_no_version_of_a_request_holds_the_loop(app: RunningApp, case: Case) -> None:
    check_case(app, case)


def check_case(app: RunningApp, case: Case) -> None:
    count = case.full if IS_LONG else case.quick
    request, is_produce = largest(case, count)
    request = request.replace(WIDE_ID, app.app.services.metadata.image.topics[WIDE].topic_id)

    def undo() -> None:
        with Client(app.app.addresses["PLAINTEXT"], TIMEOUT_S) as client:
            for version, body in undoing(case, count):
                client.ask(version, body)

    has_response = not (is_produce and ", acks=0" in case.name)
    check(app, f"{case.name} {case.version}", lambda: ask(app, request, has_response=has_response), undo)


def largest(case: Case, count: int) -> tuple[bytes, bool]:
    """The case's request with as many elements as the limits of one request allow, and whether it is Produce."""
    while True:
        made = case.make(count)
        key, request = api_key(made), frame(case.version, made)
        if is_within_limits(key, case.version, request):
            return request, key == PRODUCE_KEY
        count = int(count * 0.95)


def is_within_limits(key: int, version: int, request: bytes) -> bool:
    body = memoryview(request)[SIZE_BYTES:]
    if key != PRODUCE_KEY and len(body) > REQUEST_BYTES_MAX_BUT_PRODUCE:
        return False
    *_, at = parse_request_header(body, 0)
    try:
        request_decoder(key, version)(body, at)
    except ProtocolError:  # more elements than an array, or all nested ones, may have
        return False
    return True


def ask(app: RunningApp, request: bytes, *, has_response: bool = True) -> None:
    with Client(app.app.addresses["PLAINTEXT"], TIMEOUT_S) as client:
        if has_response:
            answered(client, request)
        else:
            answered(client, request + FOLLOWING)
